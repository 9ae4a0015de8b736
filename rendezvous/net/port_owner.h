// SPDX-License-Identifier: Apache-2.0
// Who listens on a TCP port of this host, for error texts: /proc/net/tcp{,6} gives the socket, /proc/*/fd its
// holder. Processes of other users are found only by root. Thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace muster::net {

/// "pid 1234 (python3 train.py)"; "a process of another user" when it cannot be seen; "" when nobody listens.
/// `address`: numeric, where one would listen; empty: everywhere. A socket on the same port of another
/// address is in nobody's way. Several that are: the first three.
[[nodiscard]] std::string describe_port_owner(std::string_view address, std::uint16_t port);

/// The same as the end of an error's text, with what to try. `known_to_others`: the port cannot be chosen by
/// the kernel.
[[nodiscard]] std::string busy_port_advice(std::string_view address, std::uint16_t port,
                                           bool known_to_others = false);

}  // namespace muster::net
