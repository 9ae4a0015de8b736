// SPDX-License-Identifier: Apache-2.0
// Control groups of version 2 as the kernel has them, below a group that the test makes for itself.
#include "launcher/process/cgroup.h"

#include <cerrno>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <functional>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "launcher/process/guardian.h"
#include "rendezvous/base/syscall.h"
#include "tests/support/catch.h"
#include "tests/support/skip.h"
#include "tests/support/spawn_one.h"
#include "tests/support/temporary_directory.h"

using namespace muster;
using namespace muster::launcher;
using Catch::Matchers::Contains;

namespace {

constexpr std::chrono::seconds kTimeout{20};
constexpr const char* kNeedsGroups =
    "no control group may be made here: it needs root, or systemd-run --user --scope -p Delegate=yes";

Instant soon() {
  return SteadyClock::now() + kTimeout;
}

/// A group of its own, delegated, and removed at the end. Where version 2 is not mounted, the test mounts it
/// where nobody else sees it. A user who may not make a group skips the test.
class Delegated {
 public:
  Delegated() {
    std::string own = cgroup::own_directory();
    if (own.empty()) {
      if (::unshare(CLONE_NEWNS) != 0) skip_unless_may();
      (void)::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr);
      if (::mount("cgroup2", cgroup::kRoot, "cgroup2", 0, nullptr) != 0) skip_unless_may();
      own = cgroup::own_directory();
    }
    REQUIRE_FALSE(own.empty());
    path_ = own + "/muster-test-" + std::to_string(::getpid());
    if (::mkdir(path_.c_str(), 0755) != 0) skip_unless_may();
    REQUIRE(::setxattr(path_.c_str(), "user.delegate", "1", 1, 0) == 0);
  }
  ~Delegated() {
    cgroup::kill(path_);
    cgroup::wait_until_empty(path_, soon());
    cgroup::remove(path_);
  }
  Delegated(const Delegated&) = delete;
  Delegated& operator=(const Delegated&) = delete;

  [[nodiscard]] const std::string& path() const { return path_; }

  /// Runs `body` in a process of the group. Its exit code.
  int run(const std::function<int()>& body) const {
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      const UniqueFd group(::open((path_ + "/cgroup.procs").c_str(), O_WRONLY | O_CLOEXEC));
      ::_exit(group && write_all(group.get(), "0") ? body() : 99);
    }
    int status = 0;
    retry_eintr([&] { return ::waitpid(child, &status, 0); });
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  [[nodiscard]] std::vector<std::string> groups() const {
    std::vector<std::string> out;
    for (const auto& entry : std::filesystem::directory_iterator(path_))
      if (entry.is_directory()) out.push_back(entry.path().filename());
    return out;
  }

 private:
  /// After a call that failed: not permitted, read-only as in a container, or a kernel without version 2.
  static void skip_unless_may() {
    const int error = errno;
    if (error == EPERM || error == EACCES || error == EROFS || error == ENODEV) testing::skip(kNeedsGroups);
    INFO("errno " << error);
    FAIL("a control group cannot be made");
  }

  std::string path_;
};

struct Shell {
  StringBlock arguments, environment;
  explicit Shell(const std::string& script) {
    for (const char* text : {"sh", "-c"}) arguments.add(text);
    arguments.add(script);
    environment.add("PATH=/usr/bin:/bin");
  }
  [[nodiscard]] SpawnRequest request(int cgroup_fd, int stdout_fd = -1) const {
    return {"/bin/sh", arguments.data(), environment.data(), stdout_fd, -1, {}, cgroup_fd};
  }
};

bool reaped(const Spawned& child) {
  return retry_eintr([&] { return ::waitpid(child.pid, nullptr, 0); }) == child.pid;
}

}  // namespace

TEST_CASE("a child is started within its group, and the group's end is the end of all that it started") {
  const Delegated delegated;
  const std::string group = delegated.path() + "/worker";
  REQUIRE(::mkdir(group.c_str(), 0755) == 0);
  const UniqueFd fd(::open(group.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  int ends[2];
  REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
  const UniqueFd reader(ends[0]);
  UniqueFd writer(ends[1]);
  Spawner spawner;
  // A session of its own, no environment, no parent: nothing but the group knows it.
  const Shell shell("cat /proc/self/cgroup; env -i setsid sh -c 'echo up; exec sleep 1000' & wait");
  const auto child = spawn_one(spawner, shell.request(fd.get(), writer.get()));
  REQUIRE_OK(child);
  writer.reset();
  std::string said;
  char block[512];
  while (said.find("up\n") == std::string::npos) {
    const ssize_t n = ::read(reader.get(), block, sizeof block);
    REQUIRE(n > 0);
    said.append(block, static_cast<std::size_t>(n));
  }
  REQUIRE_THAT(said, Contains("/worker\n"));
  REQUIRE(cgroup::processes(group).size() == 2);
  REQUIRE_FALSE(cgroup::wait_until_empty(group, SteadyClock::now()));
  REQUIRE_FALSE(cgroup::remove(group));
  REQUIRE(cgroup::kill(delegated.path()));
  REQUIRE(cgroup::wait_until_empty(group, soon()));
  REQUIRE(::read(reader.get(), block, sizeof block) == 0);
  REQUIRE(reaped(*child));
  REQUIRE(cgroup::remove(group));
  REQUIRE(cgroup::wait_until_empty(group, soon()));
}

TEST_CASE("a group that is no directory of the kernel's fails the start, and no child is left") {
  Spawner spawner;
  const test::TemporaryDirectory none;
  const UniqueFd fd(::open(none.path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  REQUIRE_FALSE(spawn_one(spawner, Shell("exit 0").request(fd.get())));
  const auto child = spawn_one(spawner, Shell("exit 0").request(-1));
  REQUIRE_OK(child);
  REQUIRE(reaped(*child));
  REQUIRE(::waitpid(-1, nullptr, WNOHANG) == -1);
}

TEST_CASE(
    "the groups of a job are made, counted, cleared with what workers made in them, and gone in the end") {
  const Delegated delegated;
  REQUIRE(delegated.run([&] {
    auto guardian = Guardian::start(2);
    if (!guardian) return 1;
    {
      WorkerCgroups cgroups;
      if (!cgroups.open(CgroupMode::kAuto, "token", *guardian) || !cgroups.enabled()) return 2;
      if (cgroups.directory() != delegated.path() + "/muster-token") return 3;
      Spawner spawner;
      for (int attempt = 0; attempt < 2; ++attempt) {
        const auto group = cgroups.add(1);
        if (!group) return 4;
        const auto child = spawn_one(spawner, Shell("exec sleep 1000").request(group->get()));
        if (!child || cgroup::processes(cgroups.directory()) != std::vector<pid_t>{child->pid}) return 5;
        std::error_code failed;
        for (const auto& entry : std::filesystem::directory_iterator(cgroups.directory()))
          if (entry.is_directory()) std::filesystem::create_directory(entry.path() / "of-the-worker", failed);
        if (failed) return 6;
        const auto released = cgroups.release();
        if (cgroup::clear(released, SteadyClock::now()) != std::vector<pid_t>{child->pid}) return 7;
        cgroups.kill();
        if (!reaped(*child) || !cgroup::clear(released, soon()).empty()) return 8;
      }
      const auto group = cgroups.add(0);
      if (!group || !cgroup::clear(cgroups.release(), soon()).empty()) return 9;
    }
    return delegated.groups().empty() ? 0 : 10;
  }) == 0);
}

TEST_CASE("when its owner is killed the guardian ends the groups and removes them") {
  const Delegated delegated;
  REQUIRE(delegated.run([&] {
    auto guardian = Guardian::start(1);
    WorkerCgroups cgroups;
    if (!cgroups.open(CgroupMode::kRequired, "token", *guardian) || !cgroups.enabled()) return 1;
    const auto group = cgroups.add(0);
    Spawner spawner;
    if (!group || !spawn_one(spawner, Shell("env -i setsid sleep 1000 & wait").request(group->get())))
      return 2;
    ::raise(SIGKILL);
    return 3;
  }) == 128 + SIGKILL);
  REQUIRE(cgroup::wait_until_empty(delegated.path(), soon()));  // the guardian is in it too
  REQUIRE(delegated.groups().empty());
}

TEST_CASE("root takes no group that somebody else manages, unless told to") {
  REQUIRE_THAT(why_not_delegated("", true).value_or(""), Contains("no control groups of version 2"));
  const Delegated delegated;
  REQUIRE_FALSE(why_not_delegated(delegated.path(), false));
  REQUIRE(::removexattr(delegated.path().c_str(), "user.delegate") == 0);
  if (::geteuid() == 0)
    REQUIRE_THAT(why_not_delegated(delegated.path(), false).value_or(""),
                 Contains("was not delegated to muster"));
  REQUIRE_FALSE(why_not_delegated(delegated.path(), true));
}
