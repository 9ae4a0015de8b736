// SPDX-License-Identifier: Apache-2.0
// Guarded<T>: an array for kernel tests. Exactly as long as asked, so that the address sanitizer sees a read
// past it, or (guard = true) between two walls that show a write past it in any build, at an address of odd
// alignment.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <vector>

namespace muster::test {

template <class T>
class Guarded {
 public:
  Guarded(std::size_t count, bool guard)
      : count_(count), wall_(guard ? kWall : 0), memory_(std::make_unique<T[]>(count + 2 * wall_)) {
    std::memset(static_cast<void*>(memory_.get()), kPattern, (count + 2 * wall_) * sizeof(T));
  }
  Guarded(const std::vector<T>& values, bool guard) : Guarded(values.size(), guard) {
    std::copy(values.begin(), values.end(), data());
  }

  [[nodiscard]] T* data() { return memory_.get() + wall_; }
  [[nodiscard]] std::vector<T> values() const {
    return std::vector<T>(memory_.get() + wall_, memory_.get() + wall_ + count_);
  }
  /// Both walls still hold the pattern.
  [[nodiscard]] bool intact() const {
    const auto clean = [](const T* from, const T* to) {
      const auto* first = reinterpret_cast<const unsigned char*>(from);
      return std::all_of(first, reinterpret_cast<const unsigned char*>(to),
                         [](unsigned char byte) { return byte == kPattern; });
    };
    const T* begin = memory_.get();
    return clean(begin, begin + wall_) && clean(begin + wall_ + count_, begin + 2 * wall_ + count_);
  }

 private:
  static constexpr std::size_t kWall = 67;  // odd: elements behind it are aligned to sizeof(T) only
  static constexpr unsigned char kPattern = 0xEB;
  std::size_t count_, wall_;
  std::unique_ptr<T[]> memory_;
};

}  // namespace muster::test
