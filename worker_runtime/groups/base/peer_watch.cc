// SPDX-License-Identifier: Apache-2.0
#include "worker_runtime/groups/base/peer_watch.h"

#include <poll.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace muster::groups {

std::uint64_t pid_namespace_inode() {
  struct stat info {};
  return ::stat("/proc/self/ns/pid", &info) == 0 ? info.st_ino : 0;
}

void PeerWatch::add(int member, pid_t pid) {
  // The system call, because glibc 2.36's <sys/pidfd.h> has no C linkage.
  UniqueFd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  if (pidfd) peers_.push_back({member, std::move(pidfd)});
}

std::vector<int> PeerWatch::ended() const {
  std::vector<pollfd> entries;
  entries.reserve(peers_.size());
  for (const Peer& peer : peers_) entries.push_back({peer.pidfd.get(), POLLIN, 0});
  std::vector<int> out;
  if (::poll(entries.data(), entries.size(), 0) <= 0) return out;
  for (std::size_t i = 0; i < entries.size(); ++i)
    if ((entries[i].revents & POLLIN) != 0) out.push_back(peers_[i].member);
  return out;
}

}  // namespace muster::groups
