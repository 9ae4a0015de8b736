// SPDX-License-Identifier: Apache-2.0
// RefusalLog: the lines of a server about connections that it closed or did not take. A few of each kind are
// written as they come, a flood of them as one line a second with their number. Owned by a server; one loop,
// one thread. Destroying it writes what is left to say.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string_view>

#include "rendezvous/base/log.h"

namespace boost::asio {
class io_context;
}

namespace muster::net {

enum class Refusal : std::uint8_t {
  kProtocol,        ///< bytes that mean nothing here, or a connection cut within a request
  kAuthentication,  ///< no secret, another secret, no proof in time; no agent where only agents are served
  kSlowReader,
  kLimit,   ///< of connections, keys, bytes, ...
  kSystem,  ///< no descriptor, no memory
};
inline constexpr std::size_t kNumRefusals = 5;
using RefusalCounts = std::array<std::uint64_t, kNumRefusals>;  ///< by Refusal

class RefusalLog {
 public:
  RefusalLog(boost::asio::io_context& loop, const Log& log);
  ~RefusalLog();
  RefusalLog(const RefusalLog&) = delete;
  RefusalLog& operator=(const RefusalLog&) = delete;

  void write(Refusal kind, std::string_view line);
  /// Those that were written or left out.
  [[nodiscard]] const RefusalCounts& counts() const;
  /// Writes the summaries that are not due yet, and keeps the loop busy no more.
  void stop();

  static constexpr int kBurst = 20;  ///< lines of a kind, before one a second

 private:
  class Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace muster::net
