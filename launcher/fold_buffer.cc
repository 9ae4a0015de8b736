// SPDX-License-Identifier: Apache-2.0
#include "launcher/fold_buffer.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

namespace muster::launcher {
namespace {

std::string key_of(Std stream, std::string_view text) {
  std::string key(1, stream == Std::kOut ? 'o' : 'e');
  return key.append(text);
}

}  // namespace

void FoldBuffer::add(int rank, Std stream, std::string_view text, Instant now) {
  std::uint64_t& last = last_[static_cast<std::size_t>(rank)];
  auto& numbers = numbers_[key_of(stream, text)];
  const auto found = std::upper_bound(numbers.begin(), numbers.end(), last);
  if (found != numbers.end()) {
    last = *found;
    auto& ranks = pending_[static_cast<std::size_t>(last - first_)].entry.ranks;
    ranks.insert(std::upper_bound(ranks.begin(), ranks.end(), rank), rank);
    return;
  }
  last = first_ + pending_.size();
  numbers.push_back(last);
  pending_.push_back({Entry{std::string(text), stream, {rank}}, now + window_});
  bytes_ += text.size();
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
  Entry out = std::move(pending_.front().entry);
  pending_.pop_front();
  ++first_;
  bytes_ -= out.text.size();
  const auto numbers = numbers_.find(key_of(out.stream, out.text));
  numbers->second.pop_front();
  if (numbers->second.empty()) numbers_.erase(numbers);
  return out;
}

std::optional<Instant> FoldBuffer::deadline() const {
  if (pending_.empty()) return std::nullopt;
  return pending_.front().due;
}

std::string fold_label(const std::vector<int>& ranks, int of, int base) {
  if (static_cast<int>(ranks.size()) == of) return fmt::format("[x{}]", of);
  std::string list;
  for (std::size_t i = 0; i < ranks.size();) {
    std::size_t end = i + 1;
    while (end < ranks.size() && ranks[end] == ranks[end - 1] + 1) ++end;
    if (!list.empty()) list += ',';
    list += std::to_string(ranks[i] + base);
    if (end - i > 1) list += fmt::format("-{}", ranks[end - 1] + base);
    i = end;
  }
  return fmt::format("[x{} {}]", ranks.size(), list);
}

}  // namespace muster::launcher
