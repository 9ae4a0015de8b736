// SPDX-License-Identifier: Apache-2.0
// musterd as a program: arguments, port file, signals, what it needs at run time.
#include <array>
#include <cstdio>
#include <memory>
#include <netinet/in.h>
#include <string>
#include <sys/socket.h>
#include <unistd.h>

#include "rendezvous/base/syscall.h"
#include "tests/support/catch.h"
#include "tests/support/musterd.h"
#include "tests/support/raw_client.h"
#include "tests/support/temporary_directory.h"

using namespace muster;
using muster::test::Musterd;
using muster::test::RawClient;
using muster::test::TemporaryDirectory;

namespace {

// Runs it to its end with arguments that it must refuse: exit code and the one line it says.
std::pair<int, std::string> refusal(std::vector<std::string> arguments) {
  auto [code, text] = Musterd(std::move(arguments)).finish();
  INFO(text);
  REQUIRE(std::count(text.begin(), text.end(), '\n') == 1);
  REQUIRE_THAT(text, Catch::StartsWith("musterd: "));
  return {code, text};
}

}  // namespace

TEST_CASE("the port file holds the port once connections are accepted, and nothing else is left beside it") {
  const TemporaryDirectory folder;
  const std::string path = folder.path() + "/port";
  for (int run = 0; run < 2; ++run) {  // the second replaces the first's
    Musterd daemon = Musterd::listening({"--port-file", path});
    const Instant deadline = SteadyClock::now() + test::kTimeout;
    Result<std::string> text = read_file(path);
    while ((!text || *text != std::to_string(daemon.port()) + "\n") && SteadyClock::now() < deadline)
      text = read_file(path);
    REQUIRE(text == std::to_string(daemon.port()) + "\n");
    REQUIRE(RawClient::modern(daemon.port()).alive());
    REQUIRE(folder.entries() == std::vector<std::string>{"port"});
  }
}

TEST_CASE("SIGTERM and SIGINT stop musterd in order: clients see an end, the exit code is 0") {
  for (const int number : {SIGTERM, SIGINT}) {
    Musterd daemon = Musterd::listening();
    RawClient client = RawClient::modern(daemon.port());
    REQUIRE(client.alive());
    daemon.signal(number);
    REQUIRE(client.receive(1).empty());
    const auto [code, text] = daemon.finish();
    REQUIRE(code == 0);
    REQUIRE_THAT(text, Catch::Contains("stopped listening on 127.0.0.1:"));
  }
}

TEST_CASE("a stopped musterd's port can be taken at once by the next") {
  Musterd first = Musterd::listening();
  RawClient client = RawClient::modern(first.port());
  REQUIRE(client.alive());
  first.signal(SIGTERM);
  REQUIRE(first.finish().first == 0);
  Musterd second({"--host", "127.0.0.1", "--port", std::to_string(first.port())});
  REQUIRE_THAT(second.wait_for_line("listening"), Catch::EndsWith(":" + std::to_string(first.port())));
}

TEST_CASE(
    "a busy port is refused in one line that names the address, the port and the process that holds it") {
  Musterd first = Musterd::listening();
  const std::string port = std::to_string(first.port());
  for (const std::string host : {"127.0.0.1", ""}) {
    std::vector<std::string> arguments = {"--port", port};
    if (!host.empty()) arguments.insert(arguments.end(), {"--host", host});
    const auto [code, text] = refusal(arguments);
    REQUIRE(code == 1);
    REQUIRE_THAT(text,
                 Catch::Contains("The server socket has failed to listen on any local network address") &&
                     Catch::Contains("port: " + port) && Catch::Contains("EADDRINUSE") &&
                     Catch::Contains("pid " + std::to_string(first.pid()) + " (") &&
                     Catch::Contains("musterd --host 127.0.0.1"));
  }
}

TEST_CASE("who listens on the same port of another address is not taken for the one that is in the way") {
  // This process has a smaller pid than the daemon: it is found first.
  const auto listen = [](std::uint16_t port) {
    UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK + 1);
    REQUIRE(::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
    REQUIRE(::listen(fd.get(), 1) == 0);
    return fd;
  };
  Musterd first = Musterd::listening();
  const UniqueFd other = listen(first.port());
  const std::string port = std::to_string(first.port());
  const std::string there = refusal({"--port", port, "--host", "127.0.0.1"}).second;
  REQUIRE_THAT(there, Catch::Contains("pid " + std::to_string(first.pid()) + " (") &&
                          !Catch::Contains("pid " + std::to_string(::getpid()) + " ("));
  const std::string everywhere = refusal({"--port", port}).second;
  REQUIRE_THAT(everywhere, Catch::Contains("pid " + std::to_string(first.pid()) + " (") &&
                               Catch::Contains("pid " + std::to_string(::getpid()) + " ("));
}

TEST_CASE("wrong arguments are refused in one line") {
  REQUIRE(refusal({"--port", "70000"}) ==
          std::pair<int, std::string>(
              2, "musterd: --port: Value 70000 not in range 0 to 65535; see musterd --help\n"));
  REQUIRE(refusal({"--port", "-1"}).first == 2);
  REQUIRE(refusal({"--log-level", "loud"}).first == 2);
  const auto said = [](const std::string& words) {
    return std::pair<int, std::string>(2, "musterd: " + words + "\n");
  };
  REQUIRE(refusal({"--port", "http"}) ==
          said("--port: Value http not in range 0 to 65535; see musterd --help"));
  REQUIRE(refusal({"--allow-uid", "me"}) == said("--allow-uid=me: not a valid number; see musterd --help"));
  REQUIRE(refusal({"--heartbeat-interval", "0"}) ==
          said("--heartbeat-interval: Value 0 not in range 0.01 to 3600; see musterd --help"));
  REQUIRE(refusal({"--keep", "nan"}) == said("--keep: nan is not a number; see musterd --help"));
  for (const std::string option : {"--host", "--secret-file", "--secrets-dir", "--state-dir", "--tls-cert"})
    REQUIRE(refusal({option, ""}) == said(option + ": an empty value; see musterd --help"));
  REQUIRE(refusal({"--prot", "1"}) == said("unknown argument --prot; see musterd --help"));
  REQUIRE(refusal({"--max-keys", "-5"}) ==
          said("--max-keys: -5 is not a whole number, 1 or more; see musterd --help"));
  for (const std::string wrong : {"5Q", "0", "-1KiB"})
    REQUIRE(
        refusal({"--max-bytes", wrong}) ==
        said("--max-bytes: " + wrong + " is not a size, as in 500000, 64KiB or 4GiB; see musterd --help"));
  // Before anything is served.
  REQUIRE(refusal({"--port", "0", "--metrics-addr", "everywhere"}) ==
          said("--metrics-addr=everywhere: not a port from 0 to 65535; HOST:PORT, or PORT for 127.0.0.1"));
  const auto [code, text] = refusal({"--host", "192.0.2.1", "--port", "0"});
  REQUIRE(code == 1);
  REQUIRE_THAT(text, Catch::Contains("EADDRNOTAVAIL") && Catch::Contains("no address of this host"));
  REQUIRE_THAT(refusal({"--listen-fd", "77"}).second, Catch::Contains("inherited listening descriptor 77"));
  REQUIRE_THAT(refusal({"--listen-fd", "1"}).second, Catch::Contains("ENOTSOCK"));
}

TEST_CASE("an inherited socket's port need not be named") {
  UniqueFd bound(::socket(AF_INET, SOCK_STREAM, 0));  // inherited: not close-on-exec
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  REQUIRE(::bind(bound.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
  Musterd daemon({"--listen-fd", std::to_string(bound.get())});
  bound.reset();
  const std::string line = daemon.wait_for_line("listening on 127.0.0.1:");
  REQUIRE(RawClient::modern(static_cast<std::uint16_t>(std::stoi(line.substr(line.rfind(':') + 1)))).alive());
}

TEST_CASE("musterd goes on where nobody reads its log, and after its reader has gone") {
  Musterd daemon = Musterd::listening({"--log-level", "info"});
  const auto make_it_say_something = [&] {
    RawClient stranger(daemon.port());
    stranger.send("no request");
    REQUIRE(stranger.ended());
  };
  SECTION("nobody reads") {
    const UniqueFd same(::open(("/proc/" + std::to_string(daemon.pid()) + "/fd/2").c_str(),
                               O_WRONLY | O_NONBLOCK | O_CLOEXEC));
    REQUIRE(same);
    const std::string line = std::string(4095, 'x') + "\n";
    while (::write(same.get(), line.data(), line.size()) > 0) {
    }
    REQUIRE(errno == EAGAIN);
    for (int i = 0; i < 3; ++i) make_it_say_something();
    REQUIRE(RawClient::modern(daemon.port()).alive());
    for (int i = 0; i < 4; ++i) (void)daemon.wait_for_line("xxx");
    make_it_say_something();
    (void)daemon.wait_for_line(" lines were left out here: nobody read them");
  }
  SECTION("its reader has gone") {
    daemon.stop_reading();
    for (int i = 0; i < 3; ++i) make_it_say_something();
    REQUIRE(RawClient::modern(daemon.port()).alive());
    daemon.signal(SIGKILL);
  }
}

TEST_CASE("a port file that cannot be written is refused before anything is served") {
  const auto [code, text] =
      refusal({"--port", "0", "--log-level", "off", "--port-file", "/nonexistent/folder/port"});
  REQUIRE(code == 1);
  REQUIRE_THAT(text, Catch::Contains("port file /nonexistent/folder/port") && Catch::Contains("ENOENT"));
}

TEST_CASE("sizes on the command line have units") {
  Musterd daemon = Musterd::listening({"--max-bytes", "2KiB"});
  RawClient good = RawClient::modern(daemon.port());
  good.send({.op = wire::Op::kSet, .key = "/k", .value = std::string(1900, 'x')});
  REQUIRE(good.alive());
  good.send({.op = wire::Op::kSet, .key = "/k", .value = std::string(2000, 'x')});
  REQUIRE(good.ended());
  REQUIRE_THAT(daemon.wait_for_line("closed"), Catch::Contains("the limit is 2048 (--max-bytes)"));
}

// The sanitizers bring libraries of their own.
#ifndef MUSTER_SANITIZED
TEST_CASE("musterd needs nothing at run time beyond the C library") {
  const std::unique_ptr<FILE, decltype(&::pclose)> listing(::popen("ldd " MUSTER_TEST_BIN "/musterd", "r"),
                                                           &::pclose);
  REQUIRE(listing != nullptr);
  std::array<char, 512> line;
  int libraries = 0;
  while (std::fgets(line.data(), line.size(), listing.get()) != nullptr) {
    const std::string_view text(line.data());
    INFO(text);
    REQUIRE((text.find("linux-vdso") != text.npos || text.find("libc.so.6") != text.npos ||
             text.find("libm.so.6") != text.npos || text.find("ld-linux") != text.npos));
    ++libraries;
  }
  REQUIRE(libraries >= 2);
}
#endif
