// SPDX-License-Identifier: Apache-2.0
#include "launcher/gpu_release.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sys/inotify.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

#include "rendezvous/base/syscall.h"
#include "rendezvous/base/unique_fd.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_directory.h"

using namespace muster;
using namespace muster::launcher;
using Catch::Matchers::Contains;

namespace {

/// GPUs of the fake library, which reads them from a file; gone at the end.
class FakeGpus {
 public:
  FakeGpus() { ::setenv("FAKE_NVML", file().c_str(), 1); }
  ~FakeGpus() { ::unsetenv("FAKE_NVML"); }
  FakeGpus(const FakeGpus&) = delete;
  FakeGpus& operator=(const FakeGpus&) = delete;

  [[nodiscard]] std::string file() const { return dir_.path() + "/gpus"; }
  [[nodiscard]] std::string asked() const { return file() + ".asked"; }
  void write(const std::string& text) const {
    std::ofstream(file() + ".new") << text;
    std::filesystem::rename(file() + ".new", file());
  }

 private:
  test::TemporaryDirectory dir_;
};

GpuPaths fake() {
  GpuPaths paths;
  paths.library = FAKE_NVML_LIBRARY;
  return paths;
}

/// The number of a process that has ended.
pid_t ended_process() {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(0);
  REQUIRE(::waitpid(child, nullptr, 0) == child);
  return child;
}

}  // namespace

TEST_CASE("memory of a worker that has ended is waited for until the driver has it back") {
  const FakeGpus gpus;
  const pid_t worker = ended_process();
  const std::string number = std::to_string(worker);
  gpus.write("GPU-aa 0000:3b:00.0 100 0 0 -\nGPU-bb 0000:5e:00.0 2048 0 0 1," + number + "\n");
  const UniqueFd watch(::inotify_init1(IN_CLOEXEC));
  REQUIRE(::inotify_add_watch(watch.get(), gpus.file().substr(0, gpus.file().rfind('/')).c_str(), IN_CREATE) >
          0);
  bool was_asked = false;
  std::thread driver([&] {
    char block[4096];
    // Once it was asked it gives the memory back.
    while (!std::filesystem::exists(gpus.asked()) && ::read(watch.get(), block, sizeof block) > 0) {
    }
    was_asked = true;
    gpus.write("GPU-aa 0000:3b:00.0 100 0 0 -\nGPU-bb 0000:5e:00.0 512 0 0 1\n");
  });
  const auto left = wait_for_gpu_release(fake(), std::span(&worker, 1), std::chrono::seconds(60));
  driver.join();
  REQUIRE(was_asked);
  REQUIRE(left.empty());
}

TEST_CASE("who still holds memory at the end of the wait is named, and who was no worker is not waited for") {
  const FakeGpus gpus;
  const pid_t gone = ended_process();
  const pid_t here = ::getpid();
  gpus.write("GPU-aa 0000:3b:00.0 2048 0 0 1," + std::to_string(gone) + "," + std::to_string(here) + "\n");
  const std::vector<pid_t> workers{gone, here};
  const auto left = wait_for_gpu_release(fake(), workers, Millis(100));
  REQUIRE(left.size() == 2);
  REQUIRE(left[0] == "pid " + std::to_string(gone) + " has ended and still holds 2.0 GiB of GPU 0 (GPU-aa)");
  REQUIRE(left[1] == "pid " + std::to_string(here) + " still holds 2.0 GiB of GPU 0 (GPU-aa)");
  const std::vector<pid_t> others{gone + 1};
  REQUIRE(wait_for_gpu_release(fake(), others, std::chrono::seconds(60)).empty());
}

TEST_CASE("without a driver or a worker there is nothing to wait for") {
  const FakeGpus gpus;
  gpus.write("init=9\n");
  const pid_t worker = ended_process();
  REQUIRE(wait_for_gpu_release(fake(), std::span(&worker, 1), std::chrono::seconds(60)).empty());
  REQUIRE(wait_for_gpu_release(fake(), {}, std::chrono::seconds(60)).empty());
  GpuPaths none;
  none.library = "/no/such/library";
  REQUIRE(wait_for_gpu_release(none, std::span(&worker, 1), std::chrono::seconds(60)).empty());
  REQUIRE(describe({.gpu = 3, .uuid = "GPU-5a", .pid = 77}, true) ==
          "pid 77 has ended and still holds memory of GPU 3 (GPU-5a)");
}
