// SPDX-License-Identifier: Apache-2.0
// What a worker does to announce a safe point, as the launcher sees it.
#include <cstdlib>
#include <filesystem>
#include <poll.h>
#include <string>
#include <sys/inotify.h>
#include <thread>
#include <unistd.h>

#include <muster/safe_point.h>

#include "rendezvous/base/unique_fd.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_directory.h"

using namespace muster;
using namespace std::chrono_literals;

namespace {

class Told {
 public:
  explicit Told(const std::string& path) { ::setenv("MUSTER_SAFE_POINT_FILE", path.c_str(), 1); }
  ~Told() { ::unsetenv("MUSTER_SAFE_POINT_FILE"); }
};

}  // namespace

TEST_CASE("a safe point that nobody asks for does not wait") {
  ::unsetenv("MUSTER_SAFE_POINT_FILE");
  announce_safe_point(1h);  // that it waits shows by the time-out of the test
  const Told nowhere("/no/such/directory/file");
  announce_safe_point(1h);
  REQUIRE_FALSE(std::filesystem::exists("/no/such/directory"));
}

TEST_CASE("who announces a safe point goes on once its file is gone") {
  const test::TemporaryDirectory directory;
  const std::string path = directory.path() + "/safe-point";
  const Told told(path);
  const UniqueFd events(::inotify_init1(IN_CLOEXEC));
  REQUIRE(::inotify_add_watch(events.get(), directory.path().c_str(), IN_CLOSE_WRITE) >= 0);
  for (int i = 0; i < 20; ++i) {
    bool announced = false;
    std::thread launcher([&] {
      pollfd ready{events.get(), POLLIN, 0};
      announced = ::poll(&ready, 1, 30'000) == 1;
      char buffer[512];
      if (announced) announced = ::read(events.get(), buffer, sizeof buffer) > 0;
      std::filesystem::remove(path);
    });
    announce_safe_point(1h);
    launcher.join();
    REQUIRE(announced);
    REQUIRE_FALSE(std::filesystem::exists(path));
  }
}

TEST_CASE("who announces a safe point waits no longer than its timeout") {
  const test::TemporaryDirectory directory;
  const Told told(directory.path() + "/safe-point");
  announce_safe_point(1ms);
  REQUIRE(std::filesystem::exists(directory.path() + "/safe-point"));
}
