// SPDX-License-Identifier: Apache-2.0
#include "launcher/process/guardian.h"

#include <filesystem>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include "launcher/process/cgroup.h"
#include "launcher/process/descendants.h"
#include "rendezvous/base/syscall.h"

namespace muster::launcher {
namespace {

constexpr std::size_t kPathBytes = 4096;
constexpr std::chrono::seconds kCgroupTimeout{5};
constexpr std::chrono::seconds kGuardianEndTimeout{5};  // it has nothing to do then
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
  const std::size_t bytes = sizeof(Shared) + slots * sizeof(pid_t);
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return fail(errno_error("mmap for the guardian", errno));
  std::unique_ptr<Shared, Unmap> shared(static_cast<Shared*>(memory), Unmap{bytes});
  const auto guard = [&shared = *shared, slots, &token](int channel) {
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
  return Guardian(std::move(shared), std::move(process));
}

Guardian::~Guardian() {
  if (!shared_) return;
  (void)::send(process_.channel(), &kEndMessage, 1, MSG_NOSIGNAL);
  process_.close_channel();
  process_.wait(SteadyClock::now() + kGuardianEndTimeout);
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

}  // namespace muster::launcher
