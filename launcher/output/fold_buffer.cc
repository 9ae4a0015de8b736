// SPDX-License-Identifier: Apache-2.0
#include "launcher/output/fold_buffer.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include <fmt/format.h>

#include "launcher/text/rank_ranges.h"

namespace muster::launcher {

namespace {

constexpr int kLooks = 8;              // at entries with a line's text, for one that can be joined
constexpr std::uint64_t kPart = 1024;  // of a gap that a line put there uses up, so that many find room

}  // namespace

void FoldBuffer::add(int rank, Std stream, std::string_view text, Instant now) {
  const auto known = known_.find(Line{text, stream});
  if (const auto place = joinable(known, rank);
      place && make_way(*place, sources_[static_cast<std::size_t>(rank)]))
    return join(*place, rank);
  pending_.push_back(Pending{Entry{std::string(text), stream, {}}, now + window_, next_place_});
  next_place_ += kGap;
  const Place entry = std::prev(pending_.end());
  entry->entry.ranks.reserve(active_);
  entry->entry.ranks.push_back(rank);
  bytes_ += text.size();
  sources_[static_cast<std::size_t>(rank)].own.push_back(entry);
  index(entry);
}

/// The first that the rank has neither said nor passed.
std::optional<FoldBuffer::Place> FoldBuffer::joinable(const Known::const_iterator& known, int rank) const {
  if (known == known_.end()) return std::nullopt;
  const Places& places = known->second;
  const std::uint64_t shared = sources_[static_cast<std::size_t>(rank)].shared;
  const auto fits = [&](Place place) {
    const auto& ranks = place->entry.ranks;
    return place->place > shared && !(ranks.size() == 1 && ranks.front() == rank);
  };
  if (fits(places.first)) return places.first;
  if (!places.behind) return std::nullopt;
  auto at = std::upper_bound(places.behind->begin(), places.behind->end(), shared,
                             [](std::uint64_t wanted, Place place) { return wanted < place->place; });
  for (int look = 0; look < kLooks && at != places.behind->end(); ++look, ++at)
    if (fits(*at)) return *at;
  return std::nullopt;
}

/// Puts the source's own lines that are behind this entry before it. False: there is no room.
bool FoldBuffer::make_way(Place to, Source& source) {
  std::size_t from = source.own.size();
  while (from > source.head && source.own[from - 1]->place > to->place) --from;
  const std::uint64_t count = source.own.size() - from;
  if (count == 0) return true;
  const std::uint64_t before = to == pending_.begin() ? left_ : std::prev(to)->place;
  const std::uint64_t step = std::max<std::uint64_t>((to->place - before) / kPart / count, 1);
  if (to->place - before <= step * count) return false;
  for (std::uint64_t i = 0; i < count; ++i) {
    const Place moved = source.own[from + i];
    forget(moved);
    pending_.splice(to, pending_, moved);
    moved->place = before + step * (i + 1);
    moved->due = std::min(moved->due, to->due);  // an entry leaves when those before it do
    index(moved);
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
  ranks.insert(std::upper_bound(ranks.begin(), ranks.end(), rank), rank);
}

void FoldBuffer::drop_up_to(Source& source, std::uint64_t place) {
  while (source.head < source.own.size() && source.own[source.head]->place <= place) ++source.head;
  if (source.head * 2 < source.own.size()) return;
  source.own.erase(source.own.begin(), source.own.begin() + static_cast<std::ptrdiff_t>(source.head));
  source.head = 0;
}

/// The key is a view of its first entry's text.
void FoldBuffer::rekey(Known::iterator known, Place first) {
  auto node = known_.extract(known);
  node.key().text = first->entry.text;
  node.mapped().first = first;
  known_.insert(std::move(node));
}

void FoldBuffer::index(Place entry) {
  const auto [known, is_new] =
      known_.try_emplace(Line{entry->entry.text, entry->entry.stream}, Places{entry, nullptr});
  if (is_new) return;
  auto& behind = known->second.behind;
  if (!behind) behind = std::make_unique<std::deque<Place>>();
  if (const Place first = known->second.first; entry->place < first->place) {
    behind->push_front(first);
    return rekey(known, entry);
  }
  const auto at = std::upper_bound(behind->begin(), behind->end(), entry->place,
                                   [](std::uint64_t place, Place other) { return place < other->place; });
  behind->insert(at, entry);
}

void FoldBuffer::forget(Place entry) {
  const auto known = known_.find(Line{entry->entry.text, entry->entry.stream});
  auto& [first, behind] = known->second;
  if (!behind) {
    known_.erase(known);
    return;
  }
  if (first == entry) {
    const Place next = behind->front();
    behind->pop_front();
    if (behind->empty()) behind.reset();
    return rekey(known, next);
  }
  behind->erase(std::lower_bound(behind->begin(), behind->end(), entry->place,
                                 [](Place other, std::uint64_t place) { return other->place < place; }));
  if (behind->empty()) behind.reset();
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
  forget(oldest);
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
