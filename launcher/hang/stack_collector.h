// SPDX-License-Identifier: Apache-2.0
// StackCollector: the stacks of running workers, by the tools that are there (stack_text.h), a few at a time.
// A tool that fails gives way to the next one. Each has its time, all together have theirs; then they are
// killed, and a worker that a killed tool has left stopped goes on. Owned by the hang monitor; one loop. The
// destructor kills what is left; `done` then never comes.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <boost/asio/io_context.hpp>

#include "launcher/hang/snapshot.h"
#include "launcher/hang/stack_text.h"
#include "launcher/process/helper_process.h"
#include "rendezvous/base/clock.h"
#include "rendezvous/base/env.h"
#include "rendezvous/base/lifetime.h"

namespace muster::launcher {

class StackCollector {
 public:
  struct Timeouts {
    Millis one{20'000};  // of PyTorch gdb reads 1 GB of symbols
    Millis all{60'000};
  };
  static constexpr std::size_t kAtOnce = 4;

  /// `environment`: in whose PATH the tools are looked for.
  StackCollector(boost::asio::io_context& io, const Environment& environment, const Timeouts& timeouts);
  ~StackCollector();

  /// Fills in the stacks of those in `ranks` that run, which outlives the collection; `done` comes once, on
  /// the loop, and not from within.
  void collect(std::vector<RankSnapshot>& ranks, std::function<void()> done);

 private:
  struct Job;
  struct Task {
    RankSnapshot* rank = nullptr;
    std::vector<StackTool> tools;  // still to be tried
  };

  void next();
  void start(Task task);
  void read(const std::shared_ptr<Job>& job);
  void finish(std::shared_ptr<Job> job, bool in_time);
  [[nodiscard]] std::string find(StackTool tool) const;

  boost::asio::io_context& io_;
  Environment environment_;  // of the tools
  Timeouts timeouts_;
  LoopTimer deadline_;  // of all
  std::deque<Task> open_;
  std::vector<std::shared_ptr<Job>> jobs_;
  std::function<void()> done_;
  bool over_ = false;  // the time of all is over
  Lifetime lifetime_;
};

}  // namespace muster::launcher
