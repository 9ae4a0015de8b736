// SPDX-License-Identifier: Apache-2.0
// StatusExchange: what all nodes of the job do now. Each agent has one: it looks at its workers once a second
// while they report progress or somebody asks, and sends the first node what it sees while that node's
// request lasts. On the first node it keeps what came. The other nodes are asked for kLease at a time, while
// somebody looks, and else once a minute, so that /metrics and the end of the job know the straggler of all
// nodes. Messages may be lost; the next comes in a second, or a minute. Owned by main, told by the agent; one
// loop, on which nothing lasts: logs are read by a thread of its own. Nothing here fails.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <boost/asio/io_context.hpp>

#include <muster/result.h>

#include "launcher/telemetry/node_status.h"
#include "launcher/telemetry/telemetry.h"
#include "rendezvous/base/lifetime.h"
#include "rendezvous/net/helper_thread.h"
#include "rendezvous/protocol/control.h"

namespace muster::launcher {

class StatusExchange {
 public:
  static constexpr std::chrono::seconds kLease{5};
  static constexpr std::chrono::seconds kLogTimeout{5};  // for the log of a worker
  static constexpr std::int32_t kMostLines = 2000;
  static constexpr std::size_t kMostLogBytes = std::size_t{64} << 10;

  /// All outlive this.
  StatusExchange(boost::asio::io_context& io, const Job& job, const Telemetry& telemetry);

  /// How messages reach the other nodes; nullptr: not any more.
  void set_send(std::function<void(control::Status)> send) { send_ = std::move(send); }
  /// The last readings of this node's GPUs, by index; asked at most once a second, and only while somebody
  /// looks. It returns at once: a driver may not answer.
  void set_gpu_readings(std::function<std::vector<GpuReading>()> read) { read_gpus_ = std::move(read); }
  /// What this node says when the first one gathers metrics; not set: nothing.
  void set_metrics(std::function<std::string()> read) { read_metrics_ = std::move(read); }
  void receive(const control::Status& message);

  /// Somebody looks at the job: on the first node.
  void look();
  /// Fresh to a second while somebody looks, in no node's case before it has answered.
  [[nodiscard]] const NodesSeen& nodes() const { return nodes_; }
  /// Each node of the generation that runs has told of itself within the last lease.
  [[nodiscard]] bool complete() const;
  /// Of this node, as it is now.
  const NodeStatus& look_here();
  [[nodiscard]] std::optional<Straggler> straggler() const { return find_straggler(nodes_); }

  /// The end of the log of `request.rank`, of whichever node. `done`: once, later; not after the destructor.
  using LogRead = std::function<void(Result<std::string>)>;
  void read_log(LogRequest request, LogRead done);

  /// The metrics of all nodes of the generation that runs (federated_metrics.h), once the nodes have met.
  /// `done`: as above. Who asks while they are gathered gets the same; they are gathered once a second at
  /// most, since whoever reaches the address may ask.
  void federate(std::function<void(std::string)> done);

  /// Messages that were sent to other nodes.
  [[nodiscard]] std::uint64_t messages_sent() const { return sent_; }

 private:
  struct Worker {
    int pid = 0;
    std::uint64_t mark = 0;  // of its progress
    Instant moved{};         // when that was seen to change
    PaceMeter pace;
  };

  void wait();
  void tick();
  RankStatus look_at(const WorkerStatus& worker, Worker& known, Instant now);
  void send(control::Status::Kind kind, std::string payload, Millis lease = {});
  void gather_metrics();
  void receive_metrics(int node, const LogAnswer& answer);
  void merge_metrics();
  /// Of the log that was asked for by that number, unless nobody waits for it any more.
  void take_log(std::int64_t number, Result<std::string> text);
  void read_own_log(const LogRequest& request, std::function<void(LogAnswer)> done);
  [[nodiscard]] bool is_first() const;
  [[nodiscard]] bool is_here(int rank) const;

  boost::asio::io_context& io_;
  const Job& job_;
  const Telemetry& telemetry_;
  std::function<void(control::Status)> send_;
  std::function<std::vector<GpuReading>()> read_gpus_;
  LoopTimer timer_;
  std::vector<Worker> workers_;   // by local rank
  NodesSeen nodes_;               // this one among them
  std::int64_t generation_ = -1;  // of the nodes
  Instant looked_{};              // when somebody looked last
  Instant asked_until_{};         // the end of the lease that the others have, or that this node has
  Instant next_survey_{};         // when all nodes are asked though nobody looks
  bool reports_ = false;          // a worker reports progress
  std::map<std::int64_t, LogRead> awaited_;  // logs
  std::int64_t next_log_ = 1;
  std::function<std::string()> read_metrics_;
  std::vector<std::function<void(std::string)>> federating_;
  struct Gathering {
    std::int64_t number;             // of the request
    std::vector<std::string> texts;  // that came, by node
    std::set<int> missing;           // nodes that have not answered
  };
  std::optional<Gathering> gathering_;
  Instant gathered_{};  // when the last began
  LoopTimer gather_timer_;
  std::uint64_t sent_ = 0;
  net::HelperThread reader_;
  net::HelperThread merger_;  // a file system that does not answer holds the other one
  Lifetime lifetime_;
};

}  // namespace muster::launcher
