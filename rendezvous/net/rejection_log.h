// SPDX-License-Identifier: Apache-2.0
// RejectionLog: the lines of a server about connections that it closed or did not take. A few of each kind
// are written as they come, a flood of them as one line a second with their number. Owned by a server; one
// loop, one thread. Destroying it writes what is left to say.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <boost/asio/io_context.hpp>

#include "rendezvous/base/clock.h"
#include "rendezvous/base/lifetime.h"
#include "rendezvous/base/log.h"

namespace muster::net {

enum class Rejection : std::uint8_t {
  kProtocol,        ///< bytes that mean nothing here, or a connection cut within a request
  kAuthentication,  ///< no secret, another secret, no proof in time; no agent where only agents are served
  kSlowReader,
  kLimit,   ///< of connections, keys, bytes, ...
  kSystem,  ///< no descriptor, no memory
};
inline constexpr std::size_t kNumRejections = 5;
using RejectionCounts = std::array<std::uint64_t, kNumRejections>;  ///< by Rejection

/// Lets the first lines of each kind through and then sums up, so that ten thousand unauthenticated peers
/// cost a line a second and not a full disk. Pure: time is an argument.
class LogLimiter {
 public:
  /// `burst` lines of a kind at once, then one in `interval`.
  LogLimiter(std::size_t num_kinds, int burst, Millis interval);

  /// True: write the line. False: it is counted, for due().
  [[nodiscard]] bool admit(std::size_t kind, std::string_view line, Instant now);

  struct Summary {
    std::size_t kind = 0;
    std::uint64_t count = 0;  ///< lines that were not written
    std::string last;         ///< of them
    friend bool operator==(const Summary&, const Summary&) = default;
  };
  /// What has to be written now instead of the lines left out.
  [[nodiscard]] std::vector<Summary> due(Instant now);
  /// As due(), whatever the time is.
  [[nodiscard]] std::vector<Summary> drain();
  /// When due() has something to say; max: not before a line is left out.
  [[nodiscard]] Instant next_due() const;

 private:
  struct Kind {
    double lines_left;
    Instant at{};  // when lines_left was true
    std::uint64_t num_left_out = 0;
    std::string last;
    Instant due = Instant::max();
  };
  void refill(Kind& kind, Instant now) const;
  void sum_up(std::size_t number, std::vector<Summary>& out);

  int burst_;
  Millis interval_;
  std::vector<Kind> kinds_;
};

class RejectionLog {
 public:
  RejectionLog(boost::asio::io_context& loop, const Log& log) : log_(log), timer_(loop) {}
  ~RejectionLog() { stop(); }
  RejectionLog(const RejectionLog&) = delete;
  RejectionLog& operator=(const RejectionLog&) = delete;

  void write(Rejection kind, std::string_view line);
  /// Those that were written or left out.
  [[nodiscard]] const RejectionCounts& counts() const { return counts_; }
  /// Writes the summaries that are not due yet, and keeps the loop busy no more.
  void stop();

  static constexpr int kBurst = 20;  ///< lines of a kind, before one a second

 private:
  void write_summaries(const std::vector<LogLimiter::Summary>& summaries) const;
  void arm();

  Log log_;
  RejectionCounts counts_{};
  LogLimiter limiter_{kNumRejections, kBurst, Millis(1000)};
  LoopTimer timer_;
  bool armed_ = false;
  Lifetime lifetime_;
};

}  // namespace muster::net
