// SPDX-License-Identifier: Apache-2.0
// PeerWatch: which of the other processes of this host have ended, through pidfds. A process that cannot be
// seen (another pid namespace) counts as alive; a timeout finds it. Owned by an shm group; not thread-safe;
// asking never blocks.
#pragma once

#include <cstdint>
#include <sys/types.h>
#include <vector>

#include "rendezvous/base/unique_fd.h"

namespace muster::groups {

/// The inode of this process' pid namespace; 0 if it cannot be read.
[[nodiscard]] std::uint64_t pid_namespace_inode();

class PeerWatch {
 public:
  /// Watches `pid` as member `member`. Not for the caller's own pid.
  void add(int member, pid_t pid);

  /// Members that have ended.
  [[nodiscard]] std::vector<int> ended() const;

 private:
  struct Peer {
    int member;
    UniqueFd pidfd;
  };
  std::vector<Peer> peers_;
};

}  // namespace muster::groups
