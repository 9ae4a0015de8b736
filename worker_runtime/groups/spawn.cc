// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <filesystem>
#include <iostream>
#include <optional>
#include <poll.h>
#include <string>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include <utility>
#include <vector>

#include <climits>
#include <fmt/format.h>

#include <muster/preemption.h>
#include <muster/spawn.h>
#include <muster/store_server.h>

#include "rendezvous/base/clock.h"
#include "rendezvous/base/env_contract.h"
#include "rendezvous/base/fail.h"
#include "rendezvous/base/syscall.h"
#include "rendezvous/base/unique_fd.h"

namespace muster {
namespace {

constexpr std::size_t kMaxText = 32'000;  // fits a socket's buffer: who reports does not wait
// After a failure that another one explains: the worker that has that one may still be ending.
constexpr Millis kCauseWait{500};

/// Of several failures the least is the cause. A worker that fails writes it before its text.
struct Cause {
  enum Kind : std::int64_t { kSignal, kOwn, kPeerGone, kPreempted } kind = kOwn;
  std::int64_t time_ns = SteadyClock::now().time_since_epoch().count();
  ErrorCode code = ErrorCode::kFailed;
  auto operator<=>(const Cause&) const = default;
};

struct RankFailure {
  Cause cause;
  std::string text;
};

struct SpawnedWorker {
  pid_t pid = -1;
  UniqueFd pidfd;
  UniqueFd channel;  // brings it the store's port, and brings back its report
};

/// As long as this object lives SIGCHLD is not ignored, and SIGTERM and SIGUSR1, with which a job is
/// preempted, are read from a descriptor unless this program handles or ignores them.
class SpawnSignals {
 public:
  SpawnSignals() {
    struct sigaction by_default {};
    ::sigaction(SIGCHLD, &by_default, &child_before_);
    sigset_t signals;
    ::sigemptyset(&signals);
    for (const int signal : {SIGTERM, SIGUSR1}) {
      struct sigaction action {};
      ::sigaction(signal, nullptr, &action);
      if (action.sa_handler == SIG_DFL) ::sigaddset(&signals, signal);
    }
    ::pthread_sigmask(SIG_BLOCK, &signals, &before_);
    fd_.reset(::signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK));
    if (!fd_) unblock();  // nobody could read them
  }
  SpawnSignals(const SpawnSignals&) = delete;
  SpawnSignals& operator=(const SpawnSignals&) = delete;
  ~SpawnSignals() {
    unblock();
    ::sigaction(SIGCHLD, &child_before_, nullptr);
  }

  void unblock() const { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  int fd() const { return fd_.get(); }
  void pass_on(const std::vector<SpawnedWorker>& workers) const {
    signalfd_siginfo come{};
    while (::read(fd_.get(), &come, sizeof come) == sizeof come)
      for (const SpawnedWorker& worker : workers)
        if (worker.pid > 1) ::kill(worker.pid, static_cast<int>(come.ssi_signo));
  }

 private:
  sigset_t before_{};
  struct sigaction child_before_ {};
  UniqueFd fd_;
};

/// Without those that are joined already and still on their way out of the kernel.
int count_threads() {
  constexpr unsigned kExiting = 4;  // PF_EXITING of the kernel's sched.h
  int threads = 0;
  std::error_code error;
  for (std::filesystem::directory_iterator at("/proc/self/task", error), end; at != end;
       at.increment(error)) {
    const std::string stat = read_file(at->path() / "stat", 4096).value_or("");
    unsigned flags = kExiting;
    (void)std::sscanf(stat.c_str() + stat.find_last_of(')') + 1, " %*c %*d %*d %*d %*d %*d %u", &flags);
    threads += (flags & kExiting) == 0 ? 1 : 0;
  }
  return threads;
}

/// kUnsupported: why a copy of this process would not work.
Result<void> check_can_fork() {
  const int threads = count_threads();
  if (threads > 1)
    return fail(ErrorCode::kUnsupported,
                "spawn: this process has {} threads, of which a worker would have one only; call spawn() "
                "before anything that starts threads (groups, data loaders, OpenMP)",
                threads);
  // Only if it is loaded: the driver then says whether it was started.
  constexpr int kNotInitialized = 3;  // CUDA_ERROR_NOT_INITIALIZED
  void* const driver = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  const auto count =
      driver == nullptr ? nullptr : reinterpret_cast<int (*)(int*)>(::dlsym(driver, "cuDeviceGetCount"));
  int devices = 0;
  if (count == nullptr || count(&devices) == kNotInitialized) return {};
  return fail(ErrorCode::kUnsupported,
              "spawn: this process has used CUDA, which does not work in copies of it; call spawn() first "
              "and use CUDA in the workers only");
}

void set_environment(int rank, int nprocs, std::uint16_t port) {
  const std::pair<std::string_view, std::string> variables[] = {
      {env::kRank, std::to_string(rank)},
      {env::kLocalRank, std::to_string(rank)},
      {env::kWorldSize, std::to_string(nprocs)},
      {env::kLocalWorldSize, std::to_string(nprocs)},
      {env::kMasterAddr, "127.0.0.1"},
      {env::kMasterPort, std::to_string(port)},
      {env::kUseAgentStore, "True"} /* the parent serves it */};
  for (const auto& [name, value] : variables) ::setenv(name.data(), value.c_str(), 1);
  // If there is a launcher, its worker is the parent.
  for (const std::string_view name :
       {env::kRestartCount, env::kProgressFile, env::kSafePointFile, env::kErrorFile})
    ::unsetenv(name.data());
}

[[noreturn]] void run_worker(int rank, int nprocs, const UniqueFd& channel,
                             const std::function<Result<void>(int)>& fn) {
  std::uint16_t port = 0;
  // Nothing to read: the parent could not start everybody.
  if (retry_eintr([&] { return ::read(channel.get(), &port, sizeof port); }) != sizeof port) ::_exit(0);
  set_environment(rank, nprocs, port);
  std::optional<Error> failure;
  try {
    if (auto done = fn(rank); !done) failure = std::move(done).error();
  } catch (const std::exception& error) {
    failure = Error{ErrorCode::kFailed, error.what()};
  } catch (...) {
    failure = Error{ErrorCode::kFailed, "an exception of an unknown type"};
  }
  if (failure) {
    const Cause cause{.kind = failure->code == ErrorCode::kPeerGone ? Cause::kPeerGone : Cause::kOwn,
                      .code = failure->code == ErrorCode::kCancelled ? ErrorCode::kFailed : failure->code};
    std::string bytes(reinterpret_cast<const char*>(&cause), sizeof cause);
    (void)write_all(channel.get(), bytes + failure->message.substr(0, kMaxText));
  }
  std::cout.flush();
  std::fflush(nullptr);
  ::_exit(failure ? 1 : 0);
}

Result<SpawnedWorker> start_worker(int rank, int nprocs, const std::vector<SpawnedWorker>& others,
                                   const SpawnSignals& signals, const std::function<Result<void>(int)>& fn) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
    return fail(errno_error("spawn: socketpair", errno));
  SpawnedWorker worker;
  worker.channel.reset(ends[0]);
  UniqueFd childs_end(ends[1]);
  const pid_t parent = ::getpid();
  // A signal that comes before the worker has taken the default handler must not run this program's in it.
  sigset_t all, own;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_BLOCK, &all, &own);
  worker.pid = ::fork();
  if (worker.pid != 0) ::pthread_sigmask(SIG_SETMASK, &own, nullptr);
  if (worker.pid < 0) return fail(errno_error(fmt::format("spawn: fork rank {}", rank), errno));
  if (worker.pid == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(0);
    worker.channel.reset();
    for (const SpawnedWorker& other : others) ::close(other.channel.get()), ::close(other.pidfd.get());
    ::signal(SIGTERM, SIG_DFL);
    signals.unblock();
    run_worker(rank, nprocs, childs_end, fn);
  }
  worker.pidfd = open_pidfd(worker.pid);
  return worker;
}

/// Of a worker that has ended; reaps it.
std::optional<RankFailure> failure_of(int rank, const SpawnedWorker& worker) {
  int status = 0;
  const pid_t reaped = retry_eintr([&] { return ::waitpid(worker.pid, &status, 0); });
  const auto failed = [&](const Cause& cause, std::string_view how) {
    return RankFailure{cause, fmt::format("spawn: rank {}{}", rank, how)};
  };
  if (reaped != worker.pid) return failed({}, " was reaped elsewhere in this program; its end is unknown");
  if (WIFSIGNALED(status)) {
    const char* name = ::sigabbrev_np(WTERMSIG(status));
    return failed({Cause::kSignal}, fmt::format(" was killed by SIG{}", name == nullptr ? "?" : name));
  }
  if (WEXITSTATUS(status) == 0) return std::nullopt;
  Cause cause;
  std::string bytes(sizeof cause + kMaxText, '\0');
  // Not blocking: it may have children of its own that hold the other end.
  const ssize_t n =
      retry_eintr([&] { return ::recv(worker.channel.get(), bytes.data(), bytes.size(), MSG_DONTWAIT); });
  if (n < static_cast<ssize_t>(sizeof cause)) {
    if (WEXITSTATUS(status) == kExitPreempted)
      cause = {.kind = Cause::kPreempted, .code = ErrorCode::kCancelled};
    return failed(cause, fmt::format(" exited with code {}", WEXITSTATUS(status)));
  }
  std::memcpy(&cause, bytes.data(), sizeof cause);
  bytes.resize(static_cast<std::size_t>(n));
  return failed(cause, ": " + bytes.substr(sizeof cause));
}

/// Blocks until every worker has ended; the failure that was the cause of the others.
std::optional<RankFailure> wait_for_all(std::vector<SpawnedWorker>& workers, const SpawnSignals& signals,
                                        Millis grace) {
  std::optional<RankFailure> first;
  std::optional<Instant> deadline;  // of `signal` for those that still run
  int signal = SIGTERM;
  for (std::size_t running = workers.size(); running > 0;) {
    std::vector<pollfd> entries;
    entries.reserve(workers.size());
    for (const SpawnedWorker& worker : workers) entries.push_back({worker.pidfd.get(), POLLIN, 0});
    entries.push_back({signals.fd(), POLLIN, 0});
    const Millis left = deadline ? time_left(*deadline, SteadyClock::now()) : Millis(-1);
    (void)::poll(entries.data(), entries.size(),
                 static_cast<int>(std::min<std::int64_t>(left.count(), INT_MAX)));
    signals.pass_on(workers);
    for (std::size_t i = 0; i < workers.size(); ++i) {
      if (entries[i].revents == 0) continue;
      auto failure = failure_of(static_cast<int>(i), workers[i]);
      workers[i] = SpawnedWorker{};
      --running;
      // Who fails after SIGTERM was ended by it.
      if (failure && signal == SIGTERM && (!first || failure->cause < first->cause))
        first = std::move(failure);
    }
    if (first && first->cause.kind != Cause::kPreempted && !deadline && signal == SIGTERM)
      deadline = SteadyClock::now() + kCauseWait;
    const bool is_known = first && signal == SIGTERM && first->cause.kind != Cause::kPeerGone;
    if (!deadline || (!is_known && SteadyClock::now() < *deadline)) continue;
    for (const SpawnedWorker& worker : workers)
      if (worker.pid > 1) ::kill(worker.pid, signal);
    if (signal == SIGTERM)
      deadline = after(grace);
    else
      deadline.reset();
    signal = SIGKILL;
  }
  return first;
}

}  // namespace

Result<void> spawn(int nprocs, const std::function<Result<void>(int rank)>& fn, const SpawnOptions& options) {
  if (nprocs < 1) return invalid("spawn of {} workers: at least one", nprocs);
  MUSTER_OK(check_can_fork());
  // What is buffered would be written by every worker.
  std::cout.flush();
  std::fflush(nullptr);
  const SpawnSignals signals;
  std::vector<SpawnedWorker> workers;
  workers.reserve(static_cast<std::size_t>(nprocs));
  // The server's thread comes after the forks; until they know its port the workers wait.
  const auto start = [&]() -> Result<std::unique_ptr<StoreServer>> {
    for (int rank = 0; rank < nprocs; ++rank) {
      MUSTER_TRY(SpawnedWorker worker, start_worker(rank, nprocs, workers, signals, fn));
      workers.push_back(std::move(worker));
      if (!workers.back().pidfd) return fail(errno_error("spawn: pidfd_open", errno));
    }
    MUSTER_TRY(auto server, StoreServer::start({.host = "127.0.0.1"}));
    const std::uint16_t port = server->port();
    for (const SpawnedWorker& worker : workers)
      (void)::send(worker.channel.get(), &port, sizeof port, MSG_NOSIGNAL);
    return server;
  };
  const auto server = start();
  if (!server) {
    for (const SpawnedWorker& worker : workers) {
      ::kill(worker.pid, SIGKILL);
      (void)retry_eintr([&] { return ::waitpid(worker.pid, nullptr, 0); });
    }
    return fail(server.error());
  }
  if (auto failure = wait_for_all(workers, signals, options.grace))
    return fail(failure->cause.code, std::move(failure->text));
  return {};
}

}  // namespace muster
