// SPDX-License-Identifier: Apache-2.0
// What muster --doctor runs as the one worker of each node: it offers its addresses through the job's store,
// answers the others (echo_server.h), tries to reach them (probe.h), and hands in what it found; the first
// node prints the diagnosis, and all learn the verdict. Blocks; every wait has a deadline. Returns the
// worker's exit status: 0 where a verdict was reached, whatever it is; else it has said why.
#pragma once

#include <string>
#include <vector>

#include "rendezvous/base/env.h"

namespace muster::launcher {

/// argv[1] of such a worker; the fields of DoctorArguments follow.
inline constexpr std::string_view kDoctorNode = "--muster-doctor-node";

struct DoctorArguments {
  std::string host;        ///< this node's name, for people
  std::string local_addr;  ///< --local-addr
  std::string interface;   ///< --iface
  std::string verdict;     ///< file that gets it: "0" or "1"

  [[nodiscard]] std::vector<std::string> to_argv() const;
};

/// `arguments`: without argv[0].
[[nodiscard]] bool is_doctor_node(const std::vector<std::string>& arguments);
[[nodiscard]] int run_doctor_node(const std::vector<std::string>& arguments, const Environment& environment);

}  // namespace muster::launcher
