// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/agent_client/address_race.h"

#include <exception>
#include <utility>

#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>

#include "rendezvous/base/lifetime.h"
#include "rendezvous/net/dial.h"
#include "rendezvous/net/endpoint.h"

namespace muster::net {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;

}  // namespace

class AddressRace::Impl : public std::enable_shared_from_this<Impl> {
 public:
  Impl(asio::io_context& loop, Options options, std::function<void(Result<Answer>)> finished)
      : loop_(loop),
        options_(std::move(options)),
        finished_(std::move(finished)),
        next_start_(loop),
        deadline_(SteadyClock::now() + options_.limit) {}

  void start() {
    if (options_.addresses.empty())
      finish(fail(ErrorCode::kNotFound, "it offers no address"));
    else
      start_next();
  }

  void start_next() {
    if (over_ || sockets_.size() == options_.addresses.size()) return;
    const std::string address = options_.addresses[sockets_.size()];
    const auto socket = std::make_shared<tcp::socket>(loop_);
    sockets_.push_back(socket);
    ++running_;
    asio::co_spawn(loop_, run(shared_from_this(), socket, address),
                   [self = shared_from_this()](const std::exception_ptr& thrown) {
                     // What dial() expects to go wrong comes as a Result.
                     if (thrown) self->finish(fail(ErrorCode::kFailed, "connect: an exception"));
                   });
    next_start_.expires_after(options_.head_start);
    next_start_.async_wait([self = shared_from_this()](const auto& error) {
      if (!error) self->start_next();
    });
  }

  void finish(Result<Answer> result) {
    if (over_) return;
    const auto call = std::exchange(finished_, {});
    stop();
    if (call) call(std::move(result));
  }

  void stop() {
    over_ = true;
    finished_ = {};
    next_start_.cancel();
    boost::system::error_code ignored;
    for (const auto& socket : sockets_) socket->close(ignored);
  }

 private:
  asio::awaitable<void> run(std::shared_ptr<Impl> self, std::shared_ptr<tcp::socket> socket,
                            std::string address) {
    boost::system::error_code cause;
    const auto connected = co_await dial(*socket, address, options_.port, 0, deadline_, &cause);
    --running_;
    if (self->over_) co_return;
    if (connected || (options_.refusal_answers && cause == asio::error::connection_refused)) {
      const auto own = connected ? endpoint_of(socket->native_handle(), ::getsockname) : std::nullopt;
      finish(Answer{address, own ? own->address().to_string() : std::string()});
      co_return;
    }
    if (!errors_.empty()) errors_ += "; ";
    errors_ += connected.error().message;
    if (sockets_.size() < options_.addresses.size()) {
      start_next();
    } else if (running_ == 0) {
      finish(fail(connected.error().code, errors_));
    }
  }

  asio::io_context& loop_;
  Options options_;
  std::function<void(Result<Answer>)> finished_;
  LoopTimer next_start_;
  Instant deadline_;
  std::vector<std::shared_ptr<tcp::socket>> sockets_;  // of the addresses tried so far
  std::size_t running_ = 0;
  std::string errors_;
  bool over_ = false;
};

AddressRace::AddressRace(asio::io_context& loop, Options options,
                         std::function<void(Result<Answer>)> finished)
    : impl_(std::make_shared<Impl>(loop, std::move(options), std::move(finished))) {
  asio::post(loop, [impl = impl_] { impl->start(); });
}

AddressRace::~AddressRace() {
  impl_->stop();
}

}  // namespace muster::net
