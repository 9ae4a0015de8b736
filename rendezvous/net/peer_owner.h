// SPDX-License-Identifier: Apache-2.0
// Whose the other end of a TCP connection is, as far as this host knows. For protocols without authentication
// (TCPStore): a server that serves its own host alone, or the users of it that it trusts, asks here when it
// accepts. Each answer is a few system calls and keeps nothing. Thread-safe. Failure: no answer is an error
// with its reason, never a guess.
// Source: sock_diag(7); net/ipv4/inet_diag.c (a request without NLM_F_DUMP looks up one exact socket).
#pragma once

#include <string>
#include <sys/types.h>
#include <vector>

namespace muster::net {

/// The peer's address is a loopback address, or the connection's own local one: both ends are in this network
/// namespace.
[[nodiscard]] bool peer_is_on_this_host(int fd);

/// Empty where the peer's user is root, this process's own, or one of `allowed`; else why it is not, or why
/// that is not known.
[[nodiscard]] std::string untrusted_user(int fd, const std::vector<uid_t>& allowed = {});

}  // namespace muster::net
