// SPDX-License-Identifier: Apache-2.0
// A TCPStore server that answers arbitrary bytes: every operation of the client ends with a value or an
// error, and once one has failed all fail. The server is a thread of this process that says its piece and
// hangs up.
#include <cstdint>
#include <cstdlib>
#include <mutex>
#include <netinet/in.h>
#include <string>
#include <string_view>
#include <sys/socket.h>
#include <thread>
#include <unistd.h>
#include <utility>

#include "rendezvous/base/unique_fd.h"
#include "rendezvous/client/store_link.h"

namespace {

using namespace muster;

void check(bool holds) {
  if (!holds) std::abort();
}

class Speaker {
 public:
  Speaker() : listener_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    check(::bind(listener_.get(), reinterpret_cast<const sockaddr*>(&address), size) == 0);
    check(::listen(listener_.get(), 8) == 0);
    check(::getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&address), &size) == 0);
    port_ = ntohs(address.sin_port);
    std::thread([this] { run(); }).detach();  // as long as the process
  }
  [[nodiscard]] std::uint16_t port() const { return port_; }
  void say_next(std::string text) {
    const std::lock_guard lock(mutex_);
    text_ = std::move(text);
  }

 private:
  [[noreturn]] void run() {
    while (true) {
      const UniqueFd fd(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      if (!fd) continue;
      std::string text;
      {
        const std::lock_guard lock(mutex_);
        text = text_;
      }
      (void)::send(fd.get(), text.data(), text.size(), MSG_NOSIGNAL);
      ::shutdown(fd.get(), SHUT_WR);
      char ignored[4096];
      while (::recv(fd.get(), ignored, sizeof ignored, 0) > 0) {
      }
      // Without a TIME_WAIT of its own: thousands of connections come.
      const linger now{1, 0};
      ::setsockopt(fd.get(), SOL_SOCKET, SO_LINGER, &now, sizeof now);
    }
  }

  UniqueFd listener_;
  std::uint16_t port_ = 0;
  std::mutex mutex_;
  std::string text_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static Speaker speaker;
  if (size < 1) return 0;
  std::string text;
  wire::put_u32(text, static_cast<std::uint32_t>(::getpid()));  // the answer to PING
  text.append(reinterpret_cast<const char*>(data) + 1, size - 1);
  speaker.say_next(std::move(text));
  auto link = StoreLink::open("127.0.0.1", speaker.port(), Millis(20'000));
  if (!link) return 0;
  bool failed = false;
  const auto note = [&failed](const auto& result) {
    check(!failed || !result);
    failed = failed || !result;
    if (!result) check(!result.error().message.empty());
  };
  unsigned choice = data[0];
  for (int i = 0; i < 8; ++i, choice = choice * 5 + 3) {
    const Instant deadline = SteadyClock::now() + Millis(20'000);
    const std::string_view keys[] = {"/a", "/b"};
    note(link->request({.op = wire::Op::kWait, .items = keys}, deadline));
    switch (choice % 5) {
      case 0:
        note(link->read_number<std::uint8_t>(deadline));
        break;
      case 1:
        note(link->read_number<std::uint32_t>(deadline));
        break;
      case 2:
        note(link->read_number<std::int64_t>(deadline));
        break;
      case 3:
        note(link->read_bytes(deadline));
        break;
      default:
        note(link->await_stop(deadline, Millis(20'000)));
    }
  }
  return 0;
}
