// SPDX-License-Identifier: Apache-2.0
// Preemption: when a scheduler takes the machines away, all ranks stop after the same step, so that they can
// save one consistent state and end with kExitPreempted. A signal to any one rank is enough. As long as
// nobody has asked, should_stop() is a few atomic operations (4 ns) and no word to another rank: a
// thread of each rank waits in the store, over a connection of its own, and once one rank asks, these threads
// agree on the step while the ranks go on up to it. Every rank makes and destroys it, and calls should_stop()
// equally often, from one thread. While it lives the signals are its; what they did before comes back with
// its end. Only a signal that would have killed the process stays without effect once should_stop() has said
// true: a second SIGTERM while the rank ends must not take kExitPreempted from it.
#pragma once

#include <chrono>
#include <csignal>
#include <memory>
#include <vector>

#include <muster/init.h>
#include <muster/result.h>

namespace muster {

/// The exit code of a rank that has saved its state and wants to be started again later: muster ends with it
/// too, and counts it neither as a failure nor as a restart. 85 is ERESTART, and HTCondor's usual code for
/// the same; Slurm knows it by RequeueExit.
inline constexpr int kExitPreempted = 85;

struct PreemptionOptions {
  std::vector<int> signals = {SIGTERM, SIGUSR1};
  /// For the ranks to agree once one of them has asked. Their threads answer at once, whatever the ranks do.
  std::chrono::milliseconds timeout = std::chrono::seconds(5);
};

class Preemption {
 public:
  /// `context` outlives the object. kUnsupported: a world of several ranks without a store.
  [[nodiscard]] static Result<std::unique_ptr<Preemption>> create(const Context& context,
                                                                  const PreemptionOptions& options = {});
  /// Tells the others that this rank takes no more steps.
  virtual ~Preemption() = default;
  Preemption& operator=(Preemption&&) = delete;  // nor copied

  /// To be called once after (or before) each step. True for the same call on every rank, and from then on.
  /// Blocks only once a rank has asked: until the threads of all ranks have answered, which does not depend
  /// on how far the ranks are. kTimeout names the ranks that have not; kPeerGone: the store is gone. Without
  /// a store that works nobody can ask, but what nobody asks for is still answered with false.
  [[nodiscard]] virtual Result<bool> should_stop() = 0;

  /// As if a signal had come. From any thread, and from a signal handler.
  virtual void request() noexcept = 0;

  /// The signal that came to this rank; 0: none.
  [[nodiscard]] virtual int signal() const noexcept = 0;
};

}  // namespace muster
