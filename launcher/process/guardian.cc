// SPDX-License-Identifier: Apache-2.0
#include "launcher/process/guardian.h"

#include <fcntl.h>
#include <filesystem>
#include <linux/close_range.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <utility>

#include "launcher/process/cgroup.h"
#include "launcher/process/descendants.h"
#include "launcher/text/process_title.h"
#include "rendezvous/base/syscall.h"

namespace muster::launcher {
namespace {

constexpr std::size_t kDirectoryBytes = 4096;
constexpr std::chrono::seconds kCgroupPatience{5};
constexpr char kGoodbye = 'b';

/// After fork. The process had one thread, so that the library may be used here.
[[noreturn]] void keep_watch(int lifeline, int other_end, const char* directory, const char* cgroup,
                             volatile pid_t* groups, std::size_t slots, const std::string& token) {
  ::close(other_end);
  ::setsid();
  set_process_title("job-guardian");
  sigset_t all;
  ::sigfillset(&all);
  ::sigprocmask(SIG_SETMASK, &all, nullptr);
  ::dup2(lifeline, 0);
  ::syscall(SYS_close_range, 1U, ~0U, 0U);
  char byte = 0;
  const ssize_t n = retry_eintr([&] { return ::read(0, &byte, 1); });
  if (n == 1 && byte == kGoodbye) ::_exit(0);
  if (cgroup[0] != '\0') cgroup::kill(cgroup);
  for (std::size_t i = 0; i < slots; ++i)
    if (const pid_t group = groups[i]; group > 1) ::kill(-group, SIGKILL);
  end_by_token(token);
  if (cgroup[0] != '\0') {
    cgroup::wait_until_empty(cgroup, SteadyClock::now() + kCgroupPatience);
    cgroup::remove(cgroup);
  }
  std::error_code ignored;
  if (directory[0] != '\0') std::filesystem::remove_all(directory, ignored);
  ::_exit(0);
}

}  // namespace

Result<Guardian> Guardian::start(std::size_t slots, const std::string& token) {
  Guardian out;
  out.slots_ = slots;
  out.token_ = token;
  void* shared =
      ::mmap(nullptr, out.shared_bytes(), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) return fail(errno_error("mmap for the guardian", errno));
  out.directory_ = static_cast<char*>(shared);
  out.groups_ = reinterpret_cast<volatile pid_t*>(out.directory_ + 2 * kDirectoryBytes);
  out.cgroup_ = out.directory_ + kDirectoryBytes;
  MUSTER_OK(out.fork_keeper());
  return out;
}

Result<void> Guardian::replace() {
  retry_eintr([&] { return ::waitpid(pid_, nullptr, __WALL); });
  pid_ = -1;
  return fork_keeper();
}

Result<void> Guardian::fork_keeper() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return fail(errno_error("pipe for the guardian", errno));
  const UniqueFd reader(ends[0]);
  lifeline_.reset(ends[1]);
  // fork(2), but for the signal at its end: this child is not one of those whose ends the agent looks for.
  // Nor must a signal find it with the agent's handlers, which would tell the agent of it.
  sigset_t all, before;
  ::sigfillset(&all);
  ::sigprocmask(SIG_SETMASK, &all, &before);
  pid_ = static_cast<pid_t>(::syscall(SYS_clone, 0UL, nullptr, nullptr, nullptr, 0UL));
  const int clone_errno = errno;
  if (pid_ != 0) ::sigprocmask(SIG_SETMASK, &before, nullptr);
  if (pid_ < 0) return fail(errno_error("fork the guardian", clone_errno));
  if (pid_ == 0) keep_watch(reader.get(), ends[1], directory_, cgroup_, groups_, slots_, token_);
  return {};
}

Guardian::Guardian(Guardian&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)),
      token_(std::move(other.token_)),
      lifeline_(std::move(other.lifeline_)),
      directory_(std::exchange(other.directory_, nullptr)),
      cgroup_(std::exchange(other.cgroup_, nullptr)),
      groups_(std::exchange(other.groups_, nullptr)),
      slots_(other.slots_) {}

Guardian::~Guardian() {
  if (pid_ > 0) {
    (void)write_all(lifeline_.get(), std::string_view(&kGoodbye, 1));
    lifeline_.reset();
    retry_eintr([&] { return ::waitpid(pid_, nullptr, __WALL); });
  }
  if (directory_ != nullptr) ::munmap(directory_, shared_bytes());
}

std::size_t Guardian::shared_bytes() const {
  return 2 * kDirectoryBytes + slots_ * sizeof(pid_t);
}

void Guardian::remove_afterwards(const std::string& directory) {
  if (directory.size() < kDirectoryBytes) directory.copy(directory_, kDirectoryBytes - 1);
}

void Guardian::end_cgroup(const std::string& directory) {
  if (directory.size() < kDirectoryBytes) directory.copy(cgroup_, kDirectoryBytes - 1);
}

void Guardian::watch(std::size_t slot, pid_t group) {
  groups_[slot] = group;
}
void Guardian::forget(std::size_t slot) {
  groups_[slot] = 0;
}

}  // namespace muster::launcher
