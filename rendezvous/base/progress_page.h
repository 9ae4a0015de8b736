// SPDX-License-Identifier: Apache-2.0
// ProgressPage: the 512 bytes in which a worker of the runtime tells how far it is. The worker maps them
// (worker_runtime/observe/progress.cc) and stores into them without a system call; the agent reads the file
// when it wants to know (launcher/progress/progress_sample.h). The file is the one that MUSTER_PROGRESS_FILE
// names. A program of another kind writes a line of text there instead, which the magic tells apart. Plain
// memory of one machine: no byte order. Each field is stored at once, the text under a version that is odd
// meanwhile.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace muster {

struct ProgressPage {
  std::array<char, 16> magic;
  std::uint64_t moves;         // rises with whatever is said
  std::int64_t epoch;          // -1: not told
  std::int64_t step;           // the one under way, counted from 1; 0: none yet
  std::int64_t steps;          // of the epoch; 0: not told
  std::array<char, 16> phase;  // padded with zeros
  std::uint32_t paused;        // 1: how long the present work takes is not known
  std::uint32_t text_version;  // odd while the text is being written
  double loss;                 // told last
  double samples_per_second;   // of this worker; 0: neither was told yet
  std::array<char, 424> text;  // ends with a zero
};
static_assert(sizeof(ProgressPage) == 512);

inline constexpr std::string_view kProgressMagic{"muster-progress\1", 16};

}  // namespace muster
