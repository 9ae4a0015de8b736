// SPDX-License-Identifier: Apache-2.0
// Whatever bytes come to a status server: one response or none, and the same for the same bytes in other
// pieces; and whatever names end up in a label, a line of metrics stays one line. The first byte seeds where
// the bytes are split. The server is a real one, on a loopback port: its HTTP is Boost.Beast's, the limits
// and the order of its steps are its own.
#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <netinet/in.h>
#include <string>
#include <string_view>
#include <sys/socket.h>

#include <boost/asio/io_context.hpp>

#include "rendezvous/base/metrics_text.h"
#include "rendezvous/base/process_usage.h"
#include "rendezvous/status/status_server.h"

namespace {

using namespace muster;

void check(bool holds) {
  if (!holds) std::abort();
}

struct Site {
  Site()
      : listener(net::open_status_listener("--metrics-addr", "127.0.0.1:0").value()),
        port(listener.port),
        server(loop, std::move(listener),
               [](const net::StatusRequest& request) -> std::optional<net::StatusReply> {
                 const std::string_view path = request.path;
                 check(path.find('\n') == std::string::npos && path.find('?') == std::string::npos);
                 if (path.size() > 8) return std::nullopt;
                 return net::StatusReply{.body = std::string(path)};
               }) {}

  // All that the server answers to `bytes`, in pieces of at most `most`, up to its end.
  std::string ask(std::string_view bytes, std::size_t most, std::uint32_t seed) {
    UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(port);
    const linger reset{1, 0};  // no TIME_WAIT
    ::setsockopt(fd.get(), SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
    check(::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
    while (!bytes.empty()) {
      seed = seed * 1664525 + 1013904223;
      const std::size_t size = std::min<std::size_t>(bytes.size(), 1 + (seed >> 8) % most);
      if (::send(fd.get(), bytes.data(), size, MSG_NOSIGNAL) < 0) break;
      bytes.remove_prefix(size);
      loop.poll();
    }
    ::shutdown(fd.get(), SHUT_WR);
    std::string out;
    char block[16384];
    while (true) {
      loop.poll();
      const ssize_t n = ::recv(fd.get(), block, sizeof block, MSG_DONTWAIT);
      if (n > 0) out.append(block, static_cast<std::size_t>(n));
      if (n == 0 || (n < 0 && errno != EAGAIN)) return out;
      if (n < 0) loop.run_one();
    }
  }

  boost::asio::io_context loop{1};
  net::Listener listener;
  std::uint16_t port;
  net::StatusServer server;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 1) return 0;
  static Site site;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  const std::string at_once = site.ask(bytes, bytes.size() + 1, data[0]);
  const std::string pieces = site.ask(bytes, 1 + bytes.size() / 8, data[0]);
  const auto status = [](const std::string& answer) { return answer.substr(0, answer.find('\r')); };
  for (const std::string& answer : {at_once, pieces})
    check(answer.empty() ||
          (answer.starts_with("HTTP/1.1 ") && answer.find("\r\n\r\n") != std::string::npos));
  // What is no request may be recognised by its beginning, or at its end.
  if (status(at_once) == "HTTP/1.1 200 OK" || status(pieces) == "HTTP/1.1 200 OK") check(at_once == pieces);

  MetricsText out;
  out.family("m", MetricType::kGauge, "M.");
  out.sample(1, {{"l", bytes}});
  const std::string text = out.take();
  check(std::count(text.begin(), text.end(), '\n') == 3 && text.ends_with("\"} 1\n"));
  if (const auto usage = parse_process_stat(bytes, 100, 4096))
    check(usage->cpu_seconds >= 0 && usage->parent >= 0);
  return 0;
}
