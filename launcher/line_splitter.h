// SPDX-License-Identifier: Apache-2.0
// LineSplitter: bytes in any pieces -> whole lines, each without its end. A line ends with \n, \r\n or \r
// (progress bars rewrite their line with \r), as Python's universal newlines have it. A line over the cap
// comes out in parts. Pure.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>

namespace muster::launcher {

class LineSplitter {
 public:
  explicit LineSplitter(std::size_t max_line_bytes = 65536) : max_line_bytes_(max_line_bytes) {}

  /// Calls `emit(std::string_view line)` for each line that `bytes` completes.
  template <class Emit>
  void feed(std::string_view bytes, Emit&& emit) {
    while (!bytes.empty()) {
      if (std::exchange(after_return_, false) && bytes[0] == '\n') {
        bytes.remove_prefix(1);
        continue;
      }
      const auto end = bytes.find_first_of("\r\n");
      std::string_view piece = bytes.substr(0, end);
      while (partial_.size() + piece.size() > max_line_bytes_) {
        const std::size_t take = max_line_bytes_ - partial_.size();
        partial_.append(piece.substr(0, take));
        piece.remove_prefix(take);
        emit(std::string_view(partial_));
        partial_.clear();
      }
      if (end == std::string_view::npos) {
        partial_.append(piece);
        return;
      }
      if (partial_.empty()) {
        emit(piece);
      } else {
        partial_.append(piece);
        emit(std::string_view(partial_));
        partial_.clear();
      }
      after_return_ = bytes[end] == '\r';
      bytes.remove_prefix(end + 1);
    }
  }

  /// Some of a line was fed, and its end was not.
  [[nodiscard]] bool within_line() const { return !partial_.empty(); }

  /// The stream has ended: what is left without a line end, if anything, is a line.
  template <class Emit>
  void finish(Emit&& emit) {
    if (!partial_.empty()) emit(std::string_view(partial_));
    partial_.clear();
  }

 private:
  std::size_t max_line_bytes_;
  std::string partial_;
  bool after_return_ = false;  // the last byte was \r: a \n that follows belongs to it
};

}  // namespace muster::launcher
