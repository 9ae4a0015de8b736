// SPDX-License-Identifier: Apache-2.0
// Doctor text: what muster --doctor prints about the paths between N nodes: a table of N x N, what does not
// work and what might help, names, and a verdict. Pure. Nothing here fails.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "launcher/doctor/findings.h"

namespace muster::launcher {

struct Diagnosis {
  std::string text;
  bool healthy = false;  ///< every node reaches every other

  friend bool operator==(const Diagnosis&, const Diagnosis&) = default;
};

/// By rank; a row that never came is nothing.
[[nodiscard]] Diagnosis diagnose(const std::vector<DoctorNode>& nodes,
                                 const std::vector<std::optional<DoctorRow>>& rows);

/// With more nodes a path is one character of the table.
inline constexpr std::size_t kMaxWideTable = 12;

}  // namespace muster::launcher
