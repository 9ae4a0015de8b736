// SPDX-License-Identifier: Apache-2.0
// LineTurns: bytes of several sources into one stream that change places at line ends only. What comes is
// passed on at once; who has begun a line goes on, and the others wait until it ends, or kPatience for one
// that does not, such as a prompt: then a line end is put behind it. Nobody waits for a progress bar, which
// is a line that returned to its beginning (\r): another bar takes its place, as on any terminal. Pure: time
// is an argument. Owned by a Screen, per stream.
#pragma once

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "rendezvous/base/clock.h"

namespace muster::launcher {

class LineTurns {
 public:
  // A writer of whole lines that had no room for the end of one may wait for its turn on a busy machine,
  // where the others write megabytes meanwhile.
  static constexpr Millis kPatience{1000};
  static constexpr std::size_t kMaxHeldBytes = std::size_t{64} << 20;

  /// Calls `emit(std::string_view)` for what can be written now.
  template <class Emit>
  void add(int source, std::string_view bytes, Instant now, Emit&& emit) {
    if (bytes.empty()) return;
    if (held_.empty() && owner_ && *owner_ != source && bar_) {
      if (bytes[0] != '\r') emit(std::string_view("\n"));
      owner_.reset();
    }
    if (held_.empty() && (!owner_ || *owner_ == source)) {
      emit(bytes);
      return begun(source, bytes);
    }
    Held& mine = held_.try_emplace(source, Held{{}, now}).first->second;
    mine.bytes.append(bytes);
    held_bytes_ += bytes.size();
    release(now, emit);
    tick(now, emit);
  }

  /// When tick() may have something to write.
  [[nodiscard]] std::optional<Instant> deadline() const {
    if (held_.empty()) return std::nullopt;
    const auto oldest = std::min_element(held_.begin(), held_.end(), [](const auto& a, const auto& b) {
      return a.second.since < b.second.since;
    });
    return oldest->second.since + kPatience;
  }

  /// Nobody was listened to until `now`, so that nobody could end a line.
  void excuse(Instant now) {
    for (auto& [source, held] : held_) held.since = now;
  }

  template <class Emit>
  void tick(Instant now, Emit&& emit) {
    if (held_.empty() || (now < *deadline() && held_bytes_ <= kMaxHeldBytes)) return;
    finish(now, emit);
  }

  /// Writes all that is held, an unfinished line as one.
  template <class Emit>
  void finish(Instant now, Emit&& emit) {
    while (!held_.empty()) {
      if (owner_) {
        take_all(held_.find(*owner_), emit);
        if (held_.empty()) return;
        if (owner_) emit(std::string_view("\n"));
        owner_.reset();
      }
      release(now, emit);
      if (held_.empty()) return;
      take_all(held_.begin(), emit);
    }
  }

 private:
  struct Held {
    std::string bytes;
    Instant since;  // when the beginning of it came, or before
  };
  using Place = std::map<int, Held>::iterator;

  /// `source` has written `bytes`, and may be within a line now.
  void begun(int source, std::string_view bytes) {
    const auto line = bytes.rfind('\n');
    if (line == std::string_view::npos) {
      bar_ = (bar_ && owner_ == source) || bytes.find('\r') != std::string_view::npos;
    } else {
      bar_ = bytes.find('\r', line) != std::string_view::npos;
    }
    owner_ = bytes.back() == '\n' ? std::nullopt : std::optional<int>(source);
  }

  /// The whole lines that are held, the owner's first.
  template <class Emit>
  void release(Instant now, Emit&& emit) {
    if (owner_) {
      const auto mine = held_.find(*owner_);
      if (mine == held_.end() || !take_lines(mine, now, emit)) return;
      owner_.reset();
    }
    for (auto at = held_.begin(); at != held_.end();) {
      const auto next = std::next(at);
      (void)take_lines(at, now, emit);
      at = next;
    }
  }

  /// False: there is no line end in it.
  template <class Emit>
  bool take_lines(Place at, Instant now, Emit&& emit) {
    std::string& bytes = at->second.bytes;
    const auto end = bytes.rfind('\n');
    if (end == std::string::npos) return false;
    emit(std::string_view(bytes).substr(0, end + 1));
    held_bytes_ -= end + 1;
    bytes.erase(0, end + 1);
    at->second.since = now;
    if (bytes.empty()) held_.erase(at);
    return true;
  }

  template <class Emit>
  void take_all(Place at, Emit&& emit) {
    if (at == held_.end()) return;
    emit(std::string_view(at->second.bytes));
    held_bytes_ -= at->second.bytes.size();
    begun(at->first, at->second.bytes);
    held_.erase(at);
  }

  std::optional<int> owner_;  // whose line is open in what was written
  bool bar_ = false;          // and it is a progress bar
  std::map<int, Held> held_;
  std::size_t held_bytes_ = 0;
};

}  // namespace muster::launcher
