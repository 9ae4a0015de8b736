// SPDX-License-Identifier: Apache-2.0
// A store that answers an agent's link with arbitrary bytes: every operation ends with a value or an error,
// once one has failed all fail with the same, and it is all the same in whatever pieces the answers come.
#include <array>
#include <cstdint>
#include <netinet/in.h>
#include <string>
#include <string_view>
#include <sys/socket.h>
#include <unistd.h>
#include <utility>  // before Asio, for g++ 12
#include <vector>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>

#include "launcher/join/agent_link.h"
#include "rendezvous/base/unique_fd.h"
#include "tests/fuzz/agent_link_operations.h"
#include "tests/fuzz/random_pieces.h"

namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using namespace muster;
using fuzz::AgentOperation;
using fuzz::check;
using launcher::AgentLink;
using launcher::Awaitable;

constexpr auto kAwait = asio::as_tuple(asio::use_awaitable);

// Bound once: each talk has a connection of its own.
class Port {
 public:
  Port() : listener_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    check(::bind(listener_.get(), reinterpret_cast<const sockaddr*>(&address), size) == 0);
    check(::listen(listener_.get(), 8) == 0);
    check(::getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&address), &size) == 0);
    number_ = ntohs(address.sin_port);
  }
  [[nodiscard]] std::uint16_t number() const { return number_; }
  [[nodiscard]] int duplicate() const { return ::dup(listener_.get()); }

 private:
  UniqueFd listener_;
  std::uint16_t number_ = 0;
};

struct Said {
  std::vector<std::string> words;  // of each operation its value or its error
  bool ended = false;
  bool operator==(const Said&) const = default;
};

template <class T>
std::string words_of(const Result<T>& result) {
  if (!result) {
    check(!result.error().message.empty());
    return "error " + std::string(to_string(result.error().code)) + " " + result.error().message;
  }
  if constexpr (std::is_same_v<T, void>)
    return "done";
  else if constexpr (std::is_same_v<T, std::string>)
    return "value " + *result;
  else
    return "value " + std::to_string(*result);
}

Awaitable<std::string> ask(AgentLink& link, AgentOperation operation) {
  switch (operation) {
    case AgentOperation::kSet:
      co_return words_of(co_await link.set("/k", "v"));
    case AgentOperation::kGet:
      co_return words_of(co_await link.get("/k"));
    case AgentOperation::kSetIfAbsent:
      co_return words_of(co_await link.set_if_absent("/k", "v"));
    case AgentOperation::kAdd:
      co_return words_of(co_await link.add("/n", 2));
    case AgentOperation::kRemove:
      co_return words_of(co_await link.remove("/k"));
    case AgentOperation::kExists:
      co_return words_of(co_await link.exists("/k"));
    case AgentOperation::kWait:
      break;
  }
  co_return words_of(co_await link.wait("/w", std::nullopt));
}

Awaitable<void> agent(AgentLink& link, std::uint16_t port, std::uint8_t choice, Said& said) {
  const auto connected =
      co_await link.connect("127.0.0.1", port, SteadyClock::now() + Millis(10'000), [](const Error&) {});
  check(connected.has_value());
  std::string failure;
  for (const AgentOperation operation : fuzz::agent_operations(choice)) {
    said.words.push_back(co_await ask(link, operation));
    const bool failed = said.words.back().starts_with("error ");
    check(failed == !link.connected());
    check(failure.empty() || said.words.back() == failure);
    if (failed) failure = said.words.back();
  }
  said.ended = true;
}

Awaitable<void> store(tcp::acceptor& acceptor, tcp::socket& socket, std::string_view bytes,
                      fuzz::Random* random) {
  auto [error] = co_await acceptor.async_accept(socket, kAwait);
  check(!error);
  socket.set_option(tcp::no_delay(true));
  while (!bytes.empty()) {
    const std::string_view piece = fuzz::take_piece(bytes, random, 12);
    auto [broken, written] = co_await asio::async_write(socket, asio::buffer(piece), kAwait);
    if (broken) co_return;  // the agent has heard enough
    // So that the other side reads this before the next is there.
    for (int i = 0; i < 3; ++i) co_await asio::post(socket.get_executor(), kAwait);
  }
  boost::system::error_code ignored;
  socket.shutdown(tcp::socket::shutdown_send, ignored);
}

Said talk(const Port& port, std::uint8_t choice, std::string_view bytes, fuzz::Random* random) {
  asio::io_context io{1};
  tcp::acceptor acceptor(io, tcp::v4(), port.duplicate());
  tcp::socket socket(io);
  AgentLink link(io);
  Said said;
  asio::co_spawn(io, agent(link, port.number(), choice, said), asio::detached);
  asio::co_spawn(io, store(acceptor, socket, bytes, random), asio::detached);
  io.run_for(std::chrono::seconds(20));
  check(said.ended);
  return said;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const Port port;
  if (size < 1 || size > 4096) return 0;
  std::string text;
  wire::put_u32(text, static_cast<std::uint32_t>(::getpid()));  // the answer to the first PING
  text.append(reinterpret_cast<const char*>(data) + 1, size - 1);
  const Said whole = talk(port, data[0], text, nullptr);
  fuzz::Random random(static_cast<unsigned>(size) + 1);
  check(talk(port, data[0], text, &random) == whole);
  return 0;
}
