// SPDX-License-Identifier: Apache-2.0
// RuntimePageMap: the page beside the launcher's file for words about progress, mapped
// (rendezvous/base/runtime_page.h). Made by init() and new_group(), shared by the groups of one call. Only
// where that file lies in memory, as the launcher's do: a store into a page of a disk's file could wait for
// the disk. nullptr: nobody would read it, or it cannot be made; nothing here fails. Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <sys/mman.h>

#include "rendezvous/base/runtime_page.h"
#include "rendezvous/base/unique_fd.h"

namespace muster {

/// A file of one page that the launcher reads: made, reserved and open; none where that cannot be.
[[nodiscard]] UniqueFd open_page_file(const std::string& path, std::size_t size_bytes);
/// Its memory; nullptr where it cannot be mapped.
template <class Page>
[[nodiscard]] std::shared_ptr<Page> map_page(const UniqueFd& file) {
  void* const memory = ::mmap(nullptr, sizeof(Page), PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  if (memory == MAP_FAILED) return nullptr;
  return {static_cast<Page*>(memory), [](Page* page) { ::munmap(page, sizeof(Page)); }};
}
/// Of a file or folder: on a tmpfs.
[[nodiscard]] bool lies_in_memory(const std::string& path);

class RuntimePageMap {
 public:
  /// Beside the file that MUSTER_PROGRESS_FILE names.
  [[nodiscard]] static std::shared_ptr<RuntimePageMap> open();
  /// Beside this one.
  [[nodiscard]] static std::shared_ptr<RuntimePageMap> open(std::string_view progress_file);

  [[nodiscard]] RuntimePage& page() { return *page_; }

  /// The worker has come so far, now. The first time counts.
  void mark(PageMark mark);
  /// Tells who waits for marks that there are new ones: a system call.
  void announce() const;

  /// A slot for a group of this process: the one that an earlier group of the name had, else a free one; its
  /// version is odd until it is written. nullptr: all are taken, or a group of the name lives.
  [[nodiscard]] PageSlot* claim(std::string_view name);

 private:
  RuntimePageMap(std::shared_ptr<RuntimePage> page, std::string path)
      : page_(std::move(page)), path_(std::move(path)) {}

  std::shared_ptr<RuntimePage> page_;
  std::string path_;
};

/// Where there may be no page.
inline void mark(const std::shared_ptr<RuntimePageMap>& map, PageMark mark) {
  if (map) map->mark(mark);
}

/// One aligned store, which a reader sees whole. Of one writer, so that a counter needs no locked addition.
template <class T>
void put(T& field, T value) {
  std::atomic_ref<T>(field).store(value, std::memory_order_relaxed);
}

/// Where a process group tells which collective it is in, for the launcher's report of a
/// hang: a few stores into mapped memory, no system call: 3.3 ns for begin() and end(), and 3.2 where
/// they go nowhere. That is without a launcher, and of a second living group of one name. Owned by a group,
/// told by one thread at a time. Nothing here fails.
class CollectiveRecord {
 public:
  CollectiveRecord() = default;
  /// `map` may be nullptr.
  CollectiveRecord(std::shared_ptr<RuntimePageMap> map, std::string_view group, std::string_view backend,
                   int world_size);

  void begin(PageOperation operation, std::uint64_t sequence, std::uint64_t size_bytes, int root = -1);
  /// The one that was begun last, unless it has ended already.
  void end(bool succeeded);

 private:
  void write(PageOperation operation, std::uint64_t sequence, std::uint64_t size_bytes, int root,
             PageState state);

  std::shared_ptr<PageSlot> slot_;  // nullptr: nowhere; gives it back, and keeps the page
};

}  // namespace muster
