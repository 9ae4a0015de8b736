// SPDX-License-Identifier: Apache-2.0
#include "launcher/output/log_router.h"
#include "rendezvous/base/syscall.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_directory.h"

using namespace muster;
using namespace muster::launcher;

TEST_CASE("lines that contain one of the texts are written with their prefix") {
  const test::TemporaryDirectory directory;
  const std::string path = directory.path() + "/filtered";
  const std::vector<std::string> texts{"apple", "or"};
  auto log = FilteredLog::create(path, texts);
  REQUIRE_OK(log);
  REQUIRE(*read_file(path) == "");
  log->offer("an apple", [] { return "[0]:"; });
  log->offer("a pear", [] { return "[1]:"; });
  log->offer("for apples", [] { return "[1]:"; });
  REQUIRE_OK(log->flush());
  REQUIRE_OK(log->flush());
  REQUIRE(*read_file(path) == "[0]:an apple\n[1]:for apples\n");
}

TEST_CASE("an empty text is in every line") {
  const test::TemporaryDirectory directory;
  const std::string path = directory.path() + "/filtered";
  const std::vector<std::string> texts{""};
  auto log = FilteredLog::create(path, texts);
  REQUIRE_OK(log);
  log->offer("", [] { return ""; });
  REQUIRE_OK(log->flush());
  REQUIRE(*read_file(path) == "\n");
}

TEST_CASE("a disk that is full is said once and ends the duplication") {
  const std::vector<std::string> texts{"a"};
  auto log = FilteredLog::create("/dev/full", texts);
  REQUIRE_OK(log);
  log->offer("a", [] { return ""; });
  const auto first = log->flush();
  REQUIRE_FALSE(first);
  REQUIRE_THAT(first.error().message, Catch::StartsWith("write /dev/full, which gets no more lines"));
  log->offer("a", [] { return ""; });
  REQUIRE_OK(log->flush());
}

TEST_CASE("a file that cannot be made is named") {
  const std::vector<std::string> texts{"a"};
  const auto log = FilteredLog::create("/nonexistent/filtered", texts);
  REQUIRE_FALSE(log);
  REQUIRE_THAT(log.error().message, Catch::Contains("/nonexistent/filtered"));
}
