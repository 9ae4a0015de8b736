// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/store_stream.h"

namespace muster {
namespace {

constexpr std::size_t kKeptBytes = 4096;

}  // namespace

bool StoreStream::acknowledge(std::uint64_t total) {
  if (total > sent_) return false;
  consumed_there_ = std::max(consumed_there_, total);
  forget_before(total);
  return true;
}

bool StoreStream::resume(std::uint64_t received_there) {
  if (received_there > sent_ || received_there < received_there_) return false;
  forget_before(received_there);
  sent_ = received_there_;
  told_ = 0;  // whether it has heard of more is not known
  return true;
}

void StoreStream::forget_before(std::uint64_t total) {
  received_there_ = std::max(received_there_, total);
  const auto done = static_cast<std::size_t>(received_there_ - base_);
  if (done == kept_.size()) {
    if (kept_.capacity() > kKeptBytes) kept_ = std::string();
    kept_.clear();
    base_ = received_there_;
  } else if (done > kept_.size() / 2) {
    // Moving what is left costs less than what has gone.
    kept_.erase(0, done);
    base_ = received_there_;
  }
}

}  // namespace muster
