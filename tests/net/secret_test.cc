// SPDX-License-Identifier: Apache-2.0
// musterd's secret: where it comes from, who is let in, and that nobody reads it anywhere.
#include <cstdlib>
#include <fcntl.h>
#include <string>

#include <boost/asio/io_context.hpp>

#include "rendezvous/agent_client/control_client.h"
#include "rendezvous/base/syscall.h"
#include "rendezvous/base/unique_fd.h"
#include "tests/support/catch.h"
#include "tests/support/musterd.h"
#include "tests/support/raw_client.h"
#include "tests/support/temporary_directory.h"

using namespace muster;
using namespace std::chrono_literals;
using muster::test::Musterd;
using muster::test::RawClient;
using muster::test::TemporaryDirectory;

namespace {

constexpr std::string_view kSecret = "correct-horse-battery-staple";

// In the environment of what is started while it lives.
class Exported {
 public:
  explicit Exported(const std::string& value) { ::setenv("MUSTER_SECRET", value.c_str(), 1); }
  ~Exported() { ::unsetenv("MUSTER_SECRET"); }
};

std::string write_secret_file(const TemporaryDirectory& folder, mode_t mode) {
  const std::string path = folder.path() + "/secret";
  const UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode));
  REQUIRE_OK(write_all(fd.get(), std::string(kSecret) + "\n"));
  return path;
}

// One agent joins the job; the error where it may not.
std::optional<Error> join(std::uint16_t port, std::string_view secret) {
  boost::asio::io_context loop{1};
  net::ControlClientOptions options;
  options.host = "127.0.0.1";
  options.port = port;
  options.job = "job";
  options.request.host = "n1";
  options.connect_timeout = 20s;
  if (!secret.empty()) options.secret = *auth::Secret::from_bytes(secret);
  std::optional<Error> lost;
  bool done = false;
  net::ControlEvents events;
  events.assigned = [&](const auto&) { done = true; };
  events.lost = [&](const Error& error) {
    lost = error;
    done = true;
  };
  net::ControlClient client(loop, options, std::move(events));
  client.start();
  const Instant deadline = SteadyClock::now() + test::kTimeout;
  while (!done && SteadyClock::now() < deadline) loop.run_one_until(deadline);
  REQUIRE(done);
  return lost;
}

std::string hex_of(std::string_view bytes) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string out;
  for (const char c : bytes) {
    out += kDigits[static_cast<unsigned char>(c) >> 4];
    out += kDigits[static_cast<unsigned char>(c) & 15];
  }
  return out;
}

}  // namespace

TEST_CASE("a secret from a file or the environment lets agents in that know it, and nobody reads it") {
  const TemporaryDirectory folder;
  const std::string path = write_secret_file(folder, 0600);
  for (const bool from_file : {true, false}) {
    const Exported exported{std::string(kSecret)};
    std::vector<std::string> arguments = {"--log-level", "debug"};
    if (from_file) arguments.insert(arguments.end(), {"--secret-file", path});
    Musterd daemon = Musterd::listening(arguments);
    REQUIRE_FALSE(join(daemon.port(), kSecret));
    const auto wrong = join(daemon.port(), "correct-horse-battery-stapler");
    REQUIRE(wrong);
    REQUIRE(wrong->code == ErrorCode::kMismatch);
    const auto none = join(daemon.port(), "");
    REQUIRE(none);
    REQUIRE_THAT(none->message, Catch::Contains("asks for the job's secret"));
    // Programs on this host use the store as before.
    REQUIRE(RawClient::modern(daemon.port()).alive());

    const auto command = read_file("/proc/" + std::to_string(daemon.pid()) + "/cmdline");
    REQUIRE_OK(command);
    const auto environment = read_file("/proc/" + std::to_string(daemon.pid()) + "/environ");
    REQUIRE_OK(environment);
    daemon.signal(SIGTERM);
    const auto [code, log] = daemon.finish();
    REQUIRE(code == 0);
    REQUIRE_THAT(log, Catch::Contains("has another secret, or none") && Catch::Contains("job job"));
    for (const std::string& text : {*command, *environment, log, wrong->message, none->message}) {
      REQUIRE(text.find("horse") == std::string::npos);
      REQUIRE(text.find(hex_of("horse")) == std::string::npos);
    }
  }
}

TEST_CASE("a secret on the command line is refused without being repeated") {
  const std::string text(kSecret);
  for (const auto& arguments :
       {std::vector<std::string>{"--secret", text}, std::vector<std::string>{"--secret=" + text}}) {
    const auto [code, log] = Musterd(arguments).finish();
    REQUIRE(code == 2);
    REQUIRE_THAT(log, Catch::Contains("--secret-file"));
    REQUIRE(log.find("horse") == std::string::npos);
  }
}

TEST_CASE("a secret that is too short or readable by others is refused, and not repeated") {
  {
    const Exported exported("horse");
    const auto [code, log] = Musterd({"--port", "0"}).finish();
    REQUIRE(code == 2);
    REQUIRE_THAT(log, Catch::Contains("MUSTER_SECRET") && Catch::Contains("has 5 bytes"));
    REQUIRE(log.find("horse") == std::string::npos);
  }
  const TemporaryDirectory folder;
  const auto [code, log] =
      Musterd({"--port", "0", "--secret-file", write_secret_file(folder, 0644)}).finish();
  REQUIRE(code == 2);
  REQUIRE_THAT(log, Catch::Contains("chmod 600"));
  REQUIRE(log.find("horse") == std::string::npos);
}

TEST_CASE("one line at the start says who is served") {
  const auto log_of = [](std::vector<std::string> arguments) {
    arguments.insert(arguments.end(), {"--port", "0"});
    Musterd daemon(arguments);
    const std::string line = daemon.wait_for_line("serving ");
    daemon.signal(SIGTERM);
    REQUIRE(daemon.finish().second.find("serving ") == std::string::npos);
    return line;
  };
  REQUIRE_THAT(log_of({}), Catch::Contains("serving this host alone"));
  REQUIRE_THAT(log_of({"--host", "127.0.0.1"}), Catch::Contains("serving this host alone"));
  REQUIRE_THAT(log_of({"--unprotected"}), Catch::Contains("warning: serving everybody who reaches [::]:"));
  REQUIRE_THAT(log_of({"--host", "0.0.0.0"}),
               Catch::Contains("warning: serving everybody who reaches 0.0.0.0:"));
  const Exported exported{std::string(kSecret)};
  REQUIRE_THAT(log_of({"--unprotected", "--allow-uid", "7"}),
               Catch::Contains("serving agents that prove who they are") && Catch::Contains("and user 7"));
}
