// SPDX-License-Identifier: Apache-2.0
#include "worker_runtime/core/runtime_page_map.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <fcntl.h>
#include <linux/magic.h>
#include <mutex>
#include <string>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "rendezvous/base/env.h"
#include "rendezvous/base/env_contract.h"
#include "rendezvous/base/syscall.h"

namespace muster {
namespace {

/// Programs that a process executes one after another have one id.
std::uint32_t this_program() {
  static const auto kBegun =
      static_cast<std::uint32_t>(std::chrono::steady_clock::now().time_since_epoch().count());
  return kBegun;
}

/// Its group is there. Of a process that has ended, or has executed another program since, none is.
bool is_held(const PageSlot& slot, std::uint32_t own) {
  if (slot.owner == 0 || slot.state == PageState::kGone) return false;
  if (slot.owner == own) return slot.program == this_program();
  return ::kill(static_cast<pid_t>(slot.owner), 0) == 0 || errno != ESRCH;
}

std::string_view name_in(const PageSlot& slot) {
  return {slot.name.data(), ::strnlen(slot.name.data(), slot.name.size())};
}

}  // namespace

bool lies_in_memory(const std::string& path) {
  struct statfs info {};
  if (::statfs(path.c_str(), &info) != 0) return false;
  return info.f_type == TMPFS_MAGIC || info.f_type == RAMFS_MAGIC;
}

UniqueFd open_page_file(const std::string& path, std::size_t size_bytes) {
  // O_NONBLOCK: a pipe in its place must not hold up the training.
  UniqueFd file(retry_eintr(
      [&] { return ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW, 0666); }));
  struct stat info {};
  if (!file || ::fstat(file.get(), &info) != 0 || !S_ISREG(info.st_mode)) return {};
  // Reserved, not only long: a store into a page for which a full tmpfs has no room is SIGBUS.
  if (::posix_fallocate(file.get(), 0, static_cast<off_t>(size_bytes)) != 0) return {};
  return file;
}

std::shared_ptr<RuntimePageMap> RuntimePageMap::open() {
  const auto path = current_value(env::kProgressFile);
  return path ? open(*path) : nullptr;
}

std::shared_ptr<RuntimePageMap> RuntimePageMap::open(std::string_view progress_file) {
  const std::string path = runtime_page_file(progress_file);
  const auto slash = path.rfind('/');
  // Asked of the directory, so that no file is made on a disk.
  if (!lies_in_memory(slash == std::string::npos ? "." : path.substr(0, slash + 1))) return nullptr;
  const UniqueFd file = open_page_file(path, sizeof(RuntimePage));
  if (!file) return nullptr;
  auto page = map_page<RuntimePage>(file);
  if (page == nullptr) return nullptr;
  if (std::string_view(page->magic.data(), page->magic.size()) != kRuntimePageMagic) {
    const bool is_new = std::all_of(page->magic.begin(), page->magic.end(), [](char c) { return c == 0; });
    if (!is_new) *page = RuntimePage{};  // something else's
    std::memcpy(page->magic.data(), kRuntimePageMagic.data(), page->magic.size());
  }
  return std::shared_ptr<RuntimePageMap>(new RuntimePageMap(std::move(page), path));
}

void RuntimePageMap::mark(PageMark mark) {
  const std::atomic_ref<std::int64_t> field(page_->marks_ns.at(static_cast<std::size_t>(mark)));
  std::int64_t none = 0;
  field.compare_exchange_strong(none, std::chrono::steady_clock::now().time_since_epoch().count());
}

void RuntimePageMap::announce() const {
  // A store into mapped memory wakes nobody; a change of the file's times does.
  (void)::utimensat(AT_FDCWD, path_.c_str(), nullptr, 0);
}

PageSlot* RuntimePageMap::claim(std::string_view name) {
  static std::mutex one_at_a_time;  // of all maps of this process
  const std::lock_guard lock(one_at_a_time);
  const auto own = static_cast<std::uint32_t>(::getpid());
  name = name.substr(0, sizeof(PageSlot::name) - 1);
  // A process that this one comes after says nothing any more.
  for (PageSlot& slot : page_->slots) {
    std::uint32_t owner = slot.owner;
    const bool ours = owner == own && slot.program == this_program();
    if (owner == 0 || (ours && name_in(slot) != name)) continue;
    if (!is_held(slot, own))
      (void)std::atomic_ref(slot.owner).compare_exchange_strong(owner, 0);
    else if (ours)
      return nullptr;
  }
  for (const bool of_gone : {false, true})
    for (PageSlot& slot : page_->slots) {
      std::uint32_t owner = of_gone ? own : 0;
      if (slot.owner != owner || (of_gone && slot.state != PageState::kGone)) continue;
      if (!std::atomic_ref(slot.owner).compare_exchange_strong(owner, own)) continue;
      std::atomic_ref(slot.version).store(slot.version | 1, std::memory_order_relaxed);
      std::atomic_thread_fence(std::memory_order_release);
      slot.program = this_program();
      slot.name = {};
      (void)name.copy(slot.name.data(), name.size());
      return &slot;
    }
  return nullptr;
}

CollectiveRecord::CollectiveRecord(std::shared_ptr<RuntimePageMap> map, std::string_view group,
                                   std::string_view backend, int world_size) {
  PageSlot* const slot = map ? map->claim(group) : nullptr;
  if (slot == nullptr) return;
  slot_.reset(slot, [map = std::move(map)](PageSlot* claimed) {
    // A child that was forked has the page too, and ends its copies of the groups.
    if (claimed->owner == static_cast<std::uint32_t>(::getpid())) put(claimed->state, PageState::kGone);
  });
  slot_->backend = {};
  (void)backend.copy(slot_->backend.data(), slot_->backend.size() - 1);
  put(slot_->world_size, static_cast<std::uint32_t>(world_size));
  write(PageOperation::kNone, 0, 0, -1, PageState::kNone);
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
