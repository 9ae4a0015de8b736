// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/store_stream.h"

namespace muster {
namespace {

constexpr std::size_t kKeptBytes = 4096;

}  // namespace

bool StoreStream::acknowledge(std::uint64_t total) {
  if (total > sent_) return false;
  acknowledged_ = std::max(acknowledged_, total);
  const auto done = static_cast<std::size_t>(acknowledged_ - base_);
  if (done == kept_.size()) {
    if (kept_.capacity() > kKeptBytes) kept_ = std::string();
    kept_.clear();
    base_ = acknowledged_;
  } else if (done > kept_.size() / 2) {
    // Moving what is left costs less than what has gone.
    kept_.erase(0, done);
    base_ = acknowledged_;
  }
  return true;
}

void StoreStream::drop() {
  kept_.resize(static_cast<std::size_t>(sent_ - base_));
}

}  // namespace muster
