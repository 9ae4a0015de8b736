// SPDX-License-Identifier: Apache-2.0
// TcpStore: blocking client of a TCPStore server: musterd, the launcher's, or that of PyTorch 2.2 and later.
// One connection, thread-safe by a mutex held for a whole request and reply, as PyTorch's client does.
// Protocol: rendezvous/store/wire.h. Every read has a deadline; a broken connection fails every later call
// with the first error.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <muster/store.h>

namespace muster {

struct TcpStoreOptions {
  std::string host;
  std::uint16_t port = 0;
  std::int64_t world_size = -1;                     ///< >= 0: check in under "init/" as PyTorch's client does
  Store::Timeout timeout = Store::kDefaultTimeout;  ///< for connecting (retried with back-off) and for waits
};

class TcpStore : public Store {
 public:
  [[nodiscard]] static Result<std::unique_ptr<TcpStore>> connect(const TcpStoreOptions& options);

  /// A second connection to the same server; does not check in again.
  [[nodiscard]] virtual Result<std::unique_ptr<TcpStore>> clone() = 0;

  [[nodiscard]] virtual Result<void> queue_push(std::string_view key, std::string_view value) = 0;
  /// The oldest element. Blocking: waits for one; else, or when another client took it, kNotFound.
  [[nodiscard]] virtual Result<std::string> queue_pop(std::string_view key, bool block = true,
                                                      std::optional<Timeout> timeout = {}) = 0;
  [[nodiscard]] virtual Result<std::int64_t> queue_len(std::string_view key) = 0;
  /// Keys set through TCPStore clients, without their leading '/'; in no particular order.
  [[nodiscard]] virtual Result<std::vector<std::string>> list_keys() = 0;
  /// Returns once `world_size` callers have arrived at `key` (PyTorch >= 2.11 servers and ours).
  [[nodiscard]] virtual Result<void> barrier(std::string_view key, std::int64_t world_size,
                                             std::optional<Timeout> timeout = {}) = 0;
};

}  // namespace muster
