// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <filesystem>
#include <iterator>
#include <pthread.h>
#include <set>
#include <string>
#include <vector>

#include "rendezvous/base/backoff.h"
#include "rendezvous/base/clock.h"
#include "rendezvous/base/env.h"
#include "rendezvous/base/key_map.h"
#include "rendezvous/base/log.h"
#include "rendezvous/base/syscall.h"
#include "rendezvous/base/text.h"
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

TEST_CASE("a thread for which there is no room is an error, not the end of the process") {
  pthread_attr_t usual, vast;
  REQUIRE(::pthread_getattr_default_np(&usual) == 0);
  REQUIRE(::pthread_attr_init(&vast) == 0);
  REQUIRE(::pthread_attr_setstacksize(&vast, std::size_t{1} << 48) == 0);
  REQUIRE(::pthread_setattr_default_np(&vast) == 0);
  const auto thread = start_quiet_thread([] {});
  REQUIRE(::pthread_setattr_default_np(&usual) == 0);
  REQUIRE_FALSE(thread);
  REQUIRE(thread.error().code == ErrorCode::kExhausted);
  REQUIRE(thread.error().message == "start a thread: Resource temporarily unavailable");
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

TEST_CASE("the hash of keys is SipHash-1-3") {
  // As Python 3.11 says with PYTHONHASHSEED=0, whose key is zero.
  const SipKey zero{};
  REQUIRE(sip_hash("a", zero) == 0x407448d2b89b1813);
  REQUIRE(sip_hash("12345678", zero) == 0x3489982430560a87);
  REQUIRE(sip_hash("a key of some bytes", zero) == 0x1b0e4ed76d1a0bd4);
  REQUIRE(sip_hash("a", zero) != sip_hash("a", {1, 0}));
  REQUIRE(random_sip_key() != random_sip_key());
}

TEST_CASE("keys that are one to the hash of std::string are many to that of keys") {
  // Each pair of words below changes what MurmurHash64A, which libstdc++ uses, keeps of it by its top bit,
  // and then back, whatever the seed is.
  const std::uint64_t factor = 0xc6a4a7935bd1e995;
  std::uint64_t inverse = factor;
  for (int i = 0; i < 6; ++i) inverse *= 2 - factor * inverse;
  const auto unmixed = [&](std::uint64_t word) {
    word *= inverse;
    word ^= word >> 47;
    return word * inverse;
  };
  std::vector<std::string> keys = {""};
  for (std::uint64_t i = 0; i < 10; ++i) {
    std::vector<std::string> longer;
    for (const std::string& key : keys)
      for (const std::uint64_t top : {std::uint64_t{0}, std::uint64_t{1} << 63}) {
        const std::uint64_t words[] = {unmixed(i + top), unmixed(2 * i + top)};
        longer.push_back(key + std::string(reinterpret_cast<const char*>(words), sizeof words));
      }
    keys = std::move(longer);
  }
  std::set<std::size_t> theirs, ours;
  for (const std::string& key : keys) {
    theirs.insert(std::hash<std::string>()(key));
    ours.insert(KeyHash()(key));
  }
#ifdef __GLIBCXX__
  REQUIRE(theirs.size() == 1);
#endif
  REQUIRE(ours.size() == keys.size());
}

TEST_CASE("a byte string is shown with what is no printable ASCII as numbers, and cut") {
  REQUIRE(printable(std::string_view("/a\0\xff\n", 5)) == "/a\\x00\\xff\\x0a");
  REQUIRE(printable(std::string(300, 'k'), 3) == "kkk... (300 bytes)");
}

TEST_CASE("a text from outside becomes one line that steers no terminal") {
  REQUIRE(one_line("two\nlines\tand\x7f") == "two lines and ");
  REQUIRE(one_line("\x1b[31mred\x1b[0m, \x1b]0;title\a and an end\x1b[1") == "red, 0;title  and an end");
  REQUIRE(one_line("gr\xc3\xbc\xc3\x9f"
                   "e") ==
          "gr\xc3\xbc\xc3\x9f"
          "e");
  REQUIRE(one_line("a\xc2\x9b"
                   "31mb\xc2\xa0") == "a 31mb\xc2\xa0");  // U+009B is ESC [ to some terminals
  REQUIRE(one_line("first words", 5) == "first");
  REQUIRE(one_line("\xc3\xbc\xc3\xbc", 3) == "\xc3\xbc");  // never half a character
}

TEST_CASE("loopback is an address of this host, and no name that looks like one") {
  for (const char* host : {"localhost", "::1", "127.0.0.1", "127.1.2.3"}) REQUIRE(is_loopback(host));
  for (const char* host : {"", "127.example.org", "10.0.0.1", "::", "host"}) REQUIRE_FALSE(is_loopback(host));
}
