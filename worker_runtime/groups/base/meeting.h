// SPDX-License-Identifier: Apache-2.0
// How ranks find each other through a store while a group is made: which of them belong to this attempt, what
// each tells the others, and which are on the same host. Blocking, but for the two functions about hosts.
// Failure: kTimeout naming the ranks that did not come, as far as this rank can know.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <sys/types.h>
#include <vector>

#include <muster/store.h>

#include "rendezvous/base/clock.h"
#include "rendezvous/base/env.h"
#include "rendezvous/base/unique_fd.h"

namespace muster::groups {

/// The ranks of one attempt agree on a name for it, in a store that may be full of earlier attempts: a
/// launcher reuses its store after a restart, a rank may have died before or during its init(), and no
/// counter that a rank or a node keeps is the same everywhere. Every rank has a random nonce and a log of
/// messages in the store; rank 0 answers each "hello" under a key that contains the rank's own nonce, so no
/// rank can take an old answer for its own, and goes on when each rank has acknowledged rank 0's nonce, which
/// is the name. It needs only that the ranks of an earlier attempt are no longer running, as every launcher
/// sees to. A collective. Returns the same text on every rank of this attempt, and never one that was
/// returned before. kMismatch: a rank came with another world size.
[[nodiscard]] Result<std::string> meet(Store& store, int rank, int world_size, Instant deadline);

/// Every member gives a text and gets everybody's, in member order: how groups agree while they are being
/// made (through the Store) and later (through themselves). Every member makes the same calls in the same
/// order.
using TextExchange = std::function<Result<std::vector<std::string>>(std::string mine)>;

/// Through keys "<name>/<round>/<rank>" of `store`. `ranks` are the members, `me` an index into it. At the
/// deadline: kTimeout naming the ranks that are missing. `store` outlives the exchange.
[[nodiscard]] TextExchange exchange_through_store(Store& store, std::string name, std::vector<int> ranks,
                                                  int me, Instant deadline);

/// Those of `ranks` whose key, at the same place of `keys`, is not in the store.
[[nodiscard]] std::vector<int> ranks_without_key(Store& store, std::span<const int> ranks,
                                                 std::span<const std::string> keys);

/// Equal on ranks of the same host. Not the host's name, which containers share or change: the kernel's boot
/// and this process' network namespace, so that two namespaces on one machine count as two hosts.
/// MUSTER_HOST_ID overrides. Equal ids are a promise to try shared memory, not that it works.
[[nodiscard]] std::string host_id(const Environment& environment);

/// Ranks (indices of `ids`) per host, hosts in the order of their first rank.
[[nodiscard]] std::vector<std::vector<int>> group_by_host(std::span<const std::string> ids);

/// The inode of this process' pid namespace; 0 if it cannot be read.
[[nodiscard]] std::uint64_t pid_namespace_inode();

/// Which of the other processes of this host have ended, through pidfds. A process that cannot be seen
/// (another pid namespace) counts as alive; a timeout finds it. Not thread-safe; asking never blocks.
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
