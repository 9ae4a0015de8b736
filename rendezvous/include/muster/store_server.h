// SPDX-License-Identifier: Apache-2.0
// StoreServer: a TCPStore server inside any program, on a thread of its own. musterd and the launcher run the
// same server on their own event loop (rendezvous/server/server.h); this is the form for programs that have
// none. The destructor stops accepting, closes every connection and joins the thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include <muster/result.h>

namespace muster {

struct StoreServerOptions {
  std::string host;        ///< address to listen on; empty: every address, IPv6 and IPv4
  std::uint16_t port = 0;  ///< 0: the kernel chooses; port() tells
};

class StoreServer {
 public:
  /// Listens before it returns. kExhausted/kIo with address, port and (for a busy port) its owner's pid and
  /// command.
  [[nodiscard]] static Result<std::unique_ptr<StoreServer>> start(const StoreServerOptions& options);
  virtual ~StoreServer() = default;
  StoreServer(const StoreServer&) = delete;
  StoreServer& operator=(const StoreServer&) = delete;

  [[nodiscard]] virtual std::uint16_t port() const = 0;

 protected:
  StoreServer() = default;
};

}  // namespace muster
