// SPDX-License-Identifier: Apache-2.0
#include "launcher/process/guardian.h"

#include <fcntl.h>
#include <filesystem>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>

#include "launcher/process/cgroup.h"
#include "launcher/process/descendants.h"
#include "rendezvous/base/syscall.h"

namespace muster::launcher {
namespace {

constexpr std::size_t kPathBytes = 4096;
constexpr std::chrono::seconds kCgroupTimeout{5};
constexpr std::chrono::seconds kEndTimeout{5};  // it has nothing to do then
constexpr char kEndMessage = 'b';

void keep(const std::string& path, char (&to)[kPathBytes]) {
  if (path.size() < kPathBytes) path.copy(to, kPathBytes - 1);
}

}  // namespace

/// Written by the launcher, read by the guardian after the launcher's end: no lock is needed.
struct Guardian::Shared {
  char directory[kPathBytes];  // empty: none
  char cgroup[kPathBytes];     // likewise
  volatile pid_t groups[1];    // as many as there are slots; 0: none
};

void Guardian::Unmap::operator()(Shared* shared) const {
  ::munmap(shared, bytes);
}

Result<Guardian> Guardian::start(std::size_t slots, const std::string& token) {
  Guardian out;
  out.token_ = token;
  out.slots_ = slots;
  const std::size_t bytes = sizeof(Shared) + slots * sizeof(pid_t);
  void* shared = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) return fail(errno_error("mmap for the guardian", errno));
  out.shared_ = {static_cast<Shared*>(shared), Unmap{bytes}};
  MUSTER_OK(out.fork_guardian());
  return out;
}

Result<void> Guardian::fork_guardian() {
  const auto guard = [&shared = *shared_, slots = slots_, token = token_](int channel) {
    char byte = 0;
    if (retry_eintr([&] { return ::read(channel, &byte, 1); }) == 1 && byte == kEndMessage) return;
    const std::string group = shared.cgroup;
    if (!group.empty()) cgroup::kill(group);
    for (std::size_t i = 0; i < slots; ++i)
      if (const pid_t worker = shared.groups[i]; worker > 1) ::kill(-worker, SIGKILL);
    end_by_token(token);
    if (!group.empty()) {
      cgroup::wait_until_empty(group, SteadyClock::now() + kCgroupTimeout);
      cgroup::remove(group);
    }
    std::error_code ignored;
    if (shared.directory[0] != '\0') std::filesystem::remove_all(shared.directory, ignored);
  };
  MUSTER_TRY(HelperProcess process,
             HelperProcess::start({.name = "job-guardian", .outlives_us = true}, guard));
  process_.emplace(std::move(process));
  return {};
}

/// The memory is the same, so that the new one knows all that was registered.
Result<void> Guardian::replace() {
  (void)process_->wait(SteadyClock::now() + kEndTimeout);
  return fork_guardian();
}

Guardian::~Guardian() {
  if (!shared_ || !process_) return;  // moved from, or never started
  (void)::send(process_->channel(), &kEndMessage, 1, MSG_NOSIGNAL);
  process_->close_channel();
  (void)process_->wait(SteadyClock::now() + kEndTimeout);
}

void Guardian::remove_afterwards(const std::string& directory) {
  keep(directory, shared_->directory);
}

void Guardian::end_cgroup(const std::string& directory) {
  keep(directory, shared_->cgroup);
}

void Guardian::watch(std::size_t slot, pid_t group) {
  shared_->groups[slot] = group;
}

void Guardian::forget(std::size_t slot) {
  shared_->groups[slot] = 0;
}

GuardianWatch::GuardianWatch(boost::asio::io_context& io, Guardian& guardian, const Log& log,
                             std::function<void(pid_t)> replaced)
    : guardian_(guardian), log_(log), replaced_(std::move(replaced)), pidfd_(io) {
  watch();
}

void GuardianWatch::watch() {
  const int fd = ::fcntl(guardian_.pidfd(), F_DUPFD_CLOEXEC, 3);
  if (fd < 0) return log_.warning(fmt::format("the guardian (pid {}) cannot be watched", guardian_.pid()));
  pidfd_.assign(fd);
  pidfd_.async_wait(boost::asio::posix::descriptor_base::wait_read, [this](boost::system::error_code error) {
    if (!error) on_end();
  });
}

void GuardianWatch::on_end() {
  boost::system::error_code ignored;
  pidfd_.close(ignored);
  const pid_t former = guardian_.pid();
  if (++replacements_ > kMaxReplacements)
    return log_.error(
        fmt::format("the guardian (pid {}) was killed, as {} before it; it is not replaced again", former,
                    kMaxReplacements));
  if (const auto made = guardian_.replace(); !made)
    return log_.error(fmt::format("the guardian (pid {}) was killed and cannot be replaced: {}", former,
                                  made.error().message));
  replaced_(guardian_.pid());
  log_.warning(fmt::format("the guardian (pid {}) was killed; pid {} replaces it", former, guardian_.pid()));
  watch();
}

}  // namespace muster::launcher
