// SPDX-License-Identifier: Apache-2.0
#include "launcher/hardware/cpu_set.h"

#include <algorithm>
#include <cerrno>
#include <iterator>
#include <sched.h>

#include <climits>

namespace muster::launcher {
namespace {

constexpr std::size_t kWordBits = sizeof(unsigned long) * CHAR_BIT;

}  // namespace

CpuSet intersection(const CpuSet& a, const CpuSet& b) {
  CpuSet out;
  std::set_intersection(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(out));
  return out;
}

CpuSet sorted_union(const CpuSet& a, const CpuSet& b) {
  CpuSet out;
  std::set_union(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(out));
  return out;
}

std::vector<unsigned long> to_mask(const CpuSet& set) {
  std::vector<unsigned long> out(set.empty() ? 1 : static_cast<std::size_t>(set.back()) / kWordBits + 1);
  for (const int cpu : set) {
    const auto bit = static_cast<std::size_t>(cpu);
    out[bit / kWordBits] |= 1UL << (bit % kWordBits);
  }
  return out;
}

CpuSet current_affinity() {
  // The kernel refuses a mask that is shorter than its own (EINVAL), and does not tell how long that is.
  for (std::size_t cpus = 1024; cpus <= kMaxCpu + 1; cpus *= 4) {
    std::vector<unsigned long> words(cpus / kWordBits);
    if (::sched_getaffinity(0, words.size() * sizeof(unsigned long),
                            reinterpret_cast<cpu_set_t*>(words.data())) != 0) {
      if (errno == EINVAL) continue;
      break;
    }
    CpuSet out;
    for (std::size_t bit = 0; bit < cpus; ++bit)
      if ((words[bit / kWordBits] >> (bit % kWordBits) & 1) != 0) out.push_back(static_cast<int>(bit));
    return out;
  }
  return {};
}

}  // namespace muster::launcher
