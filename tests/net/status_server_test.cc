// SPDX-License-Identifier: Apache-2.0
// The status listener with real sockets: requests of all kinds, and peers that want to keep it busy.
#include "rendezvous/status/status_server.h"

#include <future>
#include <thread>

#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>

#include "tests/support/catch.h"
#include "tests/support/raw_client.h"

using namespace muster;
using namespace muster::net;
using namespace std::chrono_literals;
using muster::test::RawClient;

namespace {

// A server on a loop of its own.
class Page {
 public:
  explicit Page(StatusServerOptions options = {}, std::size_t bytes = 3) {
    auto listener = open_status_listener("--metrics-addr", "0");
    REQUIRE_OK(listener);
    port_ = listener->port;
    server_ = std::make_unique<StatusServer>(
        loop_, *std::move(listener),
        [this, bytes](const StatusRequest& request) -> std::optional<StatusReply> {
          const std::string_view path = request.path;
          ++asked_;
          if (path == "/healthz") return StatusReply{.status = 503, .body = "{}\n"};
          if (path == "/metrics")
            return StatusReply{.type = "text/plain", .body = std::string(bytes, 'm'), .fresh_for = 10min};
          return std::nullopt;
        },
        options);
    thread_ = std::thread([this] { loop_.run(); });
  }
  ~Page() { stop(); }

  /// Its loop has to end by itself.
  void stop() {
    if (!thread_.joinable()) return;
    boost::asio::post(loop_, [this] { server_->stop(); });
    thread_.join();
  }
  /// The loop does nothing until `open` has a value.
  void block(std::promise<void>& open) {
    boost::asio::post(loop_, [wait = open.get_future().share()] { wait.wait(); });
  }
  [[nodiscard]] std::uint16_t port() const { return port_; }
  [[nodiscard]] int asked() {
    std::promise<int> out;
    boost::asio::post(loop_, [&] { out.set_value(asked_); });
    return out.get_future().get();
  }

 private:
  boost::asio::io_context loop_{1};
  std::unique_ptr<StatusServer> server_;
  std::thread thread_;
  std::uint16_t port_ = 0;
  int asked_ = 0;
};

std::string all_of(RawClient& client) {
  return client.receive(std::size_t{64} << 20);
}

std::string ask(const Page& page, std::string_view bytes) {
  RawClient client(page.port());
  client.send(bytes);
  return all_of(client);
}

std::string get(const Page& page, std::string_view path) {
  return ask(page, "GET " + std::string(path) + " HTTP/1.1\r\nHost: here\r\n\r\n");
}

}  // namespace

TEST_CASE("a request is answered whole, and the connection closed in order") {
  Page page;
  const std::string answer = get(page, "/metrics?x=1");
  CHECK_THAT(answer,
             Catch::StartsWith("HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 3\r\n"));
  CHECK_THAT(answer, Catch::EndsWith("\r\nConnection: close\r\n\r\nmmm"));
  CHECK_THAT(get(page, "/healthz"), Catch::StartsWith("HTTP/1.1 503 ") && Catch::EndsWith("\r\n\r\n{}\n"));
  CHECK_THAT(ask(page, "GET /metrics HTTP/1.0\r\n\r\n"), Catch::StartsWith("HTTP/1.1 200 "));
  CHECK_THAT(ask(page, "HEAD /metrics HTTP/1.1\r\n\r\n"),
             Catch::Contains("Content-Length: 3\r\n") && Catch::EndsWith("\r\n\r\n"));
  // What comes behind the head is not looked at, and does not cut the answer.
  CHECK_THAT(ask(page, "GET /metrics HTTP/1.1\r\nContent-Length: 70000\r\n\r\n" + std::string(70000, 'x')),
             Catch::EndsWith("mmm"));
}

TEST_CASE("a request may come byte by byte") {
  Page page;
  RawClient client(page.port());
  for (const char c : std::string_view("GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n")) client.send({&c, 1});
  CHECK_THAT(all_of(client), Catch::StartsWith("HTTP/1.1 503 "));
}

TEST_CASE("what is no request for a page is refused with the reason's number") {
  Page page;
  const auto [bytes, status] = GENERATE(table<std::string, std::string>({
      {"GET /nothing HTTP/1.1\r\n\r\n", "404"},
      {"GET http://here/metrics HTTP/1.1\r\n\r\n", "404"},
      {"POST /metrics HTTP/1.1\r\nContent-Length: 0\r\n\r\n", "405"},
      {"DELETE /metrics HTTP/1.1\r\n\r\n", "405"},
      {"\x16\x03\x01\x02\x01\x03\x03", "400"},
      {"hello\r\n\r\n", "400"},
      {"GET /metrics\r\n\r\n", "400"},
      {"GET /metrics HTTP/9.1\r\n\r\n", "400"},
      {"GET /metrics HTTP/1.1\r\nNo colon\r\n\r\n", "400"},
      {"GET /" + std::string(9000, 'a'), "431"},
      {"GET / HTTP/1.1\r\nA: " + std::string(9000, 'a'), "431"},
      {"GET / HTTP/1.1\r\n" +
           [] {
             std::string out;
             for (int i = 0; i < 900; ++i) out += "Name: value\r\n";
             return out;
           }(),
       "431"},
  }));
  CAPTURE(bytes.substr(0, 40));
  CHECK_THAT(ask(page, bytes), Catch::StartsWith("HTTP/1.1 " + status + " "));
}

TEST_CASE("who says nothing is closed after a while, and so is who goes on saying nothing of use") {
  Page page({.request_timeout = 50ms});
  RawClient mute(page.port());
  RawClient slow(page.port());
  slow.send("GET /metrics HTTP/1.1\r\n");
  CHECK(mute.ended());
  CHECK(slow.ended());
  CHECK(page.asked() == 0);
}

TEST_CASE("connections that only connect keep nobody out") {
  Page page({.max_connections = 4, .request_timeout = 10min});
  std::vector<RawClient> mute;
  for (int i = 0; i < 20; ++i) mute.emplace_back(page.port());
  for (int i = 0; i < 3; ++i) CHECK_THAT(get(page, "/metrics"), Catch::EndsWith("mmm"));
  // The oldest went.
  for (int i = 0; i < 16; ++i) CHECK(mute[static_cast<std::size_t>(i)].ended());
}

TEST_CASE("who has its answer and does not go keeps nobody out") {
  Page page({.max_connections = 4});
  std::vector<RawClient> done;
  for (int i = 0; i < 20; ++i) {
    done.emplace_back(page.port()).send("GET /metrics HTTP/1.1\r\n\r\n");
    CHECK_THAT(all_of(done.back()), Catch::EndsWith("mmm"));
  }
}

TEST_CASE("who does not read its answer is closed after a while, and others are served meanwhile") {
  Page page({.reply_timeout = 200ms}, std::size_t{16} << 20);
  RawClient lazy(page.port(), 4096);
  lazy.send("GET /metrics HTTP/1.1\r\n\r\n");
  CHECK_THAT(get(page, "/healthz"), Catch::EndsWith("{}\n"));
  // It is let go while most is unsent: what it can still read is short.
  pollfd ended{lazy.fd(), 0, 0};
  CHECK(::poll(&ended, 1, 20'000) == 1);
}

TEST_CASE("a storm of requests is answered from one answer") {
  Page page;
  for (int i = 0; i < 200; ++i) CHECK_THAT(get(page, "/metrics"), Catch::EndsWith("mmm"));
  CHECK(page.asked() == 1);
}

TEST_CASE("requests that came with their connections while the loop was busy are all answered") {
  Page page({.max_connections = 4});
  std::promise<void> open;
  page.block(open);
  std::vector<RawClient> clients;
  for (int i = 0; i < 40; ++i) clients.emplace_back(page.port()).send("GET /metrics HTTP/1.1\r\n\r\n");
  open.set_value();
  for (RawClient& client : clients) CHECK_THAT(all_of(client), Catch::EndsWith("mmm"));
}

TEST_CASE("a stop closes what is open, and the loop ends") {
  Page page;
  RawClient mute(page.port());
  RawClient slow(page.port());
  slow.send("GET /met");
  page.stop();
  CHECK(mute.ended());
  CHECK(slow.ended());
}

TEST_CASE("nobody's loop turns while nobody asks") {
  boost::asio::io_context loop(1);
  auto listener = open_status_listener("--metrics-addr", "127.0.0.1:0");
  REQUIRE_OK(listener);
  StatusServer server(loop, *std::move(listener), [](const StatusRequest&) { return std::nullopt; });
  CHECK(loop.poll() == 0);
}

TEST_CASE("an address may leave out the host, which is loopback then") {
  CHECK(parse_status_address("9400") == StatusAddress{"127.0.0.1", 9400});
  CHECK(parse_status_address(":9400") == StatusAddress{"127.0.0.1", 9400});
  CHECK(parse_status_address("0.0.0.0:0") == StatusAddress{"0.0.0.0", 0});
  CHECK(parse_status_address("[::1]:9400") == StatusAddress{"::1", 9400});
  CHECK(parse_status_address("node7:1") == StatusAddress{"node7", 1});
  for (const std::string_view text :
       {"", ":", "node7", "node7:", "::1:94", "1:2:3", "a:65536", "a:-1", "a:1x", "a: 1"}) {
    CAPTURE(text);
    const auto address = parse_status_address(text);
    REQUIRE_FALSE(address);
    CHECK(address.error().code == ErrorCode::kInvalidArgument);
  }
  const auto taken = open_status_listener("--metrics-addr", "127.0.0.1:0");
  REQUIRE_OK(taken);
  const auto second = open_status_listener("--metrics-addr", "127.0.0.1:" + std::to_string(taken->port));
  REQUIRE_FALSE(second);
  CHECK(second.error().code == ErrorCode::kExhausted);
  CHECK_THAT(second.error().message, Catch::StartsWith("--metrics-addr: "));
}
