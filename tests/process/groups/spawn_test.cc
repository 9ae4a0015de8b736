// SPDX-License-Identifier: Apache-2.0
// spawn(): real workers, exceptions, signals, and what is left of them.
#include <cerrno>
#include <csignal>
#include <dlfcn.h>
#include <poll.h>
#include <pthread.h>
#include <stdexcept>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

#include <muster/init.h>
#include <muster/preemption.h>
#include <muster/spawn.h>

#include "tests/support/catch.h"

using namespace muster;
using namespace std::chrono_literals;

namespace {

bool has_children() {
  return ::waitpid(-1, nullptr, WNOHANG) != -1 || errno != ECHILD;
}

/// Until somebody ends this process.
[[noreturn]] void wait_for_ever() {
  while (true) ::pause();
}

Result<void> work(int rank) {
  MUSTER_TRY(const Context context, init());
  if (context.rank != rank || context.local_rank != rank || context.world_size != context.local_world_size)
    return fail(ErrorCode::kFailed, "placed wrongly");
  float sum = static_cast<float>(rank + 1);
  MUSTER_OK(context.group->all_reduce({&sum, 1, DType::kFloat32}));
  const auto world = static_cast<float>(context.world_size);
  if (sum != world * (world + 1) / 2) return fail(ErrorCode::kFailed, "a wrong sum");
  return {};
}

}  // namespace

TEST_CASE("spawned workers find each other by init(), one time after another") {
  for (const int nprocs : {1, 2, 4}) {
    const auto done = spawn(nprocs, work);
    INFO((done ? "" : done.error().message));
    REQUIRE(done);
    REQUIRE_FALSE(has_children());
  }
}

TEST_CASE("an exception of a spawned worker comes back with its rank and ends the others") {
  const auto done = spawn(3, [](int rank) -> Result<void> {
    MUSTER_TRY(const Context context, init());
    if (rank == 1) throw std::runtime_error("batch 7 is empty");
    return context.group->barrier();  // in vain
  });
  REQUIRE_FALSE(done);
  REQUIRE(done.error().message == "spawn: rank 1: batch 7 is empty");
  REQUIRE(done.error().code == ErrorCode::kFailed);
  REQUIRE_FALSE(has_children());
}

TEST_CASE("an error, a signal and an exit code of a spawned worker come back with its rank") {
  struct End {
    std::function<Result<void>()> how;
    std::string text;
  };
  const std::vector<End> ends = {
      {[] { return fail(ErrorCode::kNotFound, "no data in /data"); }, "spawn: rank 2: no data in /data"},
      {[]() -> Result<void> { throw 7; }, "spawn: rank 2: an exception of an unknown type"},
      {[]() -> Result<void> { throw std::runtime_error(std::string(1 << 20, 'x')); },
       "spawn: rank 2: " + std::string(32'000, 'x')},
      {[]() -> Result<void> { ::_exit(9); }, "spawn: rank 2 exited with code 9"},
      {[]() -> Result<void> { return ::raise(SIGKILL), Result<void>(); },
       "spawn: rank 2 was killed by SIGKILL"},
      {[]() -> Result<void> {
         ::signal(SIGSEGV, SIG_DFL);  // a sanitizer's handler would exit
         return ::raise(SIGSEGV), Result<void>();
       },
       "spawn: rank 2 was killed by SIGSEGV"},
  };
  for (const End& end : ends) {
    const auto done = spawn(3, [&](int rank) -> Result<void> {
      if (rank == 2) return end.how();
      wait_for_ever();
    });
    REQUIRE_FALSE(done);
    REQUIRE(done.error().message == end.text);
    REQUIRE_FALSE(has_children());
  }
}

TEST_CASE("a spawned worker that ignores SIGTERM is killed after the grace time") {
  int ready[2];
  REQUIRE(::pipe(ready) == 0);
  const auto done = spawn(2,
                          [&](int rank) -> Result<void> {
                            char byte = 'r';
                            if (rank == 1) {
                              ::signal(SIGTERM, SIG_IGN);
                              (void)::write(ready[1], &byte, 1);
                              wait_for_ever();
                            }
                            (void)::read(ready[0], &byte, 1);
                            return fail(ErrorCode::kFailed, "over");
                          },
                          {.grace = 50ms});
  REQUIRE_FALSE(done);
  REQUIRE(done.error().message == "spawn: rank 0: over");
  REQUIRE_FALSE(has_children());
  ::close(ready[0]);
  ::close(ready[1]);
}

TEST_CASE("spawned workers end with their parent") {
  int pipe[2];
  REQUIRE(::pipe(pipe) == 0);
  const pid_t parent = ::fork();
  if (parent == 0) {
    (void)spawn(2, [&](int) -> Result<void> {
      char byte = 'r';
      (void)::write(pipe[1], &byte, 1);
      wait_for_ever();
    });
    ::_exit(0);
  }
  ::close(pipe[1]);
  pollfd entry{pipe[0], POLLIN, 0};
  char byte = 0;
  for (int worker = 0; worker < 2; ++worker)
    REQUIRE((::poll(&entry, 1, 40'000) == 1 && ::read(pipe[0], &byte, 1) == 1));
  REQUIRE(::kill(parent, SIGKILL) == 0);
  REQUIRE(::waitpid(parent, nullptr, 0) == parent);
  // The pipe's end comes when nobody is left who could write to it.
  REQUIRE(::poll(&entry, 1, 40'000) == 1);
  REQUIRE(::read(pipe[0], &byte, 1) == 0);
  ::close(pipe[0]);
}

TEST_CASE("where SIGCHLD is ignored, or SIGTERM is, a spawned worker's end is seen and they stay ignored") {
  for (const int signal : {SIGCHLD, SIGTERM}) ::signal(signal, SIG_IGN);
  REQUIRE(spawn(2, work));
  const auto killed =
      spawn(2, [](int rank) { return rank == 1 ? (::raise(SIGKILL), Result<void>()) : Result<void>(); });
  for (const int signal : {SIGCHLD, SIGTERM}) REQUIRE(::signal(signal, SIG_DFL) == SIG_IGN);
  REQUIRE(killed.error().message == "spawn: rank 1 was killed by SIGKILL");
}

TEST_CASE("spawned workers that end as preempted are no failure of their own") {
  const auto done = spawn(2, [](int) -> Result<void> { ::_exit(kExitPreempted); });
  REQUIRE(done.error().code == ErrorCode::kCancelled);
}

TEST_CASE("a spawned worker that is preempted does not end one that still saves") {
  int saved[2];
  REQUIRE(::pipe(saved) == 0);
  const auto done =
      spawn(2,
            [&](int rank) -> Result<void> {
              if (rank == 1) ::_exit(kExitPreempted);
              pollfd never{-1, 0, 0};
              (void)::poll(&never, 1, 1000);  // longer than a cause is waited for, and than the grace
              (void)::write(saved[1], "s", 1);
              ::_exit(kExitPreempted);
            },
            {.grace = std::chrono::milliseconds(100)});
  REQUIRE(done.error().code == ErrorCode::kCancelled);
  pollfd entry{saved[0], POLLIN, 0};
  REQUIRE(::poll(&entry, 1, 0) == 1);
  for (const int fd : saved) ::close(fd);
}

TEST_CASE("a spawned worker has time without end to clean up if it is to have that") {
  int cleaned[2];
  REQUIRE(::pipe(cleaned) == 0);
  const auto done = spawn(2,
                          [&](int rank) -> Result<void> {
                            sigset_t set;
                            ::sigemptyset(&set);
                            ::sigaddset(&set, SIGTERM);
                            if (rank == 1) {
                              ::sigprocmask(SIG_BLOCK, &set, nullptr);
                              (void)::write(cleaned[1], "r", 1);
                              int number = 0;
                              ::sigwait(&set, &number);
                              pollfd never{-1, 0, 0};
                              (void)::poll(&never, 1, 300);
                              (void)::write(cleaned[1], "c", 1);
                              ::_exit(1);
                            }
                            char byte = 0;
                            (void)::read(cleaned[0], &byte, 1);
                            return fail(ErrorCode::kInvalidArgument, "wrong");
                          },
                          {.grace = std::chrono::milliseconds::max()});
  REQUIRE(done.error() == Error{ErrorCode::kInvalidArgument, "spawn: rank 0: wrong"});
  pollfd entry{cleaned[0], POLLIN, 0};
  REQUIRE(::poll(&entry, 1, 0) == 1);
  for (const int fd : cleaned) ::close(fd);
}

TEST_CASE("a thread that has just been joined is none that spawn refuses") {
  for (int round = 0; round < 1000; ++round) {
    pthread_t thread = 0;
    REQUIRE(::pthread_create(
                &thread, nullptr, [](void* given) { return given; }, nullptr) == 0);
    // Who looks all the time is there before the thread has left the kernel, which a join that sleeps is not.
    while (::pthread_tryjoin_np(thread, nullptr) == EBUSY) {
    }
    const auto done = spawn(1, [](int) { return Result<void>(); });
    INFO((done ? "" : done.error().message));
    REQUIRE(done);
  }
}

TEST_CASE("spawn refuses a process with a second thread, and one that has used CUDA") {
  int gate[2];
  REQUIRE(::pipe(gate) == 0);
  std::thread second([&] {
    char byte = 0;
    (void)::read(gate[0], &byte, 1);
  });
  const auto threads = spawn(1, work);
  ::close(gate[1]);
  second.join();
  ::close(gate[0]);
  REQUIRE_FALSE(threads);
  REQUIRE(threads.error().code == ErrorCode::kUnsupported);
  REQUIRE_THAT(threads.error().message, Catch::Contains("has 2 threads"));

  REQUIRE(spawn(1, [](int) { return Result<void>(); }));
  void* const driver = ::dlopen(STARTED_CUDA_DRIVER, RTLD_NOW);
  REQUIRE(driver != nullptr);
  const auto cuda = spawn(1, work);
  ::dlclose(driver);
  REQUIRE_FALSE(cuda);
  REQUIRE(cuda.error().code == ErrorCode::kUnsupported);
  REQUIRE_THAT(cuda.error().message, Catch::Contains("has used CUDA"));
  REQUIRE(spawn(0, work).error().code == ErrorCode::kInvalidArgument);
}
