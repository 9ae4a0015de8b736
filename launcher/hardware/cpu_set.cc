// SPDX-License-Identifier: Apache-2.0
#include "launcher/hardware/cpu_set.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <iterator>
#include <sched.h>

#include <climits>
#include <fmt/format.h>

namespace muster::launcher {
namespace {

constexpr std::size_t kWordBits = sizeof(unsigned long) * CHAR_BIT;

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t' || text.back() == '\n'))
    text.remove_suffix(1);
  return text;
}

std::optional<int> number(std::string_view text) {
  int value = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || value < 0 || value > kMaxCpu)
    return std::nullopt;
  return value;
}

}  // namespace

std::string to_ranges(const CpuSet& set) {
  std::string out;
  for (std::size_t i = 0; i < set.size();) {
    std::size_t last = i;
    while (last + 1 < set.size() && set[last + 1] == set[last] + 1) ++last;
    if (!out.empty()) out += ',';
    out += last == i ? fmt::format("{}", set[i]) : fmt::format("{}-{}", set[i], set[last]);
    i = last + 1;
  }
  return out;
}

std::optional<CpuSet> parse_ranges(std::string_view text) {
  CpuSet out;
  text = trimmed(text);
  if (text.empty()) return out;
  while (true) {
    const auto comma = text.find(',');
    const std::string_view part = trimmed(text.substr(0, comma));
    const auto dash = part.find('-');
    const auto first = number(part.substr(0, dash));
    const auto last = dash == std::string_view::npos ? first : number(part.substr(dash + 1));
    if (!first || !last || *last < *first) return std::nullopt;
    for (int cpu = *first; cpu <= *last; ++cpu) out.push_back(cpu);
    if (comma == std::string_view::npos) break;
    text.remove_prefix(comma + 1);
  }
  std::sort(out.begin(), out.end());
  out.erase(std::unique(out.begin(), out.end()), out.end());
  return out;
}

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
