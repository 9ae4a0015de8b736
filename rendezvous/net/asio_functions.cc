// SPDX-License-Identifier: Apache-2.0
// Asio's functions, compiled once (BOOST_ASIO_SEPARATE_COMPILATION, set for the whole tree). Header-only,
// each of the 60 files that do I/O compiled epoll, timers and queues again: a quarter of its compile time and
// 80 KB of object code.
#include <boost/asio/impl/src.hpp>
