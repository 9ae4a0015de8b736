// SPDX-License-Identifier: Apache-2.0
// Placement: which rank this process is and where the store is, read from an init method and the environment.
// Pure; init() acts on it. Where nobody says it, the Slurm step does (srun -n N program): every task finds
// the same store without a word. Failure: kInvalidArgument naming the variable or parameter and who usually
// sets it. Source of the rules: torch/distributed/rendezvous.py (env://, tcp://, file://).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "rendezvous/base/env.h"

namespace muster {

struct Placement {
  enum class StoreKind { kNone, kTcp, kFile };

  int rank = 0;
  int world_size = 1;
  std::optional<int> local_rank = {};  // nothing: to be found out from the hosts
  std::optional<int> local_world_size = {};
  int restart_count = 0;
  StoreKind store = StoreKind::kNone;
  std::string host = {};   // kTcp
  std::uint16_t port = 0;  // kTcp
  bool hosts_server = false;
  std::string path = {};  // kFile

  friend bool operator==(const Placement&, const Placement&) = default;
};

[[nodiscard]] Result<Placement> find_placement(std::string_view init_method, const Environment& environment);

}  // namespace muster
