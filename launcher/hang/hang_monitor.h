// SPDX-License-Identifier: Apache-2.0
// HangMonitor: looks at this node's workers now and then (hang_watch.h says when, and who hangs), collects
// what they are doing, and tells of it: on the terminal, in hang.json of the log directory, and to the agent
// where --on-hang asks for more than a report. Of several nodes the first one conducts this (hang_inquiry.h):
// a node that sees a hang tells it, all collect, the first one has the report, and the node whose worker it
// names ends the attempt. Where the first one does not answer in time a node does what it would do alone.
// Owned by an attempt; one loop. Nothing here fails.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>

#include "launcher/hang/hang_evidence.h"
#include "launcher/hang/hang_inquiry.h"
#include "launcher/hang/hang_ledger.h"
#include "launcher/hang/hang_watch.h"
#include "launcher/hang/life_signs.h"
#include "launcher/hang/stack_collector.h"
#include "launcher/job/job.h"
#include "launcher/output/log_directory.h"
#include "launcher/output/log_router.h"
#include "launcher/output/output_sink.h"
#include "launcher/process/worker_group.h"
#include "rendezvous/base/log.h"
#include "rendezvous/protocol/control.h"

namespace muster::launcher {

class HangMonitor {
 public:
  struct Surroundings {
    const Job& job;
    const Assignment& assignment;
    const Environment& environment;
    const LogDirectory& directory;
    const LogRouter& router;
    const WorkerGroup& group;
    Spawner& spawner;
    OutputSink& err;
    const Log& log;
    std::function<void(int local_rank, const std::string& line)> told = {};  // of each hang
  };
  /// Called once, after the report, where the rules ask for a restart or the end. `line`: what the job's
  /// report is to say of that worker.
  using Act = std::function<void(int local_rank, std::string line)>;
  /// To the other nodes, as Rendezvous::say_hang.
  using Say = std::function<void(control::Hang)>;

  HangMonitor(boost::asio::io_context& io, const Surroundings& around, Act act, Say say);
  ~HangMonitor();

  /// The workers run.
  void begin();
  void worker_ended(int local_rank, const ProcessEnd& end);
  /// Another node's word.
  void heard(const control::Hang& word);
  /// They are being stopped: no more looks, and tools that are at work are ended.
  void stop();

 private:
  enum class Awaits { kNothing, kWord, kVerdict, kEnd };
  using Kind = control::Hang::Kind;

  [[nodiscard]] bool several() const { return around_.assignment.group_world_size > 1; }
  [[nodiscard]] bool is_first() const { return around_.assignment.group_rank == 0; }

  void arm();
  void looked(std::vector<LifeSigns::Seen> seen);
  void over(const HangWatch::Seen& verdict);
  void read_stacks(bool look_first);
  void fill_part();
  [[nodiscard]] Millis usual_limit() const;
  void stacks_read();
  void part_is_whole();
  void obey(const HangInquiry::Orders& orders);
  void publish(const std::map<int, HangPart>& parts, bool hanging);
  void conclude(const HangVerdict& verdict);
  void say_over(const std::vector<int>& moved, const std::vector<int>& ended);
  void say_hanging(int number);
  void say(Kind kind, std::string payload = {}, std::optional<int> number = {});
  void await(Awaits what);
  void waited_in_vain();

  Surroundings around_;
  Act act_;
  Say say_;
  boost::asio::io_context& io_;
  boost::asio::steady_timer timer_;       // of looks
  boost::asio::steady_timer word_timer_;  // of what is awaited from the first node
  boost::asio::steady_timer inquiry_timer_;
  LifeSigns signs_;
  std::optional<HangWatch> watch_;      // while workers run
  std::optional<HangInquiry> inquiry_;  // on the first of several nodes
  std::vector<std::string> ended_;      // by local rank; empty: it runs
  std::vector<LifeSigns::Seen> seen_;   // by the last look
  HangPart part_;                       // of the present or last hang
  Instant hang_began_{};
  int number_ = 0;        // of the hang that the first node asks for
  Instant said_{};        // when it was told that workers hang here
  bool reading_ = false;  // the part is not whole
  bool alone_ = false;    // the first node does not answer
  Awaits awaits_ = Awaits::kNothing;
  HangLedger ledger_;
  std::unique_ptr<StackCollector> collector_;  // while stacks are being collected
  std::shared_ptr<bool> alive_;  // false once destroyed: handlers that are still queued check it
};

}  // namespace muster::launcher
