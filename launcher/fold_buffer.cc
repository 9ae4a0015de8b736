// SPDX-License-Identifier: Apache-2.0
#include "launcher/fold_buffer.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

namespace muster::launcher {

void FoldBuffer::add(int rank, Std stream, std::string_view text, Instant now) {
  std::uint64_t& last = last_[static_cast<std::size_t>(rank)];
  const auto known = numbers_.find(Line{text, stream});
  if (known != numbers_.end()) {
    const Numbers& numbers = known->second;
    std::uint64_t joined = numbers.first > last ? numbers.first : 0;
    if (joined == 0 && numbers.behind) {
      const auto found = std::upper_bound(numbers.behind->begin(), numbers.behind->end(), last);
      if (found != numbers.behind->end()) joined = *found;
    }
    if (joined != 0) {
      last = joined;
      auto& ranks = pending_[static_cast<std::size_t>(last - first_)].entry.ranks;
      ranks.insert(std::upper_bound(ranks.begin(), ranks.end(), rank), rank);
      return;
    }
  }
  last = first_ + pending_.size();
  Pending& entry = pending_.emplace_back(Pending{Entry{std::string(text), stream, {}}, now + window_});
  entry.entry.ranks.reserve(speaking_);
  entry.entry.ranks.push_back(rank);
  bytes_ += text.size();
  if (known == numbers_.end()) {
    numbers_.emplace(Line{entry.entry.text, stream}, Numbers{last, nullptr});
    return;
  }
  auto& behind = known->second.behind;
  if (!behind) behind = std::make_unique<std::deque<std::uint64_t>>();
  behind->push_back(last);
}

std::optional<FoldBuffer::Entry> FoldBuffer::take(Instant now) {
  if (pending_.empty()) return std::nullopt;
  const Pending& oldest = pending_.front();
  const bool complete = oldest.entry.ranks.size() == speaking_;
  const bool full = pending_.size() > kMaxEntries || bytes_ > kMaxBytes;
  if (!complete && !full && now < oldest.due) return std::nullopt;
  return take_oldest();
}

std::optional<FoldBuffer::Entry> FoldBuffer::take_oldest() {
  if (pending_.empty()) return std::nullopt;
  const Entry& oldest = pending_.front().entry;
  auto known = numbers_.extract(Line{oldest.text, oldest.stream});
  // The next entry with this text has it from now on.
  if (auto& numbers = known.mapped(); numbers.behind) {
    numbers.first = numbers.behind->front();
    numbers.behind->pop_front();
    if (numbers.behind->empty()) numbers.behind.reset();
    known.key().text = pending_[static_cast<std::size_t>(numbers.first - first_)].entry.text;
    numbers_.insert(std::move(known));
  }
  Entry out = std::move(pending_.front().entry);
  pending_.pop_front();
  ++first_;
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
  std::string list;
  for (std::size_t i = 0; i < ranks.size();) {
    std::size_t end = i + 1;
    while (end < ranks.size() && ranks[end] == ranks[end - 1] + 1) ++end;
    if (!list.empty()) list += ',';
    list += std::to_string(ranks[i] + base);
    if (end - i > 1) list += fmt::format("-{}", ranks[end - 1] + base);
    i = end;
  }
  return fmt::format("[{}{}x{} {}]", host, gap, ranks.size(), list);
}

}  // namespace muster::launcher
