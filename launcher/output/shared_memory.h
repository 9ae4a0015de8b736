// SPDX-License-Identifier: Apache-2.0
// share_memory: a value that this process shares with others, unmapped with its last owner. For plain values
// of atomics: nothing is destroyed.
#pragma once

#include <memory>
#include <new>
#include <string_view>
#include <sys/mman.h>
#include <type_traits>

#include <muster/result.h>

#include "rendezvous/base/syscall.h"

namespace muster::launcher {

/// A fresh T in `memory` (a descriptor that stays the caller's), or with -1 in memory that is shared with
/// whatever this process forks.
template <class T>
[[nodiscard]] Result<std::shared_ptr<T>> share_memory(int memory) {
  static_assert(std::is_trivially_destructible_v<T>);
  void* place = ::mmap(nullptr, sizeof(T), PROT_READ | PROT_WRITE,
                       MAP_SHARED | (memory < 0 ? MAP_ANONYMOUS : 0), memory, 0);
  if (place == MAP_FAILED) return fail(errno_error("mmap of shared memory", errno));
  return std::shared_ptr<T>(new (place) T(), [](T* value) { ::munmap(value, sizeof(T)); });
}

/// The T that another process has made in `memory`.
template <class T>
[[nodiscard]] Result<std::shared_ptr<T>> join_memory(int memory) {
  void* place = ::mmap(nullptr, sizeof(T), PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
  if (place == MAP_FAILED) return fail(errno_error("mmap of shared memory", errno));
  return std::shared_ptr<T>(std::launder(static_cast<T*>(place)),
                            [](T* value) { ::munmap(value, sizeof(T)); });
}

}  // namespace muster::launcher
