// SPDX-License-Identifier: Apache-2.0
// Hostlist: Slurm's short form of node names, "gpu[001-004,7],login-2,rack[1-2]n[01-03]", written out. A
// bracket holds numbers and ranges; zeros in front of a range's first number fix the width of all of them.
// Of several brackets the last one runs fastest. Called by slurm_step with what the environment says, so
// nothing is believed: names, brackets and the length of the result are capped. Pure. Errors are
// kInvalidArgument and name the entry. Source: Slurm's manual pages (slurm.conf, NodeName; scontrol, show
// hostnames), checked against the program.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include <muster/result.h>

namespace muster {

inline constexpr std::size_t kMaxHosts = 65536;     // Slurm's own limit of nodes
inline constexpr std::size_t kMaxHostName = 253;    // DNS
inline constexpr std::size_t kMaxHostBrackets = 8;  // of one entry

/// In the order written, duplicates included. An empty text is an error, and so is an empty entry.
[[nodiscard]] Result<std::vector<std::string>> expand_hostlist(std::string_view text);

}  // namespace muster
