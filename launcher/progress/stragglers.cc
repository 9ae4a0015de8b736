// SPDX-License-Identifier: Apache-2.0
#include "launcher/progress/stragglers.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <numbers>
#include <vector>

#include <fmt/format.h>

namespace muster::launcher {
namespace {

double busy_share(const RankPace& pace) {
  return 1.0 - static_cast<double>(pace.waiting) / pace.samples;
}

}  // namespace

bool is_communication(std::string_view phase) {
  constexpr std::array<std::string_view, 9> kCollectives = {"all_reduce",     "allreduce", "all_gather",
                                                            "reduce_scatter", "broadcast", "barrier",
                                                            "reduce",         "send",      "recv"};
  return std::ranges::find(kCollectives, phase) != kCollectives.end() || phase.starts_with("wait") ||
         phase.ends_with("wait");
}

void PaceMeter::add(const ProgressSample& sample, Instant now) {
  if (sample.paused) return;
  std::int64_t made = -1;
  if (const auto position = position_in(sample.text)) {
    const std::int64_t steps = steps_in(sample.text).value_or(0);
    // Without the steps of an epoch its end cannot be counted over.
    if (position->epoch != epoch_ && steps == 0) samples_.clear();
    epoch_ = position->epoch;
    // The numbers are the worker's: a sum of nonsense must not overflow.
    constexpr std::int64_t kMost = std::int64_t{1} << 30;
    const bool sensible = position->epoch >= 0 && position->epoch < kMost && steps < kMost &&
                          position->step >= 0 && position->step < (kMost << 20);
    if (sensible) made = position->epoch * steps + position->step;
  }
  if (!samples_.empty() && made < samples_.back().steps_made) samples_.clear();
  samples_.push_back({now, made, std::string(sample.phase)});
  if (samples_.size() > kSamples) samples_.pop_front();
}

RankPace PaceMeter::pace() const {
  RankPace out;
  std::map<std::string_view, int> seen;
  const Sample* first = nullptr;  // at which a step was seen to begin
  const Sample* last = nullptr;
  for (std::size_t i = 0; i < samples_.size(); ++i) {
    const Sample& sample = samples_[i];
    if (i > 0 && sample.steps_made != samples_[i - 1].steps_made) {
      if (first == nullptr) first = &sample;
      last = &sample;
    }
    if (sample.phase.empty()) continue;
    ++out.samples;
    if (is_communication(sample.phase))
      ++out.waiting;
    else
      ++seen[sample.phase];
  }
  if (first != last)
    out.step_s =
        seconds_between(first->at, last->at) / static_cast<double>(last->steps_made - first->steps_made);
  const auto most = std::ranges::max_element(seen, {}, [](const auto& each) { return each.second; });
  if (most != seen.end()) out.phase = most->first;
  return out;
}

std::optional<Straggler> find_straggler(std::span<const RankOfPace> ranks) {
  std::vector<double> shares;
  const RankOfPace* busiest = nullptr;
  std::int32_t fewest = 0;
  for (const RankOfPace& each : ranks) {
    if (each.pace.samples < kLeastSamples) continue;
    shares.push_back(busy_share(each.pace));
    if (busiest == nullptr || shares.back() > busy_share(busiest->pace)) busiest = &each;
    fewest = fewest == 0 ? each.pace.samples : std::min(fewest, each.pace.samples);
  }
  if (shares.size() < 2) return std::nullopt;
  const auto median = shares.begin() + static_cast<std::ptrdiff_t>((shares.size() - 1) / 2);
  std::nth_element(shares.begin(), median, shares.end());
  const double usual = *median;
  const double deviation = std::sqrt(std::max(usual * (1 - usual), 0.01) / fewest);
  // ln of the next power of two, without log(): a program with the static libm has it not (see
  // CMakeLists.txt).
  const double ln_ranks = std::numbers::ln2 * std::bit_width(shares.size() - 1);
  const double bound = (2 + std::sqrt(2 * ln_ranks)) * deviation;
  const double more = busy_share(busiest->pace) - usual;
  if (more <= bound || more <= usual / 10) return std::nullopt;
  Straggler out{busiest->rank, std::string(busiest->host), busiest->pace.phase};
  out.seconds_per_step = busiest->pace.step_s.value_or(0) * busy_share(busiest->pace);
  // Of a median rank that does nothing but wait the ratio says nothing.
  out.percent = more / std::max(usual, 0.05) * 100;
  return out;
}

std::string straggler_text(const Straggler& straggler) {
  const std::string where = straggler.phase.empty() ? std::string() : " in " + straggler.phase;
  const std::string time = straggler.seconds_per_step > 0
                               ? fmt::format("{:.3g} s per step", straggler.seconds_per_step)
                               : std::string("its time");
  return fmt::format("rank {} on {} spends {}{}, {:.0f} % more than the median rank; the others wait for it",
                     straggler.rank, straggler.host, time, where, straggler.percent);
}

}  // namespace muster::launcher
