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

constexpr std::int64_t kLeastBehind = 3;
constexpr double kBehindSeconds = 5;  // nodes sample and send at different moments of a second

double busy_share(const RankPace& pace) {
  return 1.0 - static_cast<double>(pace.waiting) / pace.samples;
}

/// The lower one of two.
template <class T>
T median(std::vector<T> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>((values.size() - 1) / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

std::optional<Straggler> find_behind(std::span<const RankOfPace> ranks) {
  std::vector<std::int64_t> made;
  std::vector<double> step_s;
  const RankOfPace* last = nullptr;
  for (const RankOfPace& each : ranks) {
    if (each.pace.steps_made < 0) continue;
    made.push_back(each.pace.steps_made);
    if (each.pace.step_s) step_s.push_back(*each.pace.step_s);
    if (last == nullptr || each.pace.steps_made < last->pace.steps_made) last = &each;
  }
  if (made.size() < 2 || step_s.empty()) return std::nullopt;
  // Of two ranks the one ahead is what the other is compared with.
  const std::int64_t usual = made.size() == 2 ? std::max(made[0], made[1]) : median(made);
  const std::int64_t behind = usual - last->pace.steps_made;
  const double usual_step_s = median(step_s);
  if (behind < kLeastBehind || static_cast<double>(behind) * usual_step_s < kBehindSeconds)
    return std::nullopt;
  Straggler out{last->rank, last->pace.phase, last->pace.step_s.value_or(0), 0, behind};
  if (last->pace.step_s) out.percent = (*last->pace.step_s / usual_step_s - 1) * 100;
  return out;
}

}  // namespace

bool is_communication(std::string_view phase) {
  constexpr std::array<std::string_view, 9> kCollectives = {"all_reduce",     "allreduce", "all_gather",
                                                            "reduce_scatter", "broadcast", "barrier",
                                                            "reduce",         "send",      "recv"};
  return std::find(kCollectives.begin(), kCollectives.end(), phase) != kCollectives.end() ||
         phase.starts_with("wait") || phase.ends_with("wait");
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
  if (samples_.empty()) return out;
  out.steps_made = samples_.back().steps_made;
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
  const auto most = std::max_element(seen.begin(), seen.end(),
                                     [](const auto& a, const auto& b) { return a.second < b.second; });
  if (most != seen.end()) out.phase = most->first;
  return out;
}

std::optional<Straggler> find_straggler(std::span<const RankOfPace> ranks) {
  if (auto behind = find_behind(ranks)) return behind;
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
  const double usual = median(shares);
  const double deviation = std::sqrt(std::max(usual * (1 - usual), 0.01) / fewest);
  // ln of the next power of two, without log(): a program with the static libm has it not (see
  // CMakeLists.txt).
  const double ln_ranks = std::numbers::ln2 * std::bit_width(shares.size() - 1);
  const double bound = (2 + std::sqrt(2 * ln_ranks)) * deviation;
  const double more = busy_share(busiest->pace) - usual;
  if (more <= bound || more <= usual / 10) return std::nullopt;
  Straggler out{busiest->rank, busiest->pace.phase, 0, 0, 0};
  out.seconds_per_step = busiest->pace.step_s.value_or(0) * busy_share(busiest->pace);
  // Of a median rank that does nothing but wait the ratio says nothing.
  out.percent = more / std::max(usual, 0.05) * 100;
  return out;
}

std::string straggler_text(const Straggler& straggler, std::string_view host) {
  const std::string who = fmt::format("rank {} on {}", straggler.rank, host);
  const std::string where = straggler.phase.empty() ? std::string() : " in " + straggler.phase;
  if (straggler.steps_behind > 0)
    return fmt::format("{} is {} steps behind the median rank{}", who, straggler.steps_behind,
                       where.empty() ? "" : "; it was mostly" + where);
  const std::string time = straggler.seconds_per_step > 0
                               ? fmt::format("{:.3g} s per step", straggler.seconds_per_step)
                               : std::string("its time");
  return fmt::format("{} spends {}{}, {:.0f} % more than the median rank; the others wait for it", who, time,
                     where, straggler.percent);
}

}  // namespace muster::launcher
