// SPDX-License-Identifier: Apache-2.0
#include "launcher/hang/hang_session.h"

#include <utility>

namespace muster::launcher {

HangSession::Actions HangSession::reported(int node, Instant now) {
  // A node reports each hang once: one that is known to hang has another one.
  const bool asking = deadline_.has_value();
  if (asking || (hanging() && !hanging_.contains(node))) {
    hanging_.insert(node);
    return {.known = !asking};
  }
  ++number_;
  hanging_ = {node};
  snapshots_.clear();
  for (int each = 0; each < nodes_; ++each) awaited_.insert(each);
  deadline_ = now + kSnapshotTimeout;
  return {.ask = true};
}

HangSession::Actions HangSession::snapshot(int node, int number, std::optional<NodeSnapshot> snapshot,
                                           Instant now) {
  if (!deadline_ || number != number_ || awaited_.erase(node) == 0) return {};
  if (snapshot) {
    if (snapshot->hanging)
      hanging_.insert(node);
    else
      hanging_.erase(node);
    snapshots_.emplace(node, *std::move(snapshot));
  }
  return awaited_.empty() ? publish() : tick(now);
}

HangSession::Actions HangSession::over(int node) {
  const bool last = hanging_.erase(node) == 1 && hanging_.empty();
  return {.over = last && !deadline_};
}

HangSession::Actions HangSession::tick(Instant now) {
  return deadline_ && now >= *deadline_ ? publish() : Actions{};
}

HangSession::Actions HangSession::publish() {
  deadline_.reset();
  // A node that did not answer would not report the end of its hang either.
  std::erase_if(hanging_, [this](int node) { return !snapshots_.contains(node); });
  return {.publish = true, .over = !hanging()};
}

void HangSession::forget() {
  hanging_.clear();
  deadline_.reset();
}

}  // namespace muster::launcher
