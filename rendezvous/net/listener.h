// SPDX-License-Identifier: Apache-2.0
// A listening TCP socket: dual-stack [::] where the host has IPv6, else 0.0.0.0, or one named address, or one
// that was inherited; or several, of named addresses, with one port. Non-blocking, close-on-exec, backlog of
// the system's maximum. Thread-safe. Failure: text with the address, the port, the cause and who holds the
// port, beginning with PyTorch's words.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <muster/result.h>

#include "rendezvous/base/unique_fd.h"

namespace muster::net {

struct Listener {
  std::vector<UniqueFd> fds;  ///< one for each address
  std::uint16_t port = 0;     ///< of all of them
  std::string address;        ///< "[::]:29500", or several with blanks between them
  bool loopback_only = true;  ///< all of them are loopback addresses
};

/// `host` empty: every address. `port` 0: the kernel chooses. `name_owner`: a busy port's error says who
/// holds it, for which the descriptors of all processes are looked at; without, busy_port_advice() does so
/// later.
[[nodiscard]] Result<Listener> open_listener(const std::string& host, std::uint16_t port,
                                             bool name_owner = true);

/// The end of an error's text: "; the port is held by pid 1234 (python3 train.py); end that process or ...".
/// `address`: numeric, where one would listen; empty: everywhere. A socket on the same port of another
/// address is in nobody's way. Of several that are the first three. `known_to_others`: the port cannot be
/// chosen by the kernel. Thread-safe. (port_owner.cc)
[[nodiscard]] std::string busy_port_advice(std::string_view address, std::uint16_t port,
                                           bool known_to_others = false);

/// One socket for each of `addresses`, at one port. An address that this host has not, or not yet, is left
/// out as long as there is another.
[[nodiscard]] Result<Listener> open_listeners(const std::vector<std::string>& addresses, std::uint16_t port,
                                              bool name_owner = true);

/// Takes over a bound stream socket, which need not be listening yet. Its port must be `port` unless that is
/// 0.
[[nodiscard]] Result<Listener> adopt_listener(UniqueFd fd, std::uint16_t port);

/// "10.0.0.4:1234" or "[::1]:1234" of the other end of a connected socket, an IPv4-mapped address as IPv4.
[[nodiscard]] std::string peer_name(int fd);

}  // namespace muster::net
