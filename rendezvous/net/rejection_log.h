// SPDX-License-Identifier: Apache-2.0
// RejectionLog: the lines of a server about connections that it closed or did not take. A few of each kind
// are written as they come, a flood of them as one line a second with their number, so that ten thousand
// unauthenticated peers do not fill the disk. Owned by a server; one loop, one thread. Destroying it writes
// what is left to say.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include <boost/asio/io_context.hpp>

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

class RejectionLog {
 public:
  RejectionLog(boost::asio::io_context& loop, const Log& log) : log_(log), timer_(loop) {}
  ~RejectionLog() { stop(); }
  RejectionLog(const RejectionLog&) = delete;
  RejectionLog& operator=(const RejectionLog&) = delete;

  void write(Rejection rejection, std::string_view line);
  /// Those that were written or left out.
  [[nodiscard]] const RejectionCounts& counts() const { return counts_; }
  /// Sums up what is left out so far, and keeps the loop busy no more.
  void stop();

  static constexpr int kBurst = 20;  ///< lines of a kind, before one a second

 private:
  struct Kind {
    int lines_left = kBurst;  // one more after each second in which none was left out
    std::uint64_t num_left_out = 0;
    std::string last;  // of them
  };
  bool sum_up(std::size_t number);
  void wait_second();

  Log log_;
  RejectionCounts counts_{};
  std::array<Kind, kNumRejections> kinds_;
  LoopTimer timer_;
  bool waiting_ = false;
  bool stopped_ = false;
  Lifetime lifetime_;
};

}  // namespace muster::net
