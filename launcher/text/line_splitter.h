// SPDX-License-Identifier: Apache-2.0
// LineSplitter: bytes in any pieces -> whole lines, each without its end. A line ends with \n, \r\n or \r
// (progress bars rewrite their line with \r), as Python's universal newlines have it; a \r with nothing
// before it only returns to the beginning and makes no line. A line over the cap comes out in parts, not cut
// within a UTF-8 character. Pure.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "rendezvous/base/text.h"

namespace muster::launcher {

class LineSplitter {
 public:
  explicit LineSplitter(std::size_t max_line_bytes = 4 * 1024 * 1024) : max_line_bytes_(max_line_bytes) {}

  /// Calls `emit(std::string_view line)` for each line that `bytes` completes.
  template <class Emit>
  void feed(std::string_view bytes, Emit&& emit) {
    const char* newline = nullptr;  // the next one, or the end of the bytes
    while (!bytes.empty()) {
      if (std::exchange(after_return_, false) && bytes[0] == '\n') {
        if (std::exchange(returned_, false)) emit(std::string_view());
        bytes.remove_prefix(1);
        continue;
      }
      returned_ = false;
      // Two searches for one byte, each byte looked at once by each: find_first_of("\r\n") compares one by
      // one.
      if (newline < bytes.data()) {
        const auto next = bytes.find('\n');
        newline = bytes.data() + std::min(next, bytes.size());
      }
      const auto to_newline = static_cast<std::size_t>(newline - bytes.data());
      const auto returned = bytes.substr(0, to_newline).find('\r');
      const auto end = returned != std::string_view::npos ? returned
                       : to_newline < bytes.size()        ? to_newline
                                                          : std::string_view::npos;
      std::string_view piece = bytes.substr(0, end);
      while (partial_.size() + piece.size() > max_line_bytes_) {
        const std::size_t take = max_line_bytes_ - partial_.size();
        partial_.append(piece.substr(0, take));
        piece.remove_prefix(take);
        const std::size_t whole = whole_characters(partial_);
        emit(std::string_view(partial_).substr(0, whole));
        partial_.erase(0, whole);
      }
      if (end == std::string_view::npos) {
        partial_.append(piece);
        return;
      }
      after_return_ = bytes[end] == '\r';
      if (!partial_.empty()) {
        partial_.append(piece);
        emit(std::string_view(partial_));
        forget();
      } else if (piece.empty() && after_return_) {
        returned_ = true;
      } else {
        emit(piece);
      }
      bytes.remove_prefix(end + 1);
    }
  }

  /// The stream has ended: what is left without a line end, if anything, is a line.
  template <class Emit>
  void finish(Emit&& emit) {
    if (!partial_.empty()) emit(std::string_view(partial_));
    forget();
  }

 private:
  static constexpr std::size_t kKeptBytes = 64 * 1024;  // longer lines are too rare to keep memory for them

  /// Without a character at the end of which the rest is to come.
  static std::size_t whole_characters(std::string_view text) {
    for (std::size_t back = 1; back <= 3 && back < text.size(); ++back) {
      const auto byte = static_cast<unsigned char>(text[text.size() - back]);
      if ((byte & 0xC0) == 0x80) continue;
      const std::size_t length = byte >= 0xF0 ? 4 : byte >= 0xE0 ? 3 : byte >= 0xC0 ? 2 : 1;
      return length > back ? text.size() - back : text.size();
    }
    return text.size();
  }
  void forget() {
    partial_.clear();
    if (partial_.capacity() > kKeptBytes) partial_.shrink_to_fit();
  }

  std::size_t max_line_bytes_;
  std::string partial_;
  bool after_return_ = false;  // the last byte was \r: a \n that follows belongs to it
  bool returned_ = false;      // likewise, with nothing before it
};

// TailBuffer: the last bytes of a stream, for the last lines of a failed worker's stderr. Allocates what it
// needs up to its cap: 256 silent workers cost nothing. Pure.

class TailBuffer {
 public:
  static constexpr std::size_t kDefaultCap = 8192;

  explicit TailBuffer(std::size_t cap_bytes = kDefaultCap) : cap_bytes_(cap_bytes) {}

  void append(std::string_view bytes) {
    if (bytes.size() >= cap_bytes_) {
      bytes_.assign(bytes.substr(bytes.size() - cap_bytes_));
      return;
    }
    if (bytes_.size() + bytes.size() > 2 * cap_bytes_)
      bytes_.erase(0, bytes_.size() + bytes.size() - cap_bytes_);
    bytes_.append(bytes);
  }

  /// The last `count` lines, oldest first. The first one lacks its beginning if the cap cut it off.
  [[nodiscard]] std::vector<std::string> last_lines(std::size_t count) const {
    const std::string_view kept =
        std::string_view(bytes_).substr(bytes_.size() - std::min(bytes_.size(), cap_bytes_));
    std::vector<std::string> lines;
    LineSplitter splitter;
    const auto keep = [&](std::string_view line) { lines.emplace_back(line); };
    splitter.feed(kept, keep);
    splitter.finish(keep);
    if (lines.size() > count) lines.erase(lines.begin(), lines.end() - static_cast<std::ptrdiff_t>(count));
    return lines;
  }

 private:
  std::size_t cap_bytes_;
  std::string bytes_;  // up to twice the cap between trims, so that trimming is rare
};

// A line of what a program, a file or another host wrote, as it may be shown in a message or on a terminal.

/// A text of several lines, in a value that nodes send each other (node_message.h).
struct TextLines : std::string {
  using std::string::string;
  using std::string::operator=;
};

/// The first line of it as printable text, without spaces at its ends, cut at 300 bytes.
[[nodiscard]] inline std::string one_clean_line(std::string_view text) {
  constexpr std::size_t kMaxTextBytes = 300;
  std::string out = one_line(text.substr(0, std::min(text.find('\n'), 4 * kMaxTextBytes)));
  const auto first = out.find_first_not_of(' ');
  if (first == std::string::npos) return {};
  out = one_line(std::string_view(out).substr(first), kMaxTextBytes);
  out.erase(out.find_last_not_of(' ') + 1);
  return out;
}

}  // namespace muster::launcher
