// SPDX-License-Identifier: Apache-2.0
// Real children: spawn, guardian, stderr channels, worker groups.
#include <atomic>
#include <fcntl.h>
#include <malloc.h>
#include <memory>
#include <poll.h>
#include <signal.h>
#include <string>
#include <sys/resource.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include "launcher/hardware/cores.h"
#include "launcher/hardware/topology.h"
#include "launcher/output/log_router.h"
#include "launcher/process/descendants.h"
#include "launcher/process/guardian.h"
#include "launcher/process/helper_process.h"
#include "launcher/process/worker_group.h"
#include "rendezvous/base/clock.h"
#include "rendezvous/base/syscall.h"
#include "tests/support/catch.h"
#include "tests/support/spawn_one.h"
#include "tests/support/temporary_directory.h"

using namespace muster;
using namespace muster::launcher;

namespace {

std::size_t open_descriptors() {
  std::size_t count = 0;
  for (int fd = 0; fd < 1024; ++fd) count += ::fcntl(fd, F_GETFD) >= 0 ? 1 : 0;
  return count;
}

/// Everything until end of file, or a failure after 20 s of silence.
std::string read_all(int fd) {
  std::string out;
  char block[4096];
  while (true) {
    pollfd wait{fd, POLLIN, 0};
    REQUIRE(::poll(&wait, 1, 20'000) == 1);
    const ssize_t n = ::read(fd, block, sizeof block);
    if (n <= 0) return out;
    out.append(block, static_cast<std::size_t>(n));
  }
}

int exit_code(const Spawned& child) {
  pollfd wait{child.pidfd.get(), POLLIN, 0};
  REQUIRE(::poll(&wait, 1, 20'000) == 1);
  siginfo_t info{};
  REQUIRE(::waitid(static_cast<idtype_t>(P_PIDFD), static_cast<id_t>(child.pidfd.get()), &info, WEXITED) ==
          0);
  return info.si_code == CLD_EXITED ? info.si_status : 128 + info.si_status;
}

struct Shell {
  explicit Shell(const char* script) {
    for (const char* text : {"sh", "-c", script}) arguments.add(text);
    environment.add("PATH=/usr/bin:/bin");
  }
  [[nodiscard]] SpawnRequest request(int out = -1, int err = -1) const {
    return {"/bin/sh", arguments.data(), environment.data(), out, err};
  }
  StringBlock arguments, environment;
};

struct Pipe {
  Pipe() {
    int ends[2];
    REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
    reader.reset(ends[0]);
    writer.reset(ends[1]);
  }
  UniqueFd reader, writer;
};

}  // namespace

TEST_CASE("a child gets its arguments, environment and descriptors, and its exit is learnt from the pidfd") {
  const std::size_t before = open_descriptors();
  {
    Shell shell("echo $0 $X; echo err >&2; exit 7");
    shell.arguments.add("name");
    shell.environment.add("X=value");
    Pipe out, err;
    Spawner spawner;
    auto child = spawn_one(spawner, shell.request(out.writer.get(), err.writer.get()));
    REQUIRE_OK(child);
    out.writer.reset();
    err.writer.reset();
    REQUIRE(read_all(out.reader.get()) == "name value\n");
    REQUIRE(read_all(err.reader.get()) == "err\n");
    REQUIRE(exit_code(*child) == 7);
  }
  REQUIRE(open_descriptors() == before);
}

TEST_CASE("a program that cannot be executed is an error with the system's reason and leaves nothing") {
  const std::size_t before = open_descriptors();
  {
    const Shell shell("");
    Spawner spawner;
    SpawnRequest request = shell.request();
    request.path = "/no/such/program";
    auto missing = spawn_one(spawner, request);
    REQUIRE_FALSE(missing);
    REQUIRE(missing.error().code == ErrorCode::kNotFound);
    REQUIRE(missing.error().message == "execute /no/such/program: No such file or directory (ENOENT)");
    request.path = "/etc/passwd";
    auto plain = spawn_one(spawner, request);
    REQUIRE_FALSE(plain);
    REQUIRE(plain.error().code == ErrorCode::kUnsupported);
    REQUIRE(spawn_one(spawner, shell.request()));
    REQUIRE(::wait(nullptr) > 0);
  }
  REQUIRE(::waitpid(-1, nullptr, WNOHANG) == -1);
  REQUIRE(errno == ECHILD);
  REQUIRE(open_descriptors() == before);
}

TEST_CASE("a child is on its CPUs and has its memory policy before it executes") {
  const CpuSet mask = current_affinity();
  REQUIRE_FALSE(mask.empty());
  const auto topology = read_topology(mask);
  REQUIRE_OK(topology);
  const Binding binding{to_mask({mask.back()}),
                        topology->memory_policy ? to_mask({0}) : std::vector<unsigned long>()};
  const Shell shell("grep Cpus_allowed_list /proc/self/status; head -n 1 /proc/self/numa_maps");
  Pipe out;
  Spawner spawner;
  SpawnRequest request = shell.request(out.writer.get());
  request.binding = &binding;
  auto child = spawn_one(spawner, request);
  REQUIRE_OK(child);
  out.writer.reset();
  const std::string text = read_all(out.reader.get());
  REQUIRE_THAT(text, Catch::Contains("Cpus_allowed_list:\t" + std::to_string(mask.back()) + "\n"));
  if (topology->memory_policy && ::access("/proc/self/numa_maps", R_OK) == 0)
    REQUIRE_THAT(text, Catch::Contains(" prefer:0 ") || Catch::Contains(" prefer=0 "));
  REQUIRE(exit_code(*child) == 0);
  REQUIRE(current_affinity() == mask);  // the parent stays where it was
}

TEST_CASE("a binding that the kernel refuses is an error that names the call") {
  const Binding nowhere{{0}, {}};
  const Shell shell("");
  Spawner spawner;
  SpawnRequest request = shell.request();
  request.binding = &nowhere;
  const auto child = spawn_one(spawner, request);
  REQUIRE_FALSE(child);
  REQUIRE_THAT(child.error().message, Catch::Contains("sched_setaffinity /bin/sh: Invalid argument"));
}

TEST_CASE("many children on all slots at once get what was meant for them") {
  constexpr std::size_t kChildren = 64;
  Spawner spawner;
  std::vector<std::unique_ptr<Shell>> shells;
  std::vector<Spawned> children;
  for (std::size_t i = 0; i < kChildren; ++i) {
    const std::size_t slot = i % Spawner::kSlots;
    REQUIRE_OK(spawner.wait_exec(slot));
    shells.push_back(std::make_unique<Shell>("exit $CODE"));
    shells.back()->environment.add("CODE=" + std::to_string(i + 1));
    auto child = spawner.begin(slot, shells.back()->request());
    REQUIRE_OK(child);
    children.push_back(std::move(*child));
  }
  for (std::size_t slot = 0; slot < Spawner::kSlots; ++slot) REQUIRE_OK(spawner.wait_exec(slot));
  for (std::size_t i = 0; i < kChildren; ++i) REQUIRE(exit_code(children[i]) == static_cast<int>(i + 1));
}

TEST_CASE("a failed exec on one slot is told apart from its neighbours") {
  Spawner spawner;
  const Shell shell("exit 0");
  SpawnRequest bad = shell.request();
  bad.path = "/no/such/program";
  auto first = spawner.begin(0, shell.request());
  auto second = spawner.begin(1, bad);
  auto third = spawner.begin(2, shell.request());
  REQUIRE((first && second && third));
  REQUIRE_OK(spawner.wait_exec(0));
  REQUIRE_FALSE(spawner.wait_exec(1));
  REQUIRE_OK(spawner.wait_exec(2));
  REQUIRE(exit_code(*first) == 0);
  REQUIRE(exit_code(*second) == 127);
  REQUIRE(exit_code(*third) == 0);
}

TEST_CASE("a child starts with default signals, none blocked, in its own session, with three descriptors") {
  struct sigaction old {};
  struct sigaction ignore {};
  ignore.sa_handler = SIG_IGN;
  REQUIRE(::sigaction(SIGUSR2, &ignore, &old) == 0);
  struct sigaction handled {};
  handled.sa_handler = [](int) {};
  struct sigaction old_usr1 {};
  REQUIRE(::sigaction(SIGUSR1, &handled, &old_usr1) == 0);
  sigset_t block, before;
  ::sigemptyset(&block);
  ::sigaddset(&block, SIGTERM);
  ::sigprocmask(SIG_BLOCK, &block, &before);
  {
    const UniqueFd inheritable(::open("/dev/null", O_RDONLY));
    Shell shell(
        "grep -E 'SigBlk|SigIgn|SigCgt' /proc/self/status; ls /proc/self/fd | wc -l; ps -o sid= -p $$ | tr "
        "-d ' '; echo $$");
    Pipe out;
    Spawner spawner;
    auto child = spawn_one(spawner, shell.request(out.writer.get()));
    REQUIRE_OK(child);
    out.writer.reset();
    const std::string text = read_all(out.reader.get());
    INFO(text);
    REQUIRE_THAT(text, Catch::Contains("SigBlk:\t0000000000000000\n"));
    REQUIRE_THAT(text, Catch::Contains("SigIgn:\t0000000000000000\n"));
    const std::string pid = std::to_string(child->pid);
    REQUIRE_THAT(text, Catch::EndsWith("\n4\n" + pid + "\n" + pid + "\n"));  // 0, 1, 2 and the listing's own
    REQUIRE(exit_code(*child) == 0);
  }
  ::sigprocmask(SIG_SETMASK, &before, nullptr);
  ::sigaction(SIGUSR2, &old, nullptr);
  ::sigaction(SIGUSR1, &old_usr1, nullptr);
}

#ifndef MUSTER_SANITIZED  // their check of virtual tables opens a pipe, for which there is no descriptor
TEST_CASE("a guardian that cannot be started is an error, and closes nothing of others") {
  rlimit limit{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &limit) == 0);
  const rlimit none{3, limit.rlim_max};  // no descriptor more than those that are open
  const std::size_t before = open_descriptors();
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &none) == 0);
  const auto guardian = Guardian::start(1);
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &limit) == 0);
  REQUIRE_FALSE(guardian);
  CHECK_THAT(guardian.error().message, Catch::Contains("guardian"));
  CHECK(open_descriptors() == before);
}
#endif

TEST_CASE("the guardian kills registered groups when its owner dies without a goodbye") {
  Pipe alive;  // held by the grandchild only: end of file means that it is gone
  Pipe ready;
  const pid_t owner = ::fork();
  if (owner == 0) {
    auto guardian = Guardian::start(4);
    if (!guardian) ::_exit(1);
    Spawner spawner;
    // Not through the parent-death signal: the child's own child does not have it.
    Shell parent("sleep 1000 & echo started; wait");
    auto child = spawn_one(spawner, parent.request(alive.writer.get()));
    if (!child) ::_exit(1);
    guardian->watch(2, child->pid);
    (void)write_all(ready.writer.get(), "x");
    ::pause();
    ::_exit(0);
  }
  alive.writer.reset();
  ready.writer.reset();
  char byte = 0;
  REQUIRE(::read(ready.reader.get(), &byte, 1) == 1);
  char started[8];
  REQUIRE(::read(alive.reader.get(), started, sizeof started) == 8);
  ::kill(owner, SIGKILL);
  ::waitpid(owner, nullptr, 0);
  REQUIRE(read_all(alive.reader.get()).empty());
}

TEST_CASE("orphans are ended with their children, and a child that was there before is left alone") {
  Pipe ours;    // held by what is to be ended: end of file means that it is gone
  Pipe theirs;  // held by what was there before
  Pipe answer;
  const pid_t owner = ::fork();
  if (owner == 0) {
    ours.reader.reset();
    theirs.reader.reset();
    Spawner spawner;
    Shell before("exec sleep 1000");
    const auto child = spawn_one(spawner, before.request(theirs.writer.get()));
    if (!child) ::_exit(1);
    theirs.writer.reset();
    const Descendants descendants("a-token");
    Shell worker("(setsid sh -c 'sleep 1000 & echo up; wait' & ) ; exit 0");
    worker.environment.add("MUSTER_LINEAGE=x:a-token");
    const auto started = spawn_one(spawner, worker.request(ours.writer.get()));
    ours.writer.reset();
    if (!started || exit_code(*started) != 0) ::_exit(2);
    char byte = 0;
    if (::read(answer.reader.get(), &byte, 1) != 1) ::_exit(3);
    const auto left = descendants.end([](pid_t) { return false; }, SteadyClock::now() + Millis(20'000));
    (void)write_all(answer.writer.get(), left.empty() && ::kill(child->pid, 0) == 0 ? "y" : "n");
    ::pause();
  }
  ours.writer.reset();
  theirs.writer.reset();
  char up[3];
  REQUIRE(::read(ours.reader.get(), up, sizeof up) == 3);
  (void)write_all(answer.writer.get(), "g");
  REQUIRE(read_all(ours.reader.get()).empty());
  char verdict = 0;
  REQUIRE(::read(answer.reader.get(), &verdict, 1) == 1);
  REQUIRE(verdict == 'y');
  pollfd silent{theirs.reader.get(), POLLIN, 0};
  REQUIRE(::poll(&silent, 1, 0) == 0);
  ::kill(owner, SIGKILL);  // its child has SIGKILL for the death of its parent
  ::waitpid(owner, nullptr, 0);
  REQUIRE(read_all(theirs.reader.get()).empty());
}

TEST_CASE("a worker that ends late, when orphans are reaped, is left to its group") {
  const pid_t owner = ::fork();
  if (owner == 0) {
    Descendants descendants("");
    auto guardian = Guardian::start(1);
    if (!guardian) ::_exit(1);
    descendants.spare(guardian->pid());
    boost::asio::io_context io(1);
    WorkerCgroups cgroups;
    int code = -1;
    WorkerGroup group(io, *guardian, cgroups, 1, [&](int, const ProcessEnd& end, bool) { code = end.code; });
    Job job;
    job.command = {"/bin/sh", {"sh", "-c", "exit 3"}, "sh"};
    const auto nowhere = [](int) { return std::string(); };
    const WorkerFiles files{[](int) { return Result<WorkerStreams>(WorkerStreams{}); }, [](int) {}, nowhere,
                            nowhere};
    Spawner spawner;
    if (group.start(spawner, job, Assignment{}, {{"PATH", "/usr/bin:/bin"}}, files)) ::_exit(2);
    // As one in uninterruptible sleep, long after its SIGKILL: it has ended, and the loop does not know yet.
    siginfo_t info{};
    if (::waitid(P_PID, static_cast<id_t>(group.pid(0)), &info, WEXITED | WNOWAIT) != 0) ::_exit(3);
    const auto is_worker = [&](pid_t pid) { return group.owns(pid); };
    descendants.reap(is_worker);
    if (!descendants.end(is_worker, SteadyClock::now()).empty()) ::_exit(4);
    io.run_one_for(std::chrono::seconds(20));
    ::_exit(code == 3 ? 0 : 5);
  }
  int status = -1;
  REQUIRE(::waitpid(owner, &status, 0) == owner);
  REQUIRE(status == 0);
}

TEST_CASE("processes with the token are ended wherever they are, and others are not") {
  const std::string token = "token-of-" + std::to_string(::getpid());
  Pipe ours;
  Pipe theirs;
  Spawner spawner;
  Shell marked("setsid sh -c 'echo up; exec sleep 1000' & exec sleep 1000");
  marked.environment.add("MUSTER_LINEAGE=" + token);
  const Shell plain("exec sleep 1000");
  const auto first = spawn_one(spawner, marked.request(ours.writer.get()));
  const auto other = spawn_one(spawner, plain.request(theirs.writer.get()));
  REQUIRE((first && other));
  ours.writer.reset();
  theirs.writer.reset();
  char up[3];
  REQUIRE(::read(ours.reader.get(), up, sizeof up) == 3);
  end_by_token(token);
  REQUIRE(read_all(ours.reader.get()).empty());
  REQUIRE(exit_code(*first) == 128 + SIGKILL);
  pollfd silent{theirs.reader.get(), POLLIN, 0};
  REQUIRE(::poll(&silent, 1, 0) == 0);
  ::kill(other->pid, SIGKILL);
  REQUIRE(exit_code(*other) == 128 + SIGKILL);
}

TEST_CASE("a guardian that is sent home kills nobody and is reaped") {
  Spawner spawner;
  const Shell shell("exit 5");
  auto child = spawn_one(spawner, shell.request());
  REQUIRE_OK(child);
  {
    auto guardian = Guardian::start(1);
    REQUIRE_OK(guardian);
    guardian->watch(0, child->pid);
  }
  REQUIRE(exit_code(*child) == 5);
  REQUIRE(::waitpid(-1, nullptr, WNOHANG) == -1);
}

TEST_CASE("an exec that does not come back is an error in time, and its child is ended") {
  const test::TemporaryDirectory directory;
  const std::string path = directory.path() + "/program";
  const UniqueFd file(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0700));
  REQUIRE(file);
  // Whoever opens the file waits until the holder of this lease gives it up, as for a file system that does
  // not answer.
  ::signal(SIGIO, SIG_IGN);
  REQUIRE(::fcntl(file.get(), F_SETLEASE, F_WRLCK) == 0);
  const Shell shell("");
  SpawnRequest request = shell.request();
  request.path = path.c_str();
  {
    Spawner spawner({}, Millis(50));
    const auto child = spawn_one(spawner, request);
    REQUIRE_FALSE(child);
    REQUIRE(child.error().code == ErrorCode::kTimeout);
    REQUIRE(child.error().message == "execute " + path + ": no answer from its file system for 0.05 s");
    auto next = spawn_one(spawner, shell.request());
    REQUIRE_OK(next);
    REQUIRE(exit_code(*next) == 0);
  }
  REQUIRE(::waitpid(-1, nullptr, WNOHANG) == -1);
  ::signal(SIGIO, SIG_DFL);
}

TEST_CASE("a helper may allocate memory whatever threads run here, and has no descriptor of ours") {
  ::mallopt(M_ARENA_MAX, 1);  // all threads take turns at one lock
  std::atomic<bool> over{false};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([&over] {
      while (!over) std::make_unique<std::string>(5000, 'x')->append(5000, 'y');
    });
  const Pipe pipe;
  std::vector<std::string> said;
  for (int i = 0; i < 100; ++i) {
    const auto helper = HelperProcess::start({.name = "test-helper"}, [](int channel) {
      std::string text;
      for (int fd = 0; fd < 100; ++fd)
        if (::fcntl(fd, F_GETFD) >= 0) text += std::to_string(fd) + std::string(1, ' ');
      text += ::getsid(0) == ::getpid() ? "own" : "same";
      (void)write_all(channel, text);
    });
    if (!helper) break;
    pollfd answer{helper->channel(), POLLIN, 0};
    if (::poll(&answer, 1, 20'000) != 1) break;
    char block[100];
    const ssize_t n = ::read(helper->channel(), block, sizeof block);
    if (n > 0) said.emplace_back(block, static_cast<std::size_t>(n));
  }
  over = true;
  for (std::thread& thread : threads) thread.join();
  REQUIRE(said == std::vector<std::string>(100, "0 1 2 own"));
}

TEST_CASE("a stderr channel imitates a terminal where there is one and is a pipe elsewhere") {
  auto pipe = open_output_channel(-1);
  REQUIRE_OK(pipe);
  REQUIRE(::isatty(pipe->writer.get()) == 0);
  REQUIRE((::fcntl(pipe->reader.get(), F_GETFL) & O_NONBLOCK) != 0);
  REQUIRE((::fcntl(pipe->writer.get(), F_GETFL) & O_NONBLOCK) == 0);

  const UniqueFd terminal(::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC));
  REQUIRE(terminal);
  auto imitation = open_output_channel(terminal.get());
  REQUIRE_OK(imitation);
  REQUIRE(::isatty(imitation->writer.get()) == 1);
  REQUIRE((::fcntl(imitation->writer.get(), F_GETFL) & O_NONBLOCK) == 0);
  REQUIRE(::write(imitation->writer.get(), "a\nb", 3) == 3);
  imitation->writer.reset();
  REQUIRE(read_all(imitation->reader.get()) == "a\nb");
}
