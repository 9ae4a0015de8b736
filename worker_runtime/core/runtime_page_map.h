// SPDX-License-Identifier: Apache-2.0
// RuntimePageMap: the page beside the launcher's file for words about progress, mapped
// (rendezvous/base/runtime_page.h). Made by init() and new_group(), shared by the groups of one call. Only
// where that file lies in memory, as the launcher's do: a store into a page of a disk's file could wait for
// the disk. nullptr: nobody would read it, or it cannot be made; nothing here fails. Thread-safe.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "rendezvous/base/runtime_page.h"
#include "rendezvous/base/unique_fd.h"

namespace muster {

/// A file of one page that the launcher reads: made, reserved and open; none where that cannot be.
[[nodiscard]] UniqueFd open_page_file(const std::string& path, std::size_t size_bytes);
/// Of a file or folder: on a tmpfs.
[[nodiscard]] bool lies_in_memory(const std::string& path);

class RuntimePageMap {
 public:
  /// Beside the file that MUSTER_PROGRESS_FILE names.
  [[nodiscard]] static std::shared_ptr<RuntimePageMap> open();
  /// Beside this one.
  [[nodiscard]] static std::shared_ptr<RuntimePageMap> open(std::string_view progress_file);
  ~RuntimePageMap();
  RuntimePageMap(const RuntimePageMap&) = delete;
  RuntimePageMap& operator=(const RuntimePageMap&) = delete;

  [[nodiscard]] RuntimePage& page() { return *page_; }

  /// The worker has come so far, now. The first time counts.
  void mark(PageMark mark);
  /// Tells who waits for marks that there are new ones: a system call.
  void announce() const;

  /// A slot for a group of this process: the one that an earlier group of the name had, else a free one; its
  /// version is odd until it is written. nullptr: all are taken, or a group of the name lives.
  [[nodiscard]] PageSlot* claim(std::string_view name);

 private:
  RuntimePageMap(RuntimePage* page, std::string path) : page_(page), path_(std::move(path)) {}

  RuntimePage* page_;
  std::string path_;
};

/// Where there may be no page.
inline void mark(const std::shared_ptr<RuntimePageMap>& map, PageMark mark) {
  if (map) map->mark(mark);
}

}  // namespace muster
