// SPDX-License-Identifier: Apache-2.0
#include "launcher/report/gpu_release.h"

#include <cstdlib>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <functional>
#include <optional>
#include <sys/wait.h>
#include <unistd.h>

#include "launcher/report/gpu_holders.h"
#include "rendezvous/base/lifetime.h"
#include "rendezvous/base/unique_fd.h"
#include "tests/support/catch.h"
#include "tests/support/hanging_driver.h"
#include "tests/support/loop_clock.h"
#include "tests/support/temporary_directory.h"

using namespace muster;
using namespace muster::launcher;
using Catch::Matchers::Contains;

namespace {

/// One that ends with memory still held.
constexpr Millis kWait{10};
/// Backwards: on a busy machine the child may need more than the second that the loop grants it beyond that.
constexpr Millis kSlowly{-60'000};

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

/// What begin() brought: nothing where it had nobody to wait for. The loop's clock moves by `ahead` once the
/// helper process is there, which has a clock of its own.
std::optional<std::vector<std::string>> wait_for(GpuRelease& release, boost::asio::io_context& io,
                                                 Millis timeout, Millis ahead = {}) {
  std::optional<std::vector<std::string>> out;
  if (!release.begin(timeout, [&](std::vector<std::string> holds) { out = std::move(holds); })) return out;
  test::advance_clock(io, ahead);
  io.restart();
  io.run_for(std::chrono::seconds(60));
  REQUIRE(out);
  return out;
}

}  // namespace

TEST_CASE(
    "memory of a worker that has ended is waited for until the driver has it back, and the loop goes on") {
  const FakeGpus gpus;
  const pid_t worker = ended_process();
  gpus.write("GPU-aa 0000:3b:00.0 100 0 0 -\nGPU-bb 0000:5e:00.0 2048 0 0 1," + std::to_string(worker) +
             "\n");
  boost::asio::io_context io;
  GpuRelease release(io, fake(), true);
  release.started(worker);
  bool was_asked = false;
  LoopTimer timer(io);
  // Once it was asked it gives the memory back; it is looked for on the same loop.
  const std::function<void()> look = [&] {
    timer.expires_after(Millis(5));
    timer.async_wait([&](boost::system::error_code) {
      if (!std::filesystem::exists(gpus.asked())) return look();
      was_asked = true;
      gpus.write("GPU-aa 0000:3b:00.0 100 0 0 -\nGPU-bb 0000:5e:00.0 512 0 0 1\n");
    });
  };
  look();
  const auto left = wait_for(release, io, std::chrono::seconds(60));
  REQUIRE(was_asked);
  REQUIRE(left->empty());
}

TEST_CASE("who still holds memory at the end of the wait is named, and who was no worker is not waited for") {
  const FakeGpus gpus;
  const pid_t gone = ended_process();
  const pid_t here = ::getpid();
  gpus.write("GPU-aa 0000:3b:00.0 2048 0 0 1," + std::to_string(gone) + "," + std::to_string(here) + "\n");
  boost::asio::io_context io;
  GpuRelease release(io, fake(), true);
  release.started(gone);
  release.started(here);
  const auto left = *wait_for(release, io, kWait, kSlowly);
  REQUIRE(left.size() == 2);
  REQUIRE(left[0] == "pid " + std::to_string(gone) + " has ended and still holds 2.0 GiB of GPU 0 (GPU-aa)");
  REQUIRE(left[1] == "pid " + std::to_string(here) + " still holds 2.0 GiB of GPU 0 (GPU-aa)");
  GpuRelease others(io, fake(), true);
  others.started(ended_process());
  REQUIRE(wait_for(others, io, std::chrono::seconds(60))->empty());
}

TEST_CASE("what a worker started is waited for too, by its number and its start") {
  const FakeGpus gpus;
  const Descendants descendants("");
  // A child that stays until its pipe is closed, in place of a loader of data.
  int ends[2];
  REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
  const UniqueFd reader(ends[0]);
  UniqueFd writer(ends[1]);
  const pid_t loader = ::fork();
  if (loader == 0) {
    writer.reset();
    char byte;
    (void)!::read(reader.get(), &byte, 1);
    ::_exit(0);
  }
  boost::asio::io_context io;
  GpuRelease release(io, fake(), true);
  release.look(descendants);
  gpus.write("GPU-aa 0000:3b:00.0 1024 0 0 " + std::to_string(loader) + "\n");
  writer.reset();
  REQUIRE(::waitpid(loader, nullptr, 0) == loader);
  const auto left = *wait_for(release, io, kWait, kSlowly);
  REQUIRE(left.size() == 1);
  REQUIRE(left[0] == "pid " + std::to_string(loader) +
                         ", which a worker started, has ended and still holds 1.0 GiB of GPU 0 (GPU-aa)");
}

TEST_CASE("a number that belongs to another process now is nobody's to wait for") {
  const FakeGpus gpus;
  gpus.write("GPU-aa 0000:3b:00.0 1024 0 0 1\n");  // the first process of the machine, long before us
  const auto first = mark_of(1);
  const auto own = mark_of(::getpid());
  REQUIRE(first);
  REQUIRE(own);
  REQUIRE(own->start_ticks > first->start_ticks);
  boost::asio::io_context io;
  GpuRelease release(io, fake(), true);
  release.add({1, own->start_ticks}, true);
  REQUIRE(wait_for(release, io, std::chrono::seconds(60))->empty());
}

TEST_CASE("a driver that hangs is told after its time, and a wait can be given up") {
  test::HangingDriver driver;
  boost::asio::io_context io;
  GpuRelease release(io, fake(), true);
  release.started(ended_process());
  std::vector<std::string> left;
  REQUIRE(release.begin(Millis(10), [&](std::vector<std::string> holds) { left = std::move(holds); }));
  driver.wait_until_called();
  test::advance_clock(io, std::chrono::seconds(2));
  io.run_for(std::chrono::seconds(60));
  REQUIRE(left.size() == 1);
  REQUIRE(left[0] == "the GPU driver did not tell within 1 s which processes hold its memory");

  GpuRelease given_up(io, fake(), true);
  given_up.started(ended_process());
  REQUIRE(given_up.begin(std::chrono::seconds(60), [](const auto&) { FAIL("it was given up"); }));
  given_up.cancel();
  io.restart();
  io.run_for(std::chrono::seconds(60));
  REQUIRE(io.stopped());
}

TEST_CASE("without a driver or a worker there is nothing to wait for") {
  const FakeGpus gpus;
  gpus.write("init=9\n");
  const pid_t worker = ended_process();
  boost::asio::io_context io;
  GpuRelease silent(io, fake(), true);
  REQUIRE_FALSE(wait_for(silent, io, std::chrono::seconds(60)));
  silent.started(worker);
  REQUIRE(wait_for(silent, io, std::chrono::seconds(60))->empty());
  GpuRelease off(io, fake(), false);
  off.started(worker);
  REQUIRE_FALSE(wait_for(off, io, std::chrono::seconds(60)));
  GpuPaths none;
  none.library = "/no/such/library";
  GpuRelease without(io, none, true);
  without.started(worker);
  REQUIRE(wait_for(without, io, std::chrono::seconds(60))->empty());
  REQUIRE(describe(GpuUse{.gpu = 3, .uuid = "GPU-5a", .pid = 77}) == "holds memory of GPU 3 (GPU-5a)");
}
