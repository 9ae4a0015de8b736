// SPDX-License-Identifier: Apache-2.0
// Outliers: in a hang nearly all workers wait for one; which one, judged by what is known of each. Pure. From
// the surest sign to the weakest: a rank has ended or is stopped; it has not come to the collective that the
// others are in; it is behind (or ahead of) the others; its phase, its stack, its system call differs from
// the others'. A sign counts where it sets apart a minority, or, where two halves differ, leaves one half
// that waits in a collective.
#include <algorithm>
#include <array>
#include <tuple>
#include <utility>

#include <fmt/format.h>

#include "launcher/hang/snapshot.h"
#include "launcher/progress/progress_sample.h"

namespace muster::launcher {
namespace {

constexpr std::size_t kFramesOfSignature = 12;

struct Member {
  int rank;
  const CollectiveState* state;
};
using Members = std::vector<Member>;

/// Members of one group that agree in it are in the same collective.
auto what_of(const CollectiveState& state) {
  return std::tuple(state.operation, state.size_bytes, state.root);
}

std::vector<int> ranks_of(const Members& members) {
  std::vector<int> out;
  for (const Member& member : members) out.push_back(member.rank);
  std::ranges::sort(out);
  return out;
}

/// How far the group is; false: it had no collective yet.
std::pair<bool, std::uint64_t> place_of(const Member& member) {
  const bool begun = member.state->operation != PageOperation::kNone;
  return {begun, begun ? member.state->sequence : 0};
}

/// Who has not begun the collective that others are in.
Outliers absent(const Members& members) {
  const Member* last = nullptr;  // of those that wait, who is furthest
  for (const Member& member : members)
    if (member.state->state == PageState::kBegun && (last == nullptr || place_of(member) > place_of(*last)))
      last = &member;
  if (last == nullptr) return {};
  auto least = place_of(*last);
  for (const Member& member : members) least = std::min(least, place_of(member));
  if (least == place_of(*last)) return {};
  Members behind;
  for (const Member& member : members)
    if (place_of(member) == least) behind.push_back(member);
  return {ranks_of(behind), fmt::format("not yet in {}, where others wait; {}{}", title_of(*last->state),
                                        least.first ? "last in " : "", describe(*behind.front().state))};
}

/// All are at the same number, but some with another operation.
Outliers different(const Members& members) {
  // One of them has waited for the others, or has failed because they differ.
  if (std::ranges::all_of(members,
                          [](const Member& member) { return member.state->state == PageState::kFinished; }))
    return {};
  std::map<decltype(what_of(*members.front().state)), Members> kinds;
  for (const Member& member : members) kinds[what_of(*member.state)].push_back(member);
  if (kinds.size() < 2) return {};
  // Of two equal halves the one with the lowest rank counts as the others.
  const auto most = std::ranges::max_element(kinds, [](const auto& a, const auto& b) {
    return std::tuple(a.second.size(), -ranks_of(a.second).front()) <
           std::tuple(b.second.size(), -ranks_of(b.second).front());
  });
  Members few;
  for (const auto& [what, of_kind] : kinds)
    if (what != most->first) few.insert(few.end(), of_kind.begin(), of_kind.end());
  return {ranks_of(few), fmt::format("in {}, where the others called {}", title_of(*few.front().state),
                                     title_of(*most->second.front().state))};
}

/// Replays of a captured graph have numbers of their own, which cannot be compared with the others'. A rank
/// in send or recv waits for one other, who may be busy with something else by right.
bool can_be_compared(const Members& members) {
  const auto operation = [](const Member& member) { return member.state->operation; };
  if (std::ranges::any_of(members, is_point_to_point, operation)) return false;
  const auto captured = std::ranges::count(members, PageOperation::kCaptured, operation);
  const auto not_begun = std::ranges::count(members, PageOperation::kNone, operation);
  return captured == 0 || captured + not_begun == std::ssize(members);
}

/// Ranks that have not come to the collective in which others wait, or have come to another one, by the
/// numbers of the collectives that each rank's groups began last.
Outliers by_collective(std::span<const RankSnapshot* const> ranks) {
  std::map<std::string, Members> groups;
  for (const RankSnapshot* rank : ranks)
    for (const CollectiveState& state : rank->collectives)
      groups[state.group].push_back({rank->rank, &state});
  // Ranks may wait for each other in two groups: the smaller set of ranks is named.
  Outliers out;
  for (const auto& group : groups) {
    const Members& members = group.second;
    if (members.size() < 2 || !can_be_compared(members)) continue;
    const bool same = std::ranges::all_of(
        members, [&](const Member& member) { return place_of(member) == place_of(members.front()); });
    Outliers found = same ? different(members) : absent(members);
    if (found.ranks.empty() || found.ranks.size() == members.size()) continue;
    if (out.ranks.empty() || found.ranks.size() < out.ranks.size()) out = std::move(found);
  }
  return out;
}

using RankGroup = std::vector<const RankSnapshot*>;
/// Empty: not known of this worker.
using Key = std::string (*)(const RankSnapshot&);

std::vector<int> ranks_of(const RankGroup& group) {
  std::vector<int> out;
  for (const RankSnapshot* rank : group) out.push_back(rank->rank);
  std::ranges::sort(out);
  return out;
}

/// What the main thread is in.
std::string signature(const RankSnapshot& rank) {
  std::string out;
  if (rank.stacks.empty()) return out;
  const auto& functions = rank.stacks.front().functions;
  for (std::size_t i = 0; i < functions.size() && i < kFramesOfSignature; ++i) out += functions[i] + '\n';
  return out;
}

/// The name of a function or phase that waits for other ranks: "ncclAllReduce", "gloo::barrier".
bool is_collective(std::string_view name) {
  static constexpr std::array kWords = {
      "allreduce", "allgather", "reducescatter", "broadcast", "barrier",     "alltoall",    "collective",
      "nccl",      "gloo",      "waitforpeers",  "metrics",   "synchronize", "processgroup"};
  std::string plain;
  for (const char c : name)
    if (c != '_' && c != '-') plain.push_back(c >= 'A' && c <= 'Z' ? static_cast<char>(c | 0x20) : c);
  return std::ranges::any_of(kWords,
                             [&](std::string_view word) { return plain.find(word) != std::string::npos; });
}

bool in_collective(const RankSnapshot& rank) {
  return std::ranges::count(rank.collectives, PageState::kBegun, &CollectiveState::state) > 0;
}

bool waits_for_others(const RankSnapshot& rank) {
  if (in_collective(rank) || is_collective(phase_in(rank.progress))) return true;
  if (rank.stacks.empty()) return false;
  return std::ranges::any_of(rank.stacks.front().functions, is_collective);
}

/// Those whose key differs from that of most; empty: the key sets nobody apart.
RankGroup minority(const RankGroup& all, Key key) {
  std::map<std::string, RankGroup> groups;
  for (const RankSnapshot* rank : all)
    if (const std::string value = key(*rank); !value.empty()) groups[value].push_back(rank);
  if (groups.size() < 2) return {};
  const auto smaller = [](const auto& a, const auto& b) { return a.second.size() < b.second.size(); };
  const auto most = std::ranges::max_element(groups, smaller);
  RankGroup rest;
  for (const auto& [value, group] : groups)
    if (value != most->first) rest.insert(rest.end(), group.begin(), group.end());
  if (rest.size() < most->second.size()) return rest;
  // No majority: perhaps all but some wait in a collective.
  RankGroup busy;
  for (const RankSnapshot* rank : all)
    if (!waits_for_others(*rank)) busy.push_back(rank);
  return busy.size() < all.size() ? busy : RankGroup{};
}

std::optional<Outliers> by_position(const RankGroup& all) {
  std::map<Position, RankGroup> groups;
  for (const RankSnapshot* rank : all)
    if (const auto position = position_in(rank->progress)) groups[*position].push_back(rank);
  if (groups.size() < 2) return std::nullopt;
  const auto& [least, behind] = *groups.begin();
  const auto& [most, ahead] = *groups.rbegin();
  const auto place = [](const Position& position) {
    return position.epoch > 0 ? fmt::format("epoch {} step {}", position.epoch, position.step)
                              : fmt::format("step {}", position.step);
  };
  const bool alike = groups.size() == 2;
  // In a collective, ranks that are a step ahead wait for the rest. If only a few are ahead, they have gone
  // astray.
  if (ahead.size() < behind.size())
    return Outliers{ranks_of(ahead), fmt::format("ahead of the others ({}; {}: {})", place(most),
                                                 alike ? "the others" : "the last", place(least))};
  return Outliers{ranks_of(behind), fmt::format("behind the others ({}; {}: {})", place(least),
                                                alike ? "the others" : "the furthest", place(most))};
}

std::string phase_of(const RankSnapshot& rank) {
  return std::string(phase_in(rank.progress));
}

std::string place_of(const RankSnapshot& rank) {
  if (rank.threads.empty()) return {};
  const ThreadState& thread = rank.threads.front();
  const std::string call = thread.call.substr(0, thread.call.find('('));
  return fmt::format("{}{}{}", call, call.empty() || thread.wait.empty() ? "" : ", ", thread.wait);
}

}  // namespace

Outliers find_outliers(std::span<const RankSnapshot> ranks) {
  RankGroup ended, stopped, all;
  for (const RankSnapshot& rank : ranks) {
    if (!rank.runs()) {
      ended.push_back(&rank);
      continue;
    }
    all.push_back(&rank);
    const char state = rank.threads.empty() ? '?' : rank.threads.front().state;
    if (state == 'T' || state == 't') stopped.push_back(&rank);
  }
  if (!stopped.empty() && stopped.size() < all.size())
    return {ranks_of(stopped), stopped.front()->threads.front().state == 't'
                                   ? "held by a debugger"
                                   : "stopped by a signal (SIGSTOP)"};
  if (!ended.empty() && !all.empty())
    return {ranks_of(ended),
            fmt::format("ended already ({}), and others may wait for it", ended.front()->ended)};
  if (all.size() < 2) return {};
  // Whether an unwatched rank goes on, as often all but the first are, nobody knows.
  RankGroup stalled, watched;
  for (const RankSnapshot* rank : all) {
    if (rank->stalled) stalled.push_back(rank);
    if (rank->stalled || rank->watched) watched.push_back(rank);
  }
  Outliers by_number = by_collective(all);
  // A rank that is stalled in a collective waits for those that have not come to it.
  const bool only_wait =
      !by_number.ranks.empty() &&
      std::ranges::all_of(stalled, [](const RankSnapshot* rank) { return in_collective(*rank); });
  if (!stalled.empty() && !only_wait && stalled.size() * 2 < watched.size())
    return {ranks_of(stalled), "stalled, while the others go on"};
  if (!by_number.ranks.empty()) return by_number;
  if (const auto found = by_position(all)) return *found;

  if (const RankGroup few = minority(all, phase_of); !few.empty())
    return {ranks_of(few), fmt::format("at the same step, but in \"{}\"", phase_of(*few.front()))};
  if (const RankGroup few = minority(all, signature); !few.empty()) {
    const std::string stack = signature(*few.front());
    return {ranks_of(few), fmt::format("whose stack differs from the others'{}{}",
                                       stack.empty() ? "" : ", in ", stack.substr(0, stack.find('\n')))};
  }
  if (const RankGroup few = minority(all, place_of); !few.empty())
    return {ranks_of(few), fmt::format("in {}, unlike the others", place_of(*few.front()))};
  return {};
}

}  // namespace muster::launcher
