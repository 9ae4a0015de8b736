// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/proxy/store_stream.h"

namespace muster {
namespace {

constexpr std::size_t kKeptBytes = 4096;

}  // namespace

bool StoreStream::acknowledge(std::uint64_t total) {
  if (total > sent_) return false;
  consumed_there_ = std::max(consumed_there_, total);
  return true;
}

bool StoreStream::resume(std::uint64_t received_there) {
  if (received_there > sent_ || received_there < std::max(forgotten_, consumed_there_)) return false;
  sent_ = received_there;
  told_ = 0;  // whether it has heard of more is not known
  return true;
}

bool StoreStream::start_over(std::uint64_t place, std::size_t window) {
  if (place > sent_ || place < forgotten_) return false;
  forget(place);
  sent_ = place;
  consumed_there_ = place;
  window_ = window;
  received_ = consumed_ = told_ = 0;
  return true;
}

void StoreStream::forget(std::uint64_t total) {
  forgotten_ = std::max(forgotten_, std::min(total, sent_));
  const auto done = static_cast<std::size_t>(forgotten_ - base_);
  if (done == kept_.size()) {
    if (kept_.capacity() > kKeptBytes) kept_ = std::string();
    kept_.clear();
    base_ = forgotten_;
  } else if (done > kept_.size() / 2) {
    // Moving what is left costs less than what has gone.
    kept_.erase(0, done);
    base_ = forgotten_;
  }
}

}  // namespace muster
