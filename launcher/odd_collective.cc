// SPDX-License-Identifier: Apache-2.0
#include "launcher/odd_collective.h"

#include <algorithm>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include <fmt/format.h>

namespace muster::launcher {
namespace {

struct Member {
  int rank;
  const CollectiveWord* word;
};
using Members = std::vector<Member>;

/// Members of one group that are in it with the same thing.
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

/// Who has not begun the collective that others are in.
Odd absent(const Members& members) {
  const Member* last = nullptr;  // of those that wait, who is furthest
  for (const Member& member : members)
    if (waits(member) && (last == nullptr || member.word->sequence > last->word->sequence)) last = &member;
  if (last == nullptr) return {};
  std::uint64_t least = last->word->sequence;
  for (const Member& member : members) least = std::min(least, member.word->sequence);
  if (least == last->word->sequence) return {};
  Members behind;
  for (const Member& member : members)
    if (member.word->sequence == least) behind.push_back(member);
  return {ranks_of(behind), fmt::format("not yet in {}, where others wait; last in {}", title_of(*last->word),
                                        describe(*behind.front().word))};
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

}  // namespace

Odd odd_collective(std::span<const RankEvidence* const> ranks) {
  std::map<std::string, Members> groups;
  for (const RankEvidence* rank : ranks)
    for (const CollectiveWord& word : rank->collectives) groups[word.group].push_back({rank->rank, &word});
  // Ranks may wait for each other in two groups: the few are told of, where the many are.
  Odd out;
  for (const auto& [name, members] : groups) {
    if (members.size() < 2) continue;
    const bool same = std::all_of(members.begin(), members.end(), [&](const Member& member) {
      return member.word->sequence == members.front().word->sequence;
    });
    Odd odd = same ? different(members) : absent(members);
    if (odd.ranks.empty() || odd.ranks.size() == members.size()) continue;
    if (out.ranks.empty() || odd.ranks.size() < out.ranks.size()) out = std::move(odd);
  }
  return out;
}

}  // namespace muster::launcher
