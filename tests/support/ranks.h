// SPDX-License-Identifier: Apache-2.0
// Real processes as ranks: forks a world, collects what each has to say, leaves no child behind. For tests.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <sys/types.h>
#include <vector>

namespace muster::testing {

struct RankOutcome {
  std::string text;    // what the body returned; nothing if it did not return
  int status = -1;     // of waitpid
  bool ended = false;  // before the deadline, by itself
};

struct RankOptions {
  int world_size = 2;
  std::chrono::seconds deadline{50};
  /// Not waited for: killed once the others have ended. -1: none.
  int stuck_rank = -1;
};

/// Runs body(rank) in a child process per rank.
std::vector<RankOutcome> run_ranks(const RankOptions& options,
                                   const std::function<std::string(int rank)>& body);

/// A directory that is removed with its content.
class TemporaryDirectory {
 public:
  TemporaryDirectory();
  ~TemporaryDirectory();
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  [[nodiscard]] std::string file(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

}  // namespace muster::testing
