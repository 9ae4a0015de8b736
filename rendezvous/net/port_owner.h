// SPDX-License-Identifier: Apache-2.0
// Who listens on a TCP port of this host, for error texts: /proc/net/tcp{,6} gives the socket, /proc/*/fd its
// holder. Processes of other users are found only by root. Thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace muster::net {

/// The end of an error's text: "; the port is held by pid 1234 (python3 train.py); end that process or ...".
/// `address`: numeric, where one would listen; empty: everywhere. A socket on the same port of another
/// address is in nobody's way. Of several that are the first three. `known_to_others`: the port cannot be
/// chosen by the kernel.
[[nodiscard]] std::string busy_port_advice(std::string_view address, std::uint16_t port,
                                           bool known_to_others = false);

}  // namespace muster::net
