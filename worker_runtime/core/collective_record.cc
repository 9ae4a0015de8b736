// SPDX-License-Identifier: Apache-2.0
#include "worker_runtime/core/collective_record.h"

#include <atomic>
#include <unistd.h>

namespace muster {
namespace {

/// One aligned store, which a reader sees whole.
template <class T>
void put(T& field, T value) {
  std::atomic_ref<T>(field).store(value, std::memory_order_relaxed);
}

}  // namespace

CollectiveRecord::CollectiveRecord(std::shared_ptr<RuntimePageMap> map, std::string_view group,
                                   std::string_view backend, int world_size)
    : map_(std::move(map)), slot_(map_ ? map_->claim(group) : nullptr) {
  if (slot_ == nullptr) return;
  slot_->backend = {};
  (void)backend.copy(slot_->backend.data(), slot_->backend.size() - 1);
  put(slot_->world_size, static_cast<std::uint32_t>(world_size));
  write(PageOperation::kNone, 0, 0, -1, PageState::kNone);
}

CollectiveRecord::~CollectiveRecord() {
  // A child that was forked has the page too, and ends its copies of the groups.
  if (slot_ != nullptr && slot_->owner == static_cast<std::uint32_t>(::getpid()))
    put(slot_->state, PageState::kGone);
}

void CollectiveRecord::begin(PageOperation operation, std::uint64_t sequence, std::uint64_t size_bytes,
                             int root) {
  if (slot_ != nullptr) write(operation, sequence, size_bytes, root, PageState::kBegun);
}

void CollectiveRecord::write(PageOperation operation, std::uint64_t sequence, std::uint64_t size_bytes,
                             int root, PageState state) {
  PageSlot& slot = *slot_;
  // Of one writer, so that a counter needs no locked addition.
  const std::uint64_t version = slot.version | 1;
  put(slot.version, version);
  std::atomic_thread_fence(std::memory_order_release);
  put(slot.sequence, sequence);
  put(slot.size_bytes, size_bytes);
  put(slot.operation, operation);
  put(slot.root, std::int32_t{root});
  put(slot.state, state);
  std::atomic_ref(slot.version).store(version + 1, std::memory_order_release);
}

void CollectiveRecord::end(bool succeeded) {
  if (slot_ == nullptr || slot_->state != PageState::kBegun) return;
  put(slot_->state, succeeded ? PageState::kFinished : PageState::kFailed);
}

}  // namespace muster
