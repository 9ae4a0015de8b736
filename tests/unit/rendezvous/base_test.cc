// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <filesystem>
#include <iterator>

#include "rendezvous/base/backoff.h"
#include "rendezvous/base/clock.h"
#include "rendezvous/base/env.h"
#include "rendezvous/base/log.h"
#include "rendezvous/base/syscall.h"
#include "rendezvous/base/unique_fd.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_directory.h"

using namespace muster;

TEST_CASE("a UniqueFd closes its descriptor exactly once") {
  int raw = -1;
  {
    UniqueFd first(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    raw = first.get();
    UniqueFd second(std::move(first));
    REQUIRE_FALSE(first);  // NOLINT(bugprone-use-after-move): the moved-from state is the subject
    REQUIRE(::fcntl(raw, F_GETFD) >= 0);
  }
  REQUIRE(::fcntl(raw, F_GETFD) == -1);
}

TEST_CASE("time left is rounded up and never negative") {
  const Instant now{};
  REQUIRE(time_left(now + std::chrono::microseconds(1), now) == Millis(1));
  REQUIRE(time_left(now - std::chrono::seconds(1), now) == Millis(0));
}

TEST_CASE("an integer variable out of range is refused with its name, value and range") {
  const auto result = parse_integer("WORLD_SIZE", "0", 1, 8);
  REQUIRE_FALSE(result);
  REQUIRE(result.error().message == "WORLD_SIZE=0 is not an integer between 1 and 8");
  REQUIRE_FALSE(parse_integer("X", "12abc", 0, 100));
  REQUIRE_FALSE(parse_integer("X", "", 0, 100));
  REQUIRE(parse_integer("X", "12", 0, 100) == 12);
}

TEST_CASE("a missing required variable says how to set it") {
  const auto result = require_integer(Environment{}, "RANK", 0, 1);
  REQUIRE_FALSE(result);
  REQUIRE_THAT(result.error().message, Catch::Contains("RANK is not set"));
}

TEST_CASE("back-off grows to its maximum and stays within its jitter") {
  Backoff backoff({.first = Millis(100), .max = Millis(1000), .factor = 2, .jitter = 0.5}, 7);
  double base = 100;
  for (int i = 0; i < 20; ++i) {
    const auto wait = static_cast<double>(backoff.next().count());
    REQUIRE(wait >= base * 0.5 - 1);
    REQUIRE(wait <= base * 1.5);
    base = std::min(base * 2, 1000.0);
  }
}

TEST_CASE("an errno is reported with its text and its name") {
  REQUIRE(errno_text(ENOENT) == "No such file or directory (ENOENT)");
  REQUIRE(errno_error("open x", ENOENT).code == ErrorCode::kNotFound);
}

TEST_CASE("reading a file larger than its cap is refused") {
  REQUIRE(read_file("/proc/self/cmdline").has_value());
  const auto result = read_file("/dev/zero", 1000);
  REQUIRE_FALSE(result);
  REQUIRE(result.error().code == ErrorCode::kExhausted);
}

TEST_CASE("a file is replaced as a whole, and an attempt that fails leaves nothing behind") {
  const test::TemporaryDirectory folder;
  const std::string path = folder.path() + "/file";
  REQUIRE_OK(replace_file(path, "a long first text", 0600));
  REQUIRE_OK(replace_file(path, "short", 0600));
  REQUIRE(read_file(path).value() == "short");
  REQUIRE(std::filesystem::create_directory(folder.path() + "/directory"));
  const auto failed = replace_file(folder.path() + "/directory", "text", 0600);
  REQUIRE_FALSE(failed);
  REQUIRE_THAT(failed.error().message, Catch::StartsWith(folder.path() + "/directory: "));
  REQUIRE(std::distance(std::filesystem::directory_iterator(folder.path()), {}) == 2);
}

TEST_CASE("log levels are torchrun's LOGLEVEL words in any case") {
  for (const auto& [text, level] :
       {std::pair{"DEBUG", LogLevel::kDebug}, std::pair{"Info", LogLevel::kInfo},
        std::pair{"warning", LogLevel::kWarning}, std::pair{"WARN", LogLevel::kWarning},
        std::pair{"eRRor", LogLevel::kError}, std::pair{"CRITICAL", LogLevel::kError},
        std::pair{"off", LogLevel::kOff}, std::pair{"nonsense", LogLevel::kWarning},
        std::pair{"", LogLevel::kWarning}}) {
    INFO(text);
    REQUIRE(parse_log_level(text) == level);
  }
}
