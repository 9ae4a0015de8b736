// SPDX-License-Identifier: Apache-2.0
// ControlTarget: which coordinator an agent, or who only looks in, connects to, and what it proves there. A
// value.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "rendezvous/net/tls.h"
#include "rendezvous/protocol/auth.h"

namespace muster::net {

struct ControlTarget {
  std::string host;  ///< of the coordinator: address or name
  std::uint16_t port = 0;
  std::string job;       ///< empty: it takes part in none, and looks in at all
  std::string own_host;  ///< this one's name, for people
  std::optional<auth::Secret> secret;
  std::optional<tls::Context> tls;  ///< speak TLS, and with no coordinator but one that this trusts
  std::string tls_name;             ///< for which its certificate must be; empty: host
};

}  // namespace muster::net
