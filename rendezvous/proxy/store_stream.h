// SPDX-License-Identifier: Apache-2.0
// StoreStream: one side of a channel of the proxied store (control.h, StoreOpen): what it has to send and
// what it has received, both counted from the channel's beginning. A side sends no more than `window` bytes
// beyond what the other has consumed, however often the connection breaks, and keeps what it sent until the
// other has it for certain, so that nothing is lost or repeated. Where the other side's process may be
// replaced by one that knows only what was done, it keeps what is not done. Pure; owned by a StoreRelay or a
// HostedStores; one thread. Failure: a count that cannot be is refused with false: the other side breaks the
// protocol.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace muster {

class StoreStream {
 public:
  /// `received`: what comes in is counted from there.
  explicit StoreStream(std::size_t window, std::uint64_t received = 0)
      : window_(window), received_(received), consumed_(received), told_(received) {}

  // Outgoing.
  void write(std::string_view bytes) { kept_ += bytes; }
  /// For who appends to a string; only at its end.
  [[nodiscard]] std::string& writable() { return kept_; }
  /// Written, from the channel's beginning.
  [[nodiscard]] std::uint64_t end() const { return base_ + kept_.size(); }
  /// Written and not sent.
  [[nodiscard]] std::size_t num_unsent() const { return static_cast<std::size_t>(end() - sent_); }
  /// What may be sent now, at most `max` bytes. Valid until the next change.
  [[nodiscard]] std::string_view sendable(std::size_t max) const {
    const std::size_t in_flight = sent_ - consumed_there_;
    const std::size_t room = window_ - std::min(window_, in_flight);
    return std::string_view(kept_).substr(sent_ - base_, std::min(max, room));
  }
  void sent(std::size_t size) { sent_ += size; }
  /// The other side has consumed so many bytes: as many more may be sent. They are kept until forget().
  /// False: it cannot have.
  [[nodiscard]] bool acknowledge(std::uint64_t total);
  /// What is before `total` is never sent again, and not kept; nothing that was not sent is forgotten.
  void forget(std::uint64_t total);
  [[nodiscard]] std::uint64_t forgotten() const { return forgotten_; }
  /// A new connection, over which the other side says that it has received so many bytes: the rest is sent
  /// again. Only what it has consumed makes room in its window. False: it cannot have.
  [[nodiscard]] bool resume(std::uint64_t received_there);
  /// The other side is a new process: it wants what comes after `place`, and what it sends is counted from
  /// nothing. False: that was forgotten, or was never sent.
  [[nodiscard]] bool start_over(std::uint64_t place, std::size_t window);

  // Incoming.
  /// False: more than the window allows.
  [[nodiscard]] bool receive(std::size_t size) {
    received_ += size;
    return received_ - consumed_ <= window_;
  }
  void consume(std::size_t size) { consumed_ += size; }
  [[nodiscard]] std::uint64_t received() const { return received_; }
  [[nodiscard]] std::uint64_t consumed() const { return consumed_; }
  /// What to tell the other side, with whatever is sent to it.
  [[nodiscard]] std::uint64_t tell_consumed() { return told_ = consumed_; }
  /// It has to be told, or it will have to wait.
  [[nodiscard]] bool credit_is_due() const { return consumed_ - told_ >= window_ / 2; }

  /// Held in memory.
  [[nodiscard]] std::size_t num_bytes() const { return kept_.size(); }

 private:
  std::size_t window_;
  std::string kept_;             // of the stream from base_
  std::uint64_t base_ = 0;       // of kept_[0]
  std::uint64_t forgotten_ = 0;  // at or behind base_
  std::uint64_t consumed_there_ = 0;
  std::uint64_t sent_ = 0;
  std::uint64_t received_;
  std::uint64_t consumed_;
  std::uint64_t told_;  // of consumed_, on this connection
};

}  // namespace muster
