// SPDX-License-Identifier: Apache-2.0
// TailBuffer: the last bytes of a stream, for the last lines of a failed worker's stderr. Allocates what it
// needs up to its cap: 256 silent workers cost nothing. Pure.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace muster::launcher {

class TailBuffer {
 public:
  static constexpr std::size_t kDefaultCap = 8192;

  explicit TailBuffer(std::size_t cap_bytes = kDefaultCap) : cap_bytes_(cap_bytes) {}

  void append(std::string_view bytes);

  /// The last `count` lines, oldest first. The first one lacks its beginning if the cap cut it off.
  [[nodiscard]] std::vector<std::string> last_lines(std::size_t count) const;

 private:
  std::size_t cap_bytes_;
  std::string bytes_;  // up to twice the cap between trims, so that trimming is rare
};

}  // namespace muster::launcher
