// SPDX-License-Identifier: Apache-2.0
// CoordinatedRendezvous: the nodes of a job as a coordinator gathers them
// (rendezvous/coordinator/membership.h): any number between MIN and MAX with spares, or a fixed number with
// ranks that were given (static rendezvous); one restart budget, and the failures of all nodes pushed to
// each. The coordinator is a musterd at the endpoint, or runs in an agent (net::CoordinatorHost). WorkerStore
// finds the workers' store of each generation. What is waited for is logged when it changes. One loop.
// Failure: the end of the job with an exit status and the coordinator's text; a lost coordinator is one too.
// Source: what torch/distributed/elastic/rendezvous/dynamic_rendezvous.py promises.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>

#include "launcher/job/rendezvous.h"
#include "launcher/join/worker_store.h"
#include "rendezvous/agent_client/control_client.h"
#include "rendezvous/agent_client/coordinator_host.h"
#include "rendezvous/base/clock.h"
#include "rendezvous/base/lifetime.h"
#include "rendezvous/base/log.h"

namespace muster::launcher {

// WaitStatus: what an agent logs about what it waits for: nothing in the first seconds, then each new reason,
// with the time that is left. Owned by CoordinatedRendezvous; one loop. Nothing here fails.

class WaitStatus {
 public:
  static constexpr std::chrono::seconds kQuietTime{3};  // a wait that takes less is not worth a line

  WaitStatus(boost::asio::io_context& io, const Log& log) : log_(log), quiet_(io) {}

  /// A wait begins.
  void begin();
  /// The present reason. `at_once`: also within the quiet time. `gives_up`: the job, unless the reason
  /// changes.
  void set(std::string text, bool at_once, Instant gives_up = Instant::max());
  /// The wait is over.
  void cancel();

 private:
  void write();

  const Log& log_;
  boost::asio::steady_timer quiet_;
  bool is_quiet_ = true;
  std::string text_;  // not logged yet
  Instant gives_up_ = Instant::max();
  Lifetime lifetime_;
};

class CoordinatedRendezvous final : public Rendezvous {
 public:
  CoordinatedRendezvous(boost::asio::io_context& io, const Job& job, const Log& log);

  void join(int attempt, Joined joined) override;
  void watch(Watch watch) override;
  void stop_others() override { client_->stop_workers(assigned_->generation); }
  void announce(const FailureNotice& notice) override;
  void succeeded() override { client_->finished(assigned_->generation); }
  void safe_point(std::function<void()> passed) override;
  void reached(const StepProgress& reached) override { reached_ = reached; }
  void send_report(std::string part) override;
  void gather_reports(ReportReceived received) override;
  void send_hang(control::Hang message) override;
  void decline(const FailureNotice& notice) override;
  void leave(Millis timeout, std::function<void()> left) override;

 private:
  void connect(const Result<void>& host);
  [[nodiscard]] net::ControlClientOptions client_options();
  [[nodiscard]] net::ControlEvents client_events();
  void ready_for_next(std::int64_t generation);

  void on_assigned(const control::Assignment& assignment);
  void on_located(const Result<WorkerStore::Location>& location);
  void on_waiting(const control::Waiting& waiting);
  void on_generation_over(const control::GenerationOver& over);
  void on_closed(const control::Closed& closed);
  void on_lost(const Error& error);
  void on_linked(bool there);

  void fail_generation(std::string text);
  void finish_join(Membership membership);
  void fail_join(int exit_code, std::string text);
  void await_late_nodes(const FailureNotice& notice);
  void end(const AttemptOutcome& outcome);
  void hand_over_parts();

  [[nodiscard]] bool hosts_coordinator() const;
  [[nodiscard]] bool is_replaceable() const;
  void stop_or_leave(const FailureNotice& notice);
  void withdraw(const FailureNotice& notice);
  void send_leave(const std::string& reason, Millis timeout);

  boost::asio::io_context& io_;
  const Job& job_;
  const Log& log_;
  std::unique_ptr<net::CoordinatorHost> coordinator_;  // nothing before join()
  WorkerStore store_;
  WaitStatus wait_status_;
  std::unique_ptr<net::ControlClient> client_;   // nothing: where the coordinator is, is not decided yet
  bool linked_ = false;                          // the coordinator is connected
  std::optional<control::Assignment> assigned_;  // of the present or last generation
  bool outside_ = false;                         // a generation runs without this node
  bool stopped_here_ = false;                    // this node asked for the end
  bool warned_ = false;                          // that anybody may take part
  Joined joined_;                                // while joining
  Watch watch_;                                  // empty: nobody watches
  std::optional<AttemptOutcome> outcome_;        // came before watch()
  std::function<void()> safe_point_passed_;      // while the coordinator is asked
  StepProgress reached_;                         // in the last generation, by the workers here
  ReportReceived report_received_;               // while reports are gathered
  std::vector<control::Report> parts_;           // came before that
  std::function<void()> told_late_nodes_;        // while they are waited for
  boost::asio::steady_timer late_nodes_;
  bool leaving_ = false;
  bool left_ = false;
  std::function<void()> on_left_;
  const Instant born_ = SteadyClock::now();
  Lifetime lifetime_;
};

}  // namespace muster::launcher
