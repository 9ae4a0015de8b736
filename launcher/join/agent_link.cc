// SPDX-License-Identifier: Apache-2.0
#include "launcher/join/agent_link.h"

#include <algorithm>
#include <array>
#include <memory>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <unistd.h>
#include <utility>  // before Asio, for g++ 12
#include <vector>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/connect.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <fmt/format.h>

#include "rendezvous/base/backoff.h"

namespace muster::launcher {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;

constexpr auto kAwait = asio::as_tuple(asio::use_awaitable);
constexpr std::chrono::seconds kReplyDeadline{30};
constexpr std::chrono::seconds kConnectDeadline{10};
// The whole time is used: one more try this long before its end.
constexpr std::chrono::milliseconds kLastTry{50};
constexpr std::chrono::seconds kConnectSlice{3};  // for one of several addresses: the next may answer
constexpr std::size_t kMaxValueBytes = std::size_t{1} << 20;  // of what agents write for each other

/// Closes the socket when time is up, which ends the operation on it.
class Watchdog {
 public:
  Watchdog(tcp::socket& socket, Instant deadline)
      : timer_(socket.get_executor(), deadline), fired_(std::make_shared<bool>()) {
    timer_.async_wait([&socket, fired = fired_](boost::system::error_code error) {
      if (error || fired.use_count() == 1) return;
      *fired = true;
      boost::system::error_code ignored;
      socket.close(ignored);
    });
  }
  [[nodiscard]] bool fired() const { return *fired_; }

 private:
  asio::steady_timer timer_;
  std::shared_ptr<bool> fired_;  // shared with the handler, which does nothing once this object is gone
};

void notice_dead_peers(tcp::socket& socket) {
  boost::system::error_code ignored;
  socket.set_option(tcp::no_delay(true), ignored);
  socket.set_option(asio::socket_base::keep_alive(true), ignored);
  const int idle_s = 5, interval_s = 2, probes = 5, unacknowledged_ms = 15'000;
  ::setsockopt(socket.native_handle(), IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s);
  ::setsockopt(socket.native_handle(), IPPROTO_TCP, TCP_KEEPINTVL, &interval_s, sizeof interval_s);
  ::setsockopt(socket.native_handle(), IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
  ::setsockopt(socket.native_handle(), IPPROTO_TCP, TCP_USER_TIMEOUT, &unacknowledged_ms,
               sizeof unacknowledged_ms);
}

}  // namespace

/// The right to use the connection; given up by its destructor.
class AgentLink::Turn {
 public:
  explicit Turn(AgentLink& link) : link_(link) {}
  ~Turn() {
    link_.busy_ = false;
    link_.turn_over_.cancel();
  }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

 private:
  AgentLink& link_;
};

AgentLink::AgentLink(asio::io_context& io) : io_(io), socket_(io), turn_over_(io, Instant::max()) {}

void AgentLink::close(Error reason) {
  if (!failure_) failure_ = std::move(reason);
  boost::system::error_code ignored;
  socket_.close(ignored);
  turn_over_.cancel();
}

std::string AgentLink::local_name() const {
  boost::system::error_code error;
  const tcp::endpoint local = socket_.local_endpoint(error);
  if (error) return {};
  return local.address().is_v6() ? fmt::format("[{}]:{}", local.address().to_string(), local.port())
                                 : fmt::format("{}:{}", local.address().to_string(), local.port());
}

Awaitable<void> AgentLink::take_turn() {
  while (busy_) co_await turn_over_.async_wait(kAwait);
  busy_ = true;
}

Awaitable<Result<void>> AgentLink::connect(std::string host, std::uint16_t port, Instant deadline,
                                           std::function<void(const Error&)> failed_once) {
  endpoint_ = fmt::format("{}:{}", host, port);
  Backoff backoff({.first = Millis(20), .max = Millis(1000)}, static_cast<std::uint64_t>(::getpid()));
  asio::steady_timer pause(io_);
  while (true) {
    auto result =
        co_await connect_once(host, port, std::min(deadline, SteadyClock::now() + kConnectDeadline));
    if (result) co_return result;
    if (failure_) co_return fail(*failure_);
    failed_once(result.error());
    const Instant now = SteadyClock::now();
    const Instant last_try = deadline - kLastTry;
    if (now >= last_try) co_return result;
    pause.expires_at(std::min(now + backoff.next(), last_try));
    co_await pause.async_wait(kAwait);
    if (failure_) co_return fail(*failure_);
  }
}

Awaitable<Result<void>> AgentLink::connect_once(const std::string& host, std::uint16_t port,
                                                Instant deadline) {
  const auto failed = [&](boost::system::error_code error, bool late) {
    const ErrorCode code = late ? ErrorCode::kTimeout : ErrorCode::kPeerGone;
    return fail(code, fmt::format("connect {}: {}", endpoint_, late ? "no answer" : error.message()));
  };
  std::vector<tcp::endpoint> endpoints;
  boost::system::error_code not_numeric;
  if (const auto address = asio::ip::make_address(host, not_numeric); !not_numeric) {
    endpoints.emplace_back(address, port);
  } else {
    // A name: Asio asks the resolver on a thread of its own, so that signals are still answered meanwhile.
    tcp::resolver resolver(io_);
    auto [error, found] = co_await resolver.async_resolve(host, std::to_string(port), kAwait);
    if (error) co_return failed(error, false);
    for (const auto& entry : found) endpoints.push_back(entry.endpoint());
  }
  boost::system::error_code last;
  bool late = false;
  for (const tcp::endpoint& endpoint : endpoints) {
    boost::system::error_code ignored;
    socket_.close(ignored);
    const Instant now = SteadyClock::now();
    const Watchdog watchdog(socket_,
                            endpoints.size() == 1 ? deadline : std::min(deadline, now + kConnectSlice));
    auto [error] = co_await socket_.async_connect(endpoint, kAwait);
    if (failure_) co_return fail(*failure_);
    last = error;
    late = watchdog.fired();
    if (late || error) continue;
    notice_dead_peers(socket_);
    std::string hello;
    wire::encode({.op = wire::Op::kValidate, .number = wire::kMagic}, hello);
    const auto nonce = static_cast<std::uint32_t>(::getpid());
    wire::encode({.op = wire::Op::kPing, .number = nonce}, hello);
    std::array<char, 4> answer{};
    auto [write_error, written] = co_await asio::async_write(socket_, asio::buffer(hello), kAwait);
    if (!write_error) {
      auto [read_error, n] = co_await asio::async_read(socket_, asio::buffer(answer), kAwait);
      write_error = read_error;
    }
    if (failure_) co_return fail(*failure_);
    late = watchdog.fired();
    if (late) continue;
    if (!write_error && wire::load_u32(answer.data()) == nonce) co_return Result<void>{};
    co_return fail(ErrorCode::kProtocol,
                   fmt::format("connect {}: what listens there is not a muster store", endpoint_));
  }
  co_return failed(last, late);
}

Awaitable<Result<void>> AgentLink::send(const wire::Request& request) {
  if (failure_) co_return fail(*failure_);
  std::string bytes;
  wire::encode(request, bytes);
  const Watchdog watchdog(socket_, SteadyClock::now() + kReplyDeadline);
  auto [error, n] = co_await asio::async_write(socket_, asio::buffer(bytes), kAwait);
  if (error && !failure_)
    failure_ = Error{ErrorCode::kPeerGone, fmt::format("store at {}: {}", endpoint_, error.message())};
  if (failure_) co_return fail(*failure_);
  co_return Result<void>{};
}

Awaitable<Result<void>> AgentLink::receive(char* into, std::size_t size, std::optional<Instant> deadline) {
  std::optional<Watchdog> watchdog;
  if (deadline) watchdog.emplace(socket_, *deadline);
  auto [error, n] = co_await asio::async_read(socket_, asio::buffer(into, size), kAwait);
  if (error && !failure_) {
    const bool late = watchdog && watchdog->fired();
    const std::string why = late ? "no answer in time" : error.message();
    failure_ = Error{late ? ErrorCode::kTimeout : ErrorCode::kPeerGone,
                     fmt::format("store at {}: {}", endpoint_, why)};
  }
  if (failure_) co_return fail(*failure_);
  co_return Result<void>{};
}

Awaitable<Result<std::string>> AgentLink::receive_bytes() {
  const Instant deadline = SteadyClock::now() + kReplyDeadline;
  std::array<char, 8> head{};
  if (auto ok = co_await receive(head.data(), head.size(), deadline); !ok) co_return fail(ok.error());
  const std::uint64_t size = wire::load_u64(head.data());
  if (size > kMaxValueBytes) {
    close(Error{ErrorCode::kProtocol, fmt::format("store at {}: a value of {} bytes", endpoint_, size)});
    co_return fail(*failure_);
  }
  std::string out(size, '\0');
  if (auto ok = co_await receive(out.data(), out.size(), deadline); !ok) co_return fail(ok.error());
  co_return out;
}

Awaitable<Result<void>> AgentLink::set(std::string key, std::string value) {
  co_await take_turn();
  const Turn turn(*this);
  co_return co_await send({.op = wire::Op::kSet, .key = key, .value = value});
}

Awaitable<Result<std::string>> AgentLink::get(std::string key) {
  co_await take_turn();
  const Turn turn(*this);
  if (auto ok = co_await send({.op = wire::Op::kGet, .key = key}); !ok) co_return fail(ok.error());
  co_return co_await receive_bytes();
}

Awaitable<Result<std::string>> AgentLink::set_if_absent(std::string key, std::string desired) {
  co_await take_turn();
  const Turn turn(*this);
  // An empty expected value matches an absent key only: no key of ours is ever set to nothing.
  if (auto ok = co_await send({.op = wire::Op::kCompareSet, .key = key, .desired = desired}); !ok)
    co_return fail(ok.error());
  co_return co_await receive_bytes();
}

Awaitable<Result<std::int64_t>> AgentLink::add(std::string key, std::int64_t delta) {
  co_await take_turn();
  const Turn turn(*this);
  if (auto ok = co_await send({.op = wire::Op::kAdd, .key = key, .number = delta}); !ok)
    co_return fail(ok.error());
  std::array<char, 8> answer{};
  if (auto ok = co_await receive(answer.data(), answer.size(), SteadyClock::now() + kReplyDeadline); !ok)
    co_return fail(ok.error());
  co_return static_cast<std::int64_t>(wire::load_u64(answer.data()));
}

Awaitable<Result<void>> AgentLink::remove(std::string key) {
  co_await take_turn();
  const Turn turn(*this);
  if (auto ok = co_await send({.op = wire::Op::kDeleteKey, .key = key}); !ok) co_return ok;
  std::array<char, 8> answer{};
  co_return co_await receive(answer.data(), answer.size(), SteadyClock::now() + kReplyDeadline);
}

Awaitable<Result<void>> AgentLink::push(std::string queue, std::string element) {
  co_await take_turn();
  const Turn turn(*this);
  co_return co_await send({.op = wire::Op::kQueuePush, .key = queue, .value = element});
}

Awaitable<Result<std::optional<std::string>>> AgentLink::pop(std::string queue) {
  co_await take_turn();
  const Turn turn(*this);
  if (auto ok = co_await send({.op = wire::Op::kQueuePop, .key = queue}); !ok) co_return fail(ok.error());
  std::array<char, 8> length{};
  if (auto ok = co_await receive(length.data(), length.size(), SteadyClock::now() + kReplyDeadline); !ok)
    co_return fail(ok.error());
  if (wire::load_u64(length.data()) == 0) co_return std::optional<std::string>();
  auto element = co_await receive_bytes();
  if (!element) co_return fail(element.error());
  co_return std::optional(*std::move(element));
}

Awaitable<Result<bool>> AgentLink::exists(std::string key) {
  co_await take_turn();
  const Turn turn(*this);
  const std::array<std::string_view, 1> keys{key};
  if (auto ok = co_await send({.op = wire::Op::kCheck, .items = keys}); !ok) co_return fail(ok.error());
  char answer = 0;
  if (auto ok = co_await receive(&answer, 1, SteadyClock::now() + kReplyDeadline); !ok)
    co_return fail(ok.error());
  co_return answer == wire::kReady;
}

Awaitable<Result<void>> AgentLink::wait(std::string key, std::optional<Instant> deadline) {
  co_await take_turn();
  const Turn turn(*this);
  const std::array<std::string_view, 1> keys{key};
  if (auto ok = co_await send({.op = wire::Op::kWait, .items = keys}); !ok) co_return ok;
  char answer = 0;
  co_return co_await receive(&answer, 1, deadline);
}

}  // namespace muster::launcher
