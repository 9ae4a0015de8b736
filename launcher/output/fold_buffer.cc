// SPDX-License-Identifier: Apache-2.0
#include "launcher/output/fold_buffer.h"

#include <algorithm>
#include <functional>
#include <iterator>

#include <fmt/format.h>

#include "rendezvous/base/text.h"

namespace muster::launcher {

namespace {

constexpr int kLooks = 8;              // at entries with a line's text, for one that can be joined
constexpr std::uint64_t kPart = 1024;  // of a gap that a line put there uses up, so that many find room

}  // namespace

void FoldBuffer::add(int rank, Std stream, std::string_view text, Instant now) {
  const std::size_t hash = std::hash<std::string_view>{}(text) + static_cast<std::size_t>(stream);
  Source& source = sources_[static_cast<std::size_t>(rank)];
  if (const auto place = joinable(hash, text, stream, rank); place && make_way(*place, source))
    return join(*place, rank);
  pending_.push_back(Pending{Entry{std::string(text), stream, {}}, now + window_, next_place_});
  next_place_ += kGap;
  const Place entry = std::prev(pending_.end());
  entry->entry.ranks.reserve(active_);
  entry->entry.ranks.push_back(rank);
  bytes_ += text.size();
  source.own.push_back(entry);
  entry->known = known_.emplace(std::pair(hash, entry->place), entry).first;
}

/// The first that the rank has neither said nor passed.
std::optional<FoldBuffer::Place> FoldBuffer::joinable(std::size_t hash, std::string_view text, Std stream,
                                                      int rank) const {
  auto at = known_.upper_bound({hash, sources_[static_cast<std::size_t>(rank)].shared});
  for (int look = 0; look < kLooks && at != known_.end() && at->first.first == hash; ++look, ++at) {
    const Entry& entry = at->second->entry;
    const bool own = entry.ranks.size() == 1 && entry.ranks.front() == rank;
    if (!own && entry.text == text && entry.stream == stream) return at->second;
  }
  return std::nullopt;
}

/// Puts the source's own lines that are behind this entry before it. False: there is no room.
bool FoldBuffer::make_way(Place to, Source& source) {
  std::size_t from = source.own.size();
  while (from > 0 && source.own[from - 1]->place > to->place) --from;
  const std::uint64_t count = source.own.size() - from;
  if (count == 0) return true;
  const std::uint64_t before = to == pending_.begin() ? left_ : std::prev(to)->place;
  const std::uint64_t step = std::max<std::uint64_t>((to->place - before) / kPart / count, 1);
  if (to->place - before <= step * count) return false;
  for (std::uint64_t i = 0; i < count; ++i) {
    const Place moved = source.own[from + i];
    pending_.splice(to, pending_, moved);
    moved->place = before + step * (i + 1);
    moved->due = std::min(moved->due, to->due);  // an entry leaves when those before it do
    auto node = known_.extract(moved->known);
    node.key().second = moved->place;
    moved->known = known_.insert(std::move(node)).position;
  }
  return true;
}

void FoldBuffer::join(Place to, int rank) {
  auto& ranks = to->entry.ranks;
  // Whose line it alone was until now: what that rank said before stays before it.
  if (ranks.size() == 1) {
    Source& other = sources_[static_cast<std::size_t>(ranks.front())];
    drop_up_to(other, to->place);
    other.shared = std::max(other.shared, to->place);
  }
  Source& source = sources_[static_cast<std::size_t>(rank)];
  drop_up_to(source, to->place);
  source.shared = to->place;
  ranks.insert(std::ranges::upper_bound(ranks, rank), rank);
}

void FoldBuffer::drop_up_to(Source& source, std::uint64_t place) {
  while (!source.own.empty() && source.own.front()->place <= place) source.own.pop_front();
}

std::optional<FoldBuffer::Entry> FoldBuffer::take(Instant now) {
  if (pending_.empty()) return std::nullopt;
  const Pending& oldest = pending_.front();
  const bool complete = oldest.entry.ranks.size() == active_;
  const bool full = pending_.size() > kMaxEntries || bytes_ > kMaxBytes;
  if (!complete && !full && now < oldest.due) return std::nullopt;
  return take_oldest();
}

std::optional<FoldBuffer::Entry> FoldBuffer::take_oldest() {
  if (pending_.empty()) return std::nullopt;
  const Place oldest = pending_.begin();
  known_.erase(oldest->known);
  if (const auto& ranks = oldest->entry.ranks; ranks.size() == 1)
    drop_up_to(sources_[static_cast<std::size_t>(ranks.front())], oldest->place);
  left_ = oldest->place;
  Entry out = std::move(oldest->entry);
  pending_.pop_front();
  bytes_ -= out.text.size();
  return out;
}

std::optional<Instant> FoldBuffer::deadline() const {
  if (pending_.empty()) return std::nullopt;
  return pending_.front().due;
}

std::string fold_label(const std::vector<int>& ranks, int of, int base, const std::string& host) {
  const std::string_view gap = host.empty() ? "" : " ";
  if (static_cast<int>(ranks.size()) == of) return fmt::format("[{}{}x{}]", host, gap, of);
  std::vector<int> of_world(ranks);
  for (int& rank : of_world) rank += base;
  return fmt::format("[{}{}x{} {}]", host, gap, ranks.size(), to_ranges(of_world));
}

}  // namespace muster::launcher
