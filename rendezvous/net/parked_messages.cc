// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/net/parked_messages.h"

#include <utility>

namespace muster::net {
namespace {

// At the least what an entry costs; an end counts as well.
constexpr std::size_t kEntryBytes = sizeof(ParkedMessages::Entry);

}  // namespace

bool ParkedMessages::has_to_wait(ConnectionId from, const control::Message& message, bool stalled,
                                 bool keeps_stores) const {
  if (std::holds_alternative<control::Heartbeat>(message)) return false;
  return bytes_.contains(from) || (stalled && !std::holds_alternative<control::Join>(message) &&
                                   (keeps_stores || !control::is_about_store(message)));
}

void ParkedMessages::park(ConnectionId from, control::Message message) {
  std::string encoded;
  control::encode(message, encoded);
  Entry& entry = entries_.emplace_back();
  entry.from = from;
  entry.message = std::move(message);
  entry.num_bytes = kEntryBytes + encoded.size();
  bytes_[from] += entry.num_bytes;
}

void ParkedMessages::park_end(ConnectionId from, std::string why, membership::Break how) {
  Entry& entry = entries_.emplace_back();
  entry.from = from;
  entry.end = std::move(why);
  entry.how = how;
  entry.num_bytes = kEntryBytes;
  bytes_[from] += kEntryBytes;
}

ParkedMessages::Entry ParkedMessages::take() {
  Entry out = std::move(entries_.front());
  entries_.pop_front();
  const auto found = bytes_.find(out.from);
  found->second -= out.num_bytes;
  if (found->second == 0) bytes_.erase(found);
  return out;
}

void ParkedMessages::forget(ConnectionId from) {
  if (bytes_.erase(from) > 0) std::erase_if(entries_, [&](const Entry& entry) { return entry.from == from; });
}

}  // namespace muster::net
