// SPDX-License-Identifier: Apache-2.0
// Guardian: a small process that outlives the launcher by a moment. The parent-death signal reaches workers
// only, not the processes they started; when the launcher is gone without having told the guardian to end,
// the guardian sends SIGKILL to the workers' control groups where there are any, to every process group that
// was still registered, and to what left its group but still has the workers' token in its environment
// (descendants.h). It sleeps in one read(2), and is not replaced where somebody kills it: the workers still
// end with the launcher, and a launcher that ends by itself ends what they started. Owned by main;
// WorkerGroup registers its workers.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <sys/types.h>
#include <utility>

#include <muster/result.h>

#include "launcher/process/helper_process.h"

namespace muster::launcher {

class Guardian {
 public:
  /// `slots`: local workers. `token`: in their environments; empty: none.
  [[nodiscard]] static Result<Guardian> start(std::size_t slots, const std::string& token = {});
  Guardian(Guardian&&) noexcept = default;
  Guardian& operator=(Guardian&&) = delete;
  /// Tells the guardian that all is well, and waits for its end.
  ~Guardian();

  /// A directory to remove with what is in it, if this process is gone without having done so itself.
  void remove_afterwards(const std::string& directory);
  /// The control group of all workers, to end and remove likewise (cgroup.h).
  void end_cgroup(const std::string& directory);
  void watch(std::size_t slot, pid_t group);
  void forget(std::size_t slot);
  [[nodiscard]] pid_t pid() const { return process_.pid(); }

 private:
  struct Shared;
  struct Unmap {
    std::size_t bytes;
    void operator()(Shared* shared) const;
  };

  Guardian(std::unique_ptr<Shared, Unmap> shared, HelperProcess process)
      : shared_(std::move(shared)), process_(std::move(process)) {}

  std::unique_ptr<Shared, Unmap> shared_;  // with the guardian; nullptr: moved from
  HelperProcess process_;
};

}  // namespace muster::launcher
