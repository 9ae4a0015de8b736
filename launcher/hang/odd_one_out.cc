// SPDX-License-Identifier: Apache-2.0
#include "launcher/hang/odd_one_out.h"

#include <algorithm>
#include <array>
#include <functional>
#include <map>

#include <fmt/format.h>

#include "launcher/hang/odd_collective.h"
#include "launcher/progress/progress_word.h"
#include "launcher/text/rank_ranges.h"

namespace muster::launcher {
namespace {

constexpr std::size_t kFramesOfSignature = 12;

using Group = std::vector<const RankEvidence*>;
/// Nothing: not known of this worker.
using Key = std::function<std::optional<std::string>(const RankEvidence&)>;

std::vector<int> ranks_of(const Group& group) {
  std::vector<int> out;
  for (const RankEvidence* rank : group) out.push_back(rank->rank);
  std::sort(out.begin(), out.end());
  return out;
}

/// What the main thread is in.
std::string signature(const RankEvidence& rank) {
  std::string out;
  if (rank.stacks.empty()) return out;
  const auto& functions = rank.stacks.front().functions;
  for (std::size_t i = 0; i < functions.size() && i < kFramesOfSignature; ++i) out += functions[i] + '\n';
  return out;
}

bool waits_for_others(const RankEvidence& rank) {
  if (is_collective(phase_in(rank.word))) return true;
  for (const CollectiveWord& word : rank.collectives)
    if (word.state == PageState::kBegun) return true;
  if (rank.stacks.empty()) return false;
  const auto& functions = rank.stacks.front().functions;
  return std::any_of(functions.begin(), functions.end(),
                     [](const auto& name) { return is_collective(name); });
}

/// Those of whom the key differs from that of most; empty: the key says nothing.
Group minority(const Group& all, const Key& key) {
  std::map<std::string, Group> groups;
  for (const RankEvidence* rank : all)
    if (const auto value = key(*rank)) groups[*value].push_back(rank);
  if (groups.size() < 2) return {};
  const auto smaller = [](const auto& a, const auto& b) { return a.second.size() < b.second.size(); };
  const auto most = std::max_element(groups.begin(), groups.end(), smaller);
  Group rest;
  for (const auto& [value, group] : groups)
    if (value != most->first) rest.insert(rest.end(), group.begin(), group.end());
  if (rest.size() < most->second.size()) return rest;
  // No majority: perhaps all but some wait in a collective.
  Group busy;
  for (const RankEvidence* rank : all)
    if (!waits_for_others(*rank)) busy.push_back(rank);
  return busy.size() < all.size() ? busy : Group{};
}

std::optional<Odd> by_position(const Group& all) {
  std::map<Position, Group> groups;
  for (const RankEvidence* rank : all)
    if (const auto position = position_in(rank->word)) groups[*position].push_back(rank);
  if (groups.size() < 2) return std::nullopt;
  const auto& [least, behind] = *groups.begin();
  const auto& [most, ahead] = *groups.rbegin();
  const auto place = [](const Position& position) {
    return position.epoch > 0 ? fmt::format("epoch {} step {}", position.epoch, position.step)
                              : fmt::format("step {}", position.step);
  };
  // In a collective those who are a step ahead wait for the rest; many who are behind are the rule there
  // only where one has gone astray.
  if (ahead.size() < behind.size())
    return Odd{ranks_of(ahead),
               fmt::format("ahead of the others: {}, the others {}", place(most), place(least))};
  return Odd{ranks_of(behind),
             fmt::format("behind the others: {}, the others {}", place(least), place(most))};
}

std::optional<std::string> known(std::string text) {
  return text.empty() ? std::nullopt : std::optional(std::move(text));
}

std::string place_of(const RankEvidence& rank) {
  if (rank.threads.empty()) return {};
  const ThreadState& thread = rank.threads.front();
  const std::string call = thread.call.substr(0, thread.call.find('('));
  return fmt::format("{}{}{}", call, call.empty() || thread.wait.empty() ? "" : ", ", thread.wait);
}

}  // namespace

bool is_collective(std::string_view name) {
  static constexpr std::array kWords = {
      "allreduce", "allgather", "reducescatter", "broadcast", "barrier",     "alltoall",    "collective",
      "nccl",      "gloo",      "waitforpeers",  "metrics",   "synchronize", "processgroup"};
  std::string plain;
  for (const char c : name)
    if (c != '_' && c != '-') plain.push_back(c >= 'A' && c <= 'Z' ? static_cast<char>(c | 0x20) : c);
  return std::any_of(kWords.begin(), kWords.end(),
                     [&](std::string_view word) { return plain.find(word) != std::string::npos; });
}

Odd odd_one_out(std::span<const RankEvidence> ranks) {
  Group ended, stopped, all;
  for (const RankEvidence& rank : ranks) {
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
    return {ranks_of(ended), fmt::format("{} ended already ({}), the others may wait for {}",
                                         ended.size() == 1 ? "has" : "have", ended.front()->ended,
                                         ended.size() == 1 ? "it" : "them")};
  if (all.size() < 2) return {};
  // Of who gives no signs, as often all ranks but the first, nobody knows whether it goes on.
  Group silent, judged;
  for (const RankEvidence* rank : all) {
    if (rank->silent) silent.push_back(rank);
    if (rank->silent || rank->judged) judged.push_back(rank);
  }
  Odd by_number = odd_collective(all);
  // Who is silent in a collective waits for those that have not come to it.
  const bool only_wait =
      !by_number.ranks.empty() && std::all_of(silent.begin(), silent.end(), [](const RankEvidence* rank) {
        return std::any_of(rank->collectives.begin(), rank->collectives.end(),
                           [](const CollectiveWord& word) { return word.state == PageState::kBegun; });
      });
  if (!silent.empty() && !only_wait && silent.size() * 2 < judged.size())
    return {ranks_of(silent), "silent, while the others go on"};
  if (!by_number.ranks.empty()) return by_number;
  if (const auto odd = by_position(all)) return *odd;

  const auto phase = [](const RankEvidence& rank) { return known(std::string(phase_in(rank.word))); };
  if (const Group odd = minority(all, phase); !odd.empty())
    return {ranks_of(odd), fmt::format("at the same step, but in \"{}\"", phase_in(odd.front()->word))};
  const auto stack = [](const RankEvidence& rank) { return known(signature(rank)); };
  if (const Group odd = minority(all, stack); !odd.empty()) {
    const auto& functions = odd.front()->stacks;
    return {ranks_of(odd), functions.empty() || functions.front().functions.empty()
                               ? "its stack differs from the others'"
                               : fmt::format("its stack differs from the others': it is in {}",
                                             functions.front().functions.front())};
  }
  const auto place = [](const RankEvidence& rank) { return known(place_of(rank)); };
  if (const Group odd = minority(all, place); !odd.empty())
    return {ranks_of(odd), fmt::format("the only one in {}", place_of(*odd.front()))};
  return {};
}

}  // namespace muster::launcher
