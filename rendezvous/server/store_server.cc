// SPDX-License-Identifier: Apache-2.0
#include <thread>

#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>

#include <muster/store_server.h>

#include "rendezvous/base/log.h"
#include "rendezvous/base/syscall.h"
#include "rendezvous/server/server.h"

namespace muster {
namespace {

class ThreadServer final : public StoreServer {
 public:
  static Result<std::unique_ptr<StoreServer>> start(const StoreServerOptions& options) {
    auto out = std::make_unique<ThreadServer>();
    net::ServerOptions server_options;
    server_options.host = options.host;
    server_options.port = options.port;
    MUSTER_TRY(out->server_, net::Server::listen(out->loop_, server_options, Log("muster-store")));
    MUSTER_TRY(out->thread_, start_quiet_thread([loop = &out->loop_] { loop->run(); }));
    return out;
  }

  ~ThreadServer() override {
    if (!thread_.joinable()) return;
    boost::asio::post(loop_, [this] { server_->stop(); });
    thread_.join();
  }

  [[nodiscard]] std::uint16_t port() const override { return server_->port(); }

 private:
  boost::asio::io_context loop_{1};
  std::unique_ptr<net::Server> server_;
  std::thread thread_;
};

}  // namespace

Result<std::unique_ptr<StoreServer>> StoreServer::start(const StoreServerOptions& options) {
  return ThreadServer::start(options);
}

}  // namespace muster
