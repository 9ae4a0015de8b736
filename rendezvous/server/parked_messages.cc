// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/server/parked_messages.h"

#include <utility>

namespace muster::net {
namespace {

// At the least what an entry costs; an end counts as well.
constexpr std::size_t kEntryBytes = sizeof(ParkedMessages::Entry);

}  // namespace

void ParkedMessages::add(ConnectionId from, Entry entry) {
  entry.from = from;
  Agent& agent = agents_[from];
  agent.num_bytes += entry.num_bytes;
  agent.entries.push_back(next_);
  entries_.emplace_hint(entries_.end(), next_++, std::move(entry));
}

void ParkedMessages::park(ConnectionId from, control::Message message) {
  std::string encoded;
  control::encode(message, encoded);
  Entry entry;
  entry.message = std::move(message);
  entry.num_bytes = kEntryBytes + encoded.size();
  add(from, std::move(entry));
}

void ParkedMessages::park_end(ConnectionId from, std::string why, membership::Break how) {
  Entry entry;
  entry.end = std::move(why);
  entry.how = how;
  entry.num_bytes = kEntryBytes;
  add(from, std::move(entry));
  Agent& agent = agents_[from];
  agent.ended = true;
  num_bytes_of_ended_ += agent.num_bytes;
}

ParkedMessages::Entry ParkedMessages::take() {
  Entry out = std::move(entries_.begin()->second);
  entries_.erase(entries_.begin());
  const auto found = agents_.find(out.from);
  found->second.num_bytes -= out.num_bytes;
  if (found->second.ended) num_bytes_of_ended_ -= out.num_bytes;
  if (found->second.num_bytes == 0) agents_.erase(found);
  return out;
}

void ParkedMessages::forget(ConnectionId from) {
  const auto found = agents_.find(from);
  if (found == agents_.end()) return;
  for (const std::uint64_t entry : found->second.entries) entries_.erase(entry);
  if (found->second.ended) num_bytes_of_ended_ -= found->second.num_bytes;
  agents_.erase(found);
}

}  // namespace muster::net
