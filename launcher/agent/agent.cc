// SPDX-License-Identifier: Apache-2.0
#include "launcher/agent/agent.h"

#include <algorithm>
#include <deque>
#include <memory>
#include <signal.h>
#include <unistd.h>
#include <utility>

#include <boost/asio/signal_set.hpp>
#include <fmt/format.h>

#include "launcher/agent/attempt.h"
#include "launcher/job/worker_env.h"
#include "launcher/join/make_rendezvous.h"
#include "rendezvous/base/syscall.h"

namespace muster::launcher {
namespace {

constexpr std::chrono::seconds kLeaveTimeout{10};        // beyond the grace the other nodes' workers have
constexpr std::chrono::seconds kHurriedLeaveTimeout{1};  // after another signal; the others still read why

/// The job has ended: a signal that comes late changes nothing of that, and does not cut off its last lines.
/// Called while these signals are still handled.
void block_signals(const std::vector<int>& signals) {
  sigset_t blocked;
  ::sigemptyset(&blocked);
  for (const int signal : signals) ::sigaddset(&blocked, signal);
  ::sigprocmask(SIG_BLOCK, &blocked, nullptr);
}

class Agent {
 public:
  explicit Agent(const AgentContext& context)
      : io_(context.io),
        job_(context.job),
        log_(context.log),
        signals_(handle_signals()),
        spawner_(context.descriptor_limit),
        helper_(io_),
        post_mortem_(job_, context.environment, log_, context.gpu_watch),
        services_{context, spawner_, post_mortem_, helper_,
                  [this](AttemptEvent event) { events_.emplace_back(std::move(event)); }} {}

  /// Until the job is over on this node; returns the exit status.
  [[nodiscard]] int run() {
    wait_for_signal();
    // A node whose disk is full or hangs only tells the others so.
    if (const auto made = job_.unhealthy.empty() ? make_directory() : Result<void>(); !made) {
      log_.error(made.error().message);
      return made.error().code == ErrorCode::kInvalidArgument ? kExitUsage : kExitSystem;
    }
    rendezvous_ = make_rendezvous(io_, job_, log_);
    services_.directory = &directory_;
    services_.rendezvous = rendezvous_.get();
    services_.status.set_send(
        [this](control::Status message) { rendezvous_->send_status(std::move(message)); });

    join(0);
    while (state_ != State::kDone) {
      const AgentEvent event = next_event();
      std::visit([this](const auto& kind) { on(kind); }, event);
      if (attempt_ && attempt_->result()) attempt_over();
    }
    if (output_kept_) log_.warning(fmt::format("the workers' output is in {}", directory_.path()));
    return exit_status_;
  }

 private:
  enum class State { kJoining, kAttempt, kLeaving, kDone };

  [[nodiscard]] Result<void> make_directory() {
    MUSTER_OK(directory_.create(job_.logs, job_.run_id, services_.environment));
    if (!directory_.memory().empty())
      services_.guardian.remove_afterwards(directory_.memory());
    else if (job_.logs.redirects.none() && job_.logs.tee.none())
      services_.guardian.remove_afterwards(directory_.temporary_base());
    return {};
  }

  /// The job's signals, but for those that nohup or a shell's background job asked to be ignored.
  [[nodiscard]] std::unique_ptr<boost::asio::signal_set> handle_signals() {
    auto out = std::make_unique<boost::asio::signal_set>(io_);
    for (const int signal : job_.signals) {
      struct sigaction current {};
      if ((signal == SIGHUP || signal == SIGINT || signal == SIGQUIT) &&
          ::sigaction(signal, nullptr, &current) == 0 && current.sa_handler == SIG_IGN)
        continue;
      boost::system::error_code error;
      out->add(signal, error);
      if (error) log_.warning(fmt::format("cannot handle {}: {}", signal_name(signal), error.message()));
    }
    if (::isatty(STDOUT_FILENO) == 1 || ::isatty(STDERR_FILENO) == 1) out->add(SIGWINCH);
    out->add(SIGCHLD);
    return out;
  }

  void wait_for_signal() {
    // The loop runs on after the agent, for those who watch the page, and a child's end may be queued.
    signals_->async_wait(lifetime_.guard([this](boost::system::error_code error, int signal) {
      if (error) return;
      wait_for_signal();
      if (signal == SIGCHLD) return reap_orphans();
      if (signal != SIGWINCH) return events_.push_back(SignalReceived{signal});
      if (attempt_) attempt_->window_changed();
    }));
  }

  /// A worker's end is left to the attempt, which learns it from a descriptor of its own, as long as there is
  /// one.
  void reap_orphans() {
    services_.descendants.reap([this](pid_t pid) { return attempt_ != nullptr && attempt_->owns(pid); });
  }

  [[nodiscard]] std::optional<Instant> deadline() const {
    if (state_ == State::kAttempt) return attempt_->deadline();
    return state_ == State::kLeaving ? std::optional(leave_by_) : std::nullopt;
  }

  [[nodiscard]] AgentEvent next_event() {
    const auto until = deadline();
    while (events_.empty()) {
      if (!until) {
        io_.run_one();
      } else if (io_.run_one_for(*until - SteadyClock::now()) == 0 && SteadyClock::now() >= *until) {
        return DeadlinePassed{};
      }
    }
    AgentEvent event = std::move(events_.front());
    events_.pop_front();
    return event;
  }

  /// Those that are still queued when the attempt is over are dropped by attempt_over().
  void on(const AttemptEvent& event) {
    if (!attempt_) return;
    std::visit([this](const auto& kind) { attempt_->on(kind); }, event);
    if (std::holds_alternative<WorkerEnded>(event)) reap_orphans();  // one that nobody waited for hides them
  }

  void on(const Joined& event) {
    if (state_ != State::kJoining) return;  // a signal came first: this node has declined
    if (!event.membership) {
      const Error& error = event.membership.error();
      log_.error(error.message);
      return leave(is_address_in_use(error)              ? kExitPortInUse
                   : error.code == ErrorCode::kExhausted ? kExitSystem
                                                         : kExitRendezvous);
    }
    if (const auto* assignment = std::get_if<Assignment>(&*event.membership))
      return begin_attempt(*assignment);
    finish(std::get<FailureNotice>(*event.membership));
  }

  void on(const SignalReceived& event) {
    if (state_ == State::kAttempt) return attempt_->on(event);
    if (state_ == State::kLeaving) leave_by_ = std::min(leave_by_, SteadyClock::now() + kHurriedLeaveTimeout);
    if (state_ != State::kJoining) return;
    log_.error(fmt::format("{} received before the workers were started", signal_name(event.signal)));
    rendezvous_->decline(stop_notice(job_, event.signal, job_.node_rank));
    leave(128 + event.signal);
  }

  void on(const Left& /*event*/) {
    if (state_ == State::kLeaving) state_ = State::kDone;
  }

  void on(const DeadlinePassed& event) {
    if (attempt_) return attempt_->on(event);
    if (state_ == State::kLeaving) state_ = State::kDone;
  }

  void join(int attempt) {
    state_ = State::kJoining;
    number_ = attempt;
    if (services_.entry != nullptr) services_.entry->gathering(log_);
    services_.telemetry.rendezvous_begins(attempt);
    rendezvous_->join(attempt, [this](Result<Rendezvous::Membership> membership) {
      events_.push_back(Joined{std::move(membership)});
    });
  }

  void begin_attempt(const Assignment& assignment) {
    services_.telemetry.joined(assignment, rendezvous_->join_times());
    if (number_ == 0)  // once in a job: the nodes are of one kind, as a rule
      if (const std::string text = threads_notice(services_.environment, job_); !text.empty())
        assignment.group_rank == 0 ? log_.warning(text) : log_.info(text);
    if (!job_.logs.directory && !(job_.logs.redirects.none() && job_.logs.tee.none())) {
      directory_.keep();
      output_kept_ = true;
    }
    state_ = State::kAttempt;
    attempt_ = std::make_unique<Attempt>(services_, assignment, std::exchange(restart_, std::nullopt));
    attempt_->begin();
  }

  void attempt_over() {
    const Result<FailureNotice> notice = *attempt_->result();
    const Assignment assignment = attempt_->assignment();
    restart_ = attempt_->restart();
    attempt_.reset();
    std::erase_if(events_,
                  [](const AgentEvent& event) { return !std::holds_alternative<SignalReceived>(event); });
    services_.telemetry.attempt_over(notice);
    if (assignment.group_rank == 0)
      if (const auto straggler = services_.status.straggler()) log_.warning(straggler_text(*straggler));
    if (!notice) {
      log_.error(notice.error().message);
      return leave(notice.error().code == ErrorCode::kPeerGone ? kExitPeerLost : kExitSystem);
    }
    if (!notice->restart) return finish(*notice);
    report_progress(*notice);
    if (notice->regroup) {
      log_.warning(fmt::format("{}; the workers start again with the nodes that are here", notice->text));
    } else {
      log_.warning(
          fmt::format("{}; restart {} of {}", notice->text, assignment.attempt + 1, job_.max_restarts));
      services_.restart_reasons.push_back(notice->text);
      restart_->number = assignment.attempt + 1;
    }
    join(number_ + 1);
  }

  /// The attempt is over, and another one follows.
  void report_progress(const FailureNotice& notice) {
    if (job_.restarts.max_without_progress == 0) return;
    const StepProgress here = post_mortem_.reached(directory_);
    rendezvous_->reached(here);
    if (here.known() || notice.reached.known() || notice.regroup) return;
    if (services_.telemetry.status().assignment->group_rank != 0) return;
    if (std::exchange(no_progress_logged_, true)) return;
    log_.warning(
        "--max-restarts-without-progress has no effect: no worker here has reported a step (see "
        "launcher/README.md)");
  }

  /// The job is over on this node.
  void finish(const FailureNotice& notice) {
    if (notice.exit_code == kExitOk) {
      if (!notice.text.empty()) log_.info(notice.text);
    } else if (notice.preempted()) {
      log_.warning(
          fmt::format("{}; start the job again to go on; exit status {}", notice.text, notice.exit_code));
    } else {
      const bool one_line = notice.text.find('\n') == std::string::npos;
      if (!one_line) log_.error(notice.text);
      log_.error(fmt::format("{}exit status {}{}", one_line ? notice.text + "; " : std::string(),
                             notice.exit_code, time_to_stop()));
    }
    leave(notice.exit_code);
  }

  void leave(int exit_status) {
    state_ = State::kLeaving;
    exit_status_ = exit_status;
    const auto timeout = job_.grace + kLeaveTimeout;
    leave_by_ = SteadyClock::now() + timeout;
    rendezvous_->leave(timeout, [this] { events_.push_back(Left{}); });
  }

  /// From the first sign of the end here to the end of the last worker, for the last line.
  [[nodiscard]] std::string time_to_stop() const {
    if (!restart_ || restart_->failed == Instant{} || job_.local_world_size == 1) return {};
    return fmt::format("; all local workers exited within {} ms",
                       std::chrono::duration_cast<Millis>(restart_->stopped - restart_->failed).count());
  }

  boost::asio::io_context& io_;
  const Job& job_;
  const Log& log_;
  std::deque<AgentEvent> events_;
  std::unique_ptr<boost::asio::signal_set> signals_;  // handled before the spawner looks up what to reset
  Spawner spawner_;
  net::HelperThread helper_;
  PostMortem post_mortem_;
  AgentServices services_;
  LogDirectory directory_;
  std::unique_ptr<Rendezvous> rendezvous_;

  State state_ = State::kJoining;
  int number_ = 0;                    // of the attempt that is joined or under way
  std::unique_ptr<Attempt> attempt_;  // kAttempt
  Instant leave_by_{};                // kLeaving
  int exit_status_ = 0;               // likewise
  std::optional<Restart> restart_;    // from the last attempt to the next one
  bool output_kept_ = false;          // workers have written to files in a temporary directory
  bool no_progress_logged_ = false;
  Lifetime lifetime_;
};

}  // namespace

int run_agent(const AgentContext& context) {
  Agent agent(context);
  const int status = agent.run();
  block_signals(context.job.signals);
  context.telemetry.ended(status);  // before the agent goes: it removes files, which can take long
  return status;
}

}  // namespace muster::launcher
