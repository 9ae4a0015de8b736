// SPDX-License-Identifier: Apache-2.0
// etcd::Settings: where the etcd of a job is and how the job uses it. A value: made from the command line,
// used by Client and Coordinator.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "rendezvous/base/fieldwise.h"
#include "rendezvous/net/tls.h"

namespace muster::etcd {

using fieldwise::operator==;

struct Settings {
  struct Member {
    std::string host;
    std::uint16_t port = 0;
  };
  std::vector<Member> members;  ///< at least one
  std::optional<tls::Context> tls;
  std::string prefix = "/muster";  ///< of all keys
  std::int64_t lease_ttl_seconds = 10;
};

}  // namespace muster::etcd
