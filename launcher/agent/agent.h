// SPDX-License-Identifier: Apache-2.0
// Agent: this node's part of a job, from the rendezvous to the exit status. It is a machine of three states:
// joining the other nodes, an Attempt under way, leaving. One loop takes one event at a time; each state has
// an answer to each kind of event. Whether to stop, restart or fail is decided by supervision.h and
// restart_policy.h. One loop, one thread: run() drives the io_context itself.
#pragma once

#include <deque>
#include <memory>
#include <optional>

#include <boost/asio/io_context.hpp>
#include <boost/asio/signal_set.hpp>

#include "launcher/agent/attempt.h"

namespace muster::launcher {

class Agent {
 public:
  explicit Agent(const AgentContext& context);

  /// Until the job is over on this node; returns the exit status.
  [[nodiscard]] int run();

 private:
  enum class State { kJoining, kAttempt, kLeaving, kDone };

  [[nodiscard]] std::unique_ptr<boost::asio::signal_set> handle_signals();
  void wait_for_signal();
  void on_unix_signal(int signal);
  void reap_orphans();
  [[nodiscard]] std::optional<Instant> deadline() const;
  [[nodiscard]] AgentEvent next_event();

  void on(const AttemptEvent& event);
  void on(const Joined& event);
  void on(const SignalReceived& event);
  void on(const Left& event);
  void on(const DeadlinePassed& event);

  void join(int attempt);
  void begin_attempt(const Assignment& assignment);
  void attempt_over();
  void report_progress(const FailureNotice& notice);
  void finish(const FailureNotice& notice);
  void leave(int exit_status);
  [[nodiscard]] std::string time_to_stop() const;

  boost::asio::io_context& io_;
  const Job& job_;
  const Log& log_;
  std::deque<AgentEvent> events_;
  std::unique_ptr<boost::asio::signal_set> signals_;  // handled before the spawner looks up what to reset
  Spawner spawner_;
  net::HelperThread helper_;
  PostMortem post_mortem_;
  AgentServices services_;
  std::optional<LogDirectory> directory_;
  std::unique_ptr<Rendezvous> rendezvous_;

  State state_ = State::kJoining;
  int number_ = 0;                    // of the attempt that is joined or under way
  std::unique_ptr<Attempt> attempt_;  // kAttempt
  Instant leave_by_{};                // kLeaving
  int exit_status_ = 0;               // likewise
  std::optional<Restart> restart_;    // from the last attempt to the next one
  bool output_kept_ = false;          // workers have written to files in a temporary directory
  bool no_progress_logged_ = false;
};

}  // namespace muster::launcher
