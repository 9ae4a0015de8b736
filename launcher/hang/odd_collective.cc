// SPDX-License-Identifier: Apache-2.0
#include "launcher/hang/odd_collective.h"

#include <algorithm>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace muster::launcher {
namespace {

struct Member {
  int rank;
  const CollectiveWord* word;
};
using Members = std::vector<Member>;

/// Members of one group that agree in it are in the same collective.
auto what_of(const CollectiveWord& word) {
  return std::tuple(word.operation, word.size_bytes, word.root);
}

bool waits(const Member& member) {
  return member.word->state == PageState::kBegun;
}

std::vector<int> ranks_of(const Members& members) {
  std::vector<int> out;
  for (const Member& member : members) out.push_back(member.rank);
  std::sort(out.begin(), out.end());
  return out;
}

/// How far the group is; false: it had no collective yet.
std::pair<bool, std::uint64_t> place_of(const Member& member) {
  const bool begun = member.word->operation != PageOperation::kNone;
  return {begun, begun ? member.word->sequence : 0};
}

/// Who has not begun the collective that others are in.
Odd absent(const Members& members) {
  const Member* last = nullptr;  // of those that wait, who is furthest
  for (const Member& member : members)
    if (waits(member) && (last == nullptr || place_of(member) > place_of(*last))) last = &member;
  if (last == nullptr) return {};
  auto least = place_of(*last);
  for (const Member& member : members) least = std::min(least, place_of(member));
  if (least == place_of(*last)) return {};
  Members behind;
  for (const Member& member : members)
    if (place_of(member) == least) behind.push_back(member);
  return {ranks_of(behind), fmt::format("not yet in {}, where others wait; {}{}", title_of(*last->word),
                                        least.first ? "last in " : "", describe(*behind.front().word))};
}

/// All are at the same number, but some with another operation.
Odd different(const Members& members) {
  // One of them has waited for the others, or was told that they differ.
  if (std::all_of(members.begin(), members.end(),
                  [](const Member& member) { return member.word->state == PageState::kFinished; }))
    return {};
  std::map<decltype(what_of(*members.front().word)), Members> kinds;
  for (const Member& member : members) kinds[what_of(*member.word)].push_back(member);
  if (kinds.size() < 2) return {};
  // Of two equal halves the one with the lowest rank counts as the others.
  const auto most = std::max_element(kinds.begin(), kinds.end(), [](const auto& a, const auto& b) {
    return std::tuple(a.second.size(), -ranks_of(a.second).front()) <
           std::tuple(b.second.size(), -ranks_of(b.second).front());
  });
  Members odd;
  for (const auto& [what, of_kind] : kinds)
    if (what != most->first) odd.insert(odd.end(), of_kind.begin(), of_kind.end());
  return {ranks_of(odd), fmt::format("in {}, where the others called {}", title_of(*odd.front().word),
                                     title_of(*most->second.front().word))};
}

/// Replays of a captured graph are counted apart: their numbers and the others' say nothing of each other.
bool can_be_compared(const Members& members) {
  const auto captured = std::count_if(members.begin(), members.end(), [](const Member& member) {
    return member.word->operation == PageOperation::kCaptured;
  });
  const auto begun = std::count_if(members.begin(), members.end(), [](const Member& member) {
    return member.word->operation != PageOperation::kNone;
  });
  return captured == 0 || captured == begun;
}

}  // namespace

Odd odd_collective(std::span<const RankEvidence* const> ranks) {
  std::map<std::string, Members> groups;
  for (const RankEvidence* rank : ranks)
    for (const CollectiveWord& word : rank->collectives) groups[word.group].push_back({rank->rank, &word});
  // Ranks may wait for each other in two groups: the few are told of, where the many are.
  Odd out;
  for (const auto& group : groups) {
    const Members& members = group.second;
    if (members.size() < 2 || !can_be_compared(members)) continue;
    const bool same = std::all_of(members.begin(), members.end(), [&](const Member& member) {
      return place_of(member) == place_of(members.front());
    });
    Odd odd = same ? different(members) : absent(members);
    if (odd.ranks.empty() || odd.ranks.size() == members.size()) continue;
    if (out.ranks.empty() || odd.ranks.size() < out.ranks.size()) out = std::move(odd);
  }
  return out;
}

}  // namespace muster::launcher
