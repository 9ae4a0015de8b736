// SPDX-License-Identifier: Apache-2.0
// CoordinatedRendezvous: the nodes of a job as a coordinator gathers them
// (rendezvous/coordinator/membership.h): any number between MIN and MAX with spares, or a fixed number with
// ranks that were given (static rendezvous); one restart budget, and the failures of all nodes pushed to
// each. The coordinator is a musterd at the endpoint, or runs in an agent (net::CoordinatorHost). WorkerStore
// finds the workers' store of each generation. What is waited for is logged when it changes. One loop.
// Failure: the end of the job with an exit status and the coordinator's text; a lost coordinator is one too.
// Source: what torch/distributed/elastic/rendezvous/dynamic_rendezvous.py promises.
#include <algorithm>
#include <sys/stat.h>
#include <utility>

#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <fmt/format.h>

#include "launcher/job/exit_status.h"
#include "launcher/join/make_rendezvous.h"
#include "launcher/join/worker_store.h"
#include "launcher/network/listening.h"
#include "launcher/text/seconds_text.h"
#include "rendezvous/agent_client/control_client.h"
#include "rendezvous/agent_client/coordinator_host.h"
#include "rendezvous/base/lifetime.h"
#include "rendezvous/base/split.h"
#include "rendezvous/base/syscall.h"
#include "rendezvous/base/text.h"
#include "rendezvous/etcd/coordinator.h"

namespace muster::launcher {

namespace {

namespace asio = boost::asio;
constexpr std::chrono::seconds kShortLeave{5};
constexpr std::chrono::seconds kLateNodes{60};  // for a node whose preflight takes that much longer
constexpr Millis kLongestRest{std::int64_t{1000} * 86400 * 365};

/// For a node that is between two generations.
FailureNotice final_notice(AttemptOutcome outcome) {
  if (auto* notice = std::get_if<FailureNotice>(&outcome)) {
    notice->restart = false;
    return std::move(*notice);
  }
  return {.text = "the job succeeded without this node"};
}

// For the coordinator's cool-down after a failure; empty: not known. A network namespace of its own (a
// container, a pod) counts as a machine.
std::string machine_id() {
  const std::string boot(trimmed(read_file("/proc/sys/kernel/random/boot_id", 64).value_or("")));
  if (boot.empty()) return {};
  struct stat network {};
  if (::stat("/proc/self/ns/net", &network) != 0) return boot;
  return fmt::format("{}/{}", boot, network.st_ino);
}

int exit_code_without_host(const Error& no_host) {
  if (is_address_in_use(no_host)) return kExitPortInUse;
  if (no_host.code == ErrorCode::kInvalidArgument) return kExitUsage;
  if (no_host.code == ErrorCode::kTimeout || no_host.code == ErrorCode::kMismatch) return kExitRendezvous;
  return kExitSystem;
}

std::unique_ptr<net::CoordinatorHost> make_host(asio::io_context& io, const Job& job,
                                                const std::vector<InterfaceAddress>& own,
                                                const std::vector<std::string>& offered, const Log& log) {
  const ElasticJob& elastic = job.elastic;
  if (!elastic.etcd) return make_endpoint_host(io, job, own, offered, log);
  const std::vector<std::string> bound = listening_addresses(elastic, offered, own);
  etcd::Options options;
  options.etcd = *elastic.etcd;
  options.job = job.run_id;
  options.self = {job.host, offered};
  options.own_address = connect_address(bound);
  options.listen = [bound] { return listen_at(bound, 0); };
  options.sort_addresses = [own](const auto& addresses) { return addresses_to_try(addresses, own); };
  options.secret = elastic.secret;
  options.heartbeat_interval = elastic.heartbeat_interval;
  options.connect_timeout = elastic.connect_timeout;
  options.reconnect_timeout = elastic.reconnect_for;
  return etcd::make_coordinator(io, std::move(options), log);
}

/// What an agent logs about what it waits for: nothing in the first seconds, then each new reason, with the
/// time that is left.
class WaitStatus {
 public:
  static constexpr std::chrono::seconds kQuietTime{3};  // a wait that takes less is not worth a line

  WaitStatus(boost::asio::io_context& io, const Log& log) : log_(log), quiet_(io) {}

  /// A wait begins.
  void begin() {
    is_quiet_ = true;
    lifetime_.call_at(quiet_, after(kQuietTime), [this] {
      is_quiet_ = false;
      write();
    });
  }

  /// The present reason. `at_once`: also within the quiet time. `gives_up`: the job, unless the reason
  /// changes.
  void set(std::string text, bool at_once, Instant gives_up = Instant::max()) {
    text_ = std::move(text);
    gives_up_ = gives_up;
    if (!is_quiet_ || at_once) write();
  }

  /// The wait is over.
  void cancel() {
    quiet_.cancel();
    text_.clear();
  }

 private:
  void write() {
    const std::string text = std::exchange(text_, {});
    if (text.empty()) return;
    if (gives_up_ == Instant::max()) return log_.warning(text);
    const auto left = std::chrono::round<std::chrono::seconds>(time_left(gives_up_, SteadyClock::now()));
    log_.warning(fmt::format("{}; giving up in {} s", text, left.count()));
  }

  const Log& log_;
  LoopTimer quiet_;
  bool is_quiet_ = true;
  std::string text_;  // not logged yet
  Instant gives_up_ = Instant::max();
  Lifetime lifetime_;
};

class CoordinatedRendezvous final : public Rendezvous {
 public:
  CoordinatedRendezvous(asio::io_context& io, const Job& job, const Log& log)
      : io_(io),
        job_(job),
        log_(log),
        store_(io, job, log),
        wait_status_(io, log),
        late_nodes_(io),
        answer_timer_(io) {}

  void join(int, Joined joined) override {
    joined_ = std::move(joined);
    times_ = {};
    // The job ended while the workers here were being stopped: the coordinator has nothing to add.
    if (outcome_) return finish_join(final_notice(*std::exchange(outcome_, {})));
    wait_status_.begin();
    if (client_) return ready_for_next(assigned_->generation);
    store_.find_addresses();
    const auto& own = store_.own_addresses();
    const auto& offered = store_.offered_addresses();
    if (offered.empty())
      return fail_join(kExitSystem, "no network interface of this host is up and has an address");
    if (const auto text = unconfined_text(job_.elastic, listening_addresses(job_.elastic, offered, own)))
      log_.warning(*text);
    if (const auto open = store_.open_port(); !open) return fail_join(kExitSystem, open.error().message);
    coordinator_ = make_host(io_, job_, own, offered, log_);
    net::CoordinatorHost::Callbacks callbacks;
    callbacks.agent_gone = [this] {
      // Of a job of a fixed size. One that lacks the program, too, was here.
      const auto& rules = job_.elastic.rules;
      if (joined_ && !outside_ && lacks_program() && !job_.elastic.ranks_given &&
          rules.min_nodes == rules.max_nodes)
        stop_job(job_.host);
      if (!told_late_nodes_ || !coordinator_->nodes_never_seen().empty()) return;
      std::exchange(told_late_nodes_, {})();
    };
    callbacks.located = [this](const Result<void>& host) { connect(host); };
    callbacks.moved = [this] {
      if (client_) client_->redirect(coordinator_->host(), coordinator_->port());
    };
    callbacks.lost = [this](const Error& error) {
      if (client_) client_->close();
      on_lost(error);
    };
    coordinator_->start(std::move(callbacks));
  }

  void watch(Watch watch) override {
    watch_ = std::move(watch);
    if (!outcome_ && !stopped_by_) return;
    asio::post(io_, lifetime_.guard([this] {
      if (outcome_) return end(*std::exchange(outcome_, {}));
      if (const auto node = std::exchange(stopped_by_, {}); node && watch_.stop) watch_.stop(*node);
    }));
  }

  void stop_others() override { client_->send(control::StopWorkers{assigned_->generation}); }
  void announce(const FailureNotice& notice) override {
    if (notice.rank >= 0)
      return client_->send_until_over(
          control::WorkerFailed{assigned_->generation, notice.rank, notice.exit_code, notice.restart,
                                notice.machine_at_fault, notice.text, notice.reached});
    // Asked to stop, not failed.
    if (is_replaceable()) return leave_with(notice);
    stop_or_leave(notice);
    // Who asked, a batch system or a person, does not wait as long as a silent coordinator is tried.
    unanswered_ = notice;
    lifetime_.call_at(answer_timer_, after(kShortLeave), [this] { leave_unanswered(); });
  }

  void succeeded() override { client_->send_until_over(control::Finished{assigned_->generation}); }
  void safe_point(std::function<void()> passed) override {
    if (!linked_) return passed();  // they cannot be asked, and are not waited for
    safe_point_passed_ = std::move(passed);
    client_->send(control::SafePoint{assigned_->generation});
  }

  void reached(const StepProgress& reached) override { reached_ = reached; }
  void send_report(std::string part) override {
    if (assigned_) client_->send(control::Report{assigned_->generation, {}, -1, std::move(part)});
  }

  void gather_reports(ReportReceived received) override {
    report_received_ = std::move(received);
    asio::post(io_, lifetime_.guard([this] { hand_over_parts(); }));
  }

  void send_hang(control::Hang message) override { send_of_generation(std::move(message)); }
  void send_status(control::Status message) override { send_of_generation(std::move(message)); }

  void decline(const FailureNotice& notice) override {
    joined_ = {};
    told_late_nodes_ = {};
    store_.cancel();
    wait_status_.cancel();
    if (client_) withdraw(notice);
  }

  void leave(Millis timeout, std::function<void()> left) override {
    wait_status_.cancel();
    on_left_ = [this, timeout, left = std::move(left)] {
      coordinator_ ? coordinator_->drain(timeout, left) : left();
    };
    send_leave("it is done", timeout);
    if (!left_) return;
    if (const auto call = std::exchange(on_left_, {})) call();
  }

 private:
  void connect(const Result<void>& host) {
    if (!joined_) return;  // declined meanwhile
    if (!host) return fail_join(exit_code_without_host(host.error()), host.error().message);
    if (coordinator_->is_hosting())
      log_.info(fmt::format("this agent runs the coordinator at {}", coordinator_->title()));
    client_ = std::make_unique<net::ControlClient>(io_, client_options(), client_events());
    client_->start();
    if (job_.unhealthy.empty()) return;
    // Nobody can take its place: the job cannot run.
    if (job_.elastic.ranks_given) return stop_job(fmt::format("node {} ({})", job_.node_rank, job_.host));
    // The others' coordinator: whoever comes later hears the reason from it.
    if (lacks_program() && hosts_coordinator())
      lifetime_.call_at(late_nodes_, after(std::min<Millis>(job_.join_timeout, kLateNodes)), [this] {
        if (joined_ && !outside_) stop_job(job_.host);
      });
  }

  // Most likely the command line is wrong, which the others have, too.
  [[nodiscard]] bool lacks_program() const {
    return !job_.unhealthy.empty() && job_.unhealthy_code != kExitPreflight;
  }

  void stop_job(const std::string& node) {
    client_->send_until_over(
        control::Stop{job_.unhealthy_code, fmt::format("{} is unhealthy: {}", node, job_.unhealthy)});
  }

  [[nodiscard]] net::ControlClientOptions client_options() {
    const ElasticJob& elastic = job_.elastic;
    net::ControlClientOptions out;
    out.host = coordinator_->host();
    out.port = coordinator_->port();
    out.job = job_.run_id;
    out.secret = elastic.secret;
    out.tls = elastic.tls;
    out.tls_name = elastic.endpoint_host;
    out.request.id = coordinator_->node();
    out.request.host = job_.host;
    out.request.machine = machine_id();
    out.request.role = job_.role;
    out.request.wanted_ranks = job_.local_world_size;
    out.request.order = elastic.order;
    out.request.addresses = store_.offered_addresses();
    out.request.master_port = store_.offered_port();
    out.request.unhealthy = job_.unhealthy;
    out.request.program = job_.command.short_name();
    out.request.status_address = job_.status_address;
    out.settings = elastic.rules;
    out.compare_clocks = job_.compare_clocks;
    out.connect_timeout =
        std::min(elastic.connect_timeout, lacks_program() ? Millis(kLateNodes) : Millis::max());
    out.reconnect_for = elastic.reconnect_for;
    out.born = born_;
    return out;
  }

  [[nodiscard]] net::ControlEvents client_events() {
    net::ControlEvents out;
    out.assigned = [this](const auto& message) { on_assigned(message); };
    out.message = [this](const auto& message) { on_message(message); };
    out.generation_over = [this](const auto& message) { on_generation_over(message); };
    out.closed = [this](const auto& message) { on_closed(message); };
    out.lost = [this](const auto& error) { on_lost(error); };
    out.linked = [this](bool there) { on_linked(there); };
    out.drained = [this] { store_.drained(); };
    out.clock = [this](const ClockOffset& offset) {
      const std::string text = skew_text(offset, fmt::format("the coordinator at {}", coordinator_->title()));
      if (!text.empty()) log_.warning(fmt::format("preflight of {}: {}", job_.host, text));
    };
    out.trying = [this](const Error& error) {
      std::string advice = coordinator_->port_owner_advice(error);
      if (advice.empty()) advice = loopback_advice();
      // While workers run, a broken connection is news.
      wait_status_.set(fmt::format("waiting for the coordinator at {}: {}{}", coordinator_->title(),
                                   error.message, advice),
                       !joined_);
    };
    return out;
  }

  [[nodiscard]] std::string loopback_advice() const {
    const std::string& host = job_.elastic.endpoint_host;
    if (!is_loopback(host) || job_.one_node() || !stays_on_host(job_)) return {};
    return fmt::format("; {} leads each host to itself; with several hosts, give {}", host,
                       job_.elastic.etcd ? "--local-addr or --iface" : "an address that all reach");
  }

  void on_message(const control::Message& message) {
    if (const auto* waiting = std::get_if<control::Waiting>(&message)) {
      on_waiting(*waiting);
    } else if (const auto* part = std::get_if<control::Report>(&message)) {
      parts_.push_back(*part);
      hand_over_parts();
    } else if (const auto* hang = std::get_if<control::Hang>(&message)) {
      if (const auto call = joined_ ? nullptr : watch_.hang) call(*hang);
    } else if (const auto* status = std::get_if<control::Status>(&message)) {
      if (const auto call = joined_ ? nullptr : watch_.status) call(*status);
    } else if (const auto* stop = std::get_if<control::StopWorkers>(&message)) {
      if (const auto call = joined_ ? nullptr : watch_.stop) return call(stop->group_rank);
      stopped_by_ = stop->group_rank;  // this node still prepares its workers
    } else if (const auto* point = std::get_if<control::SafePointPassed>(&message)) {
      if (!assigned_ || point->generation != assigned_->generation) return;
      if (const auto passed = std::exchange(safe_point_passed_, {})) passed();
    } else if (const auto* notice = std::get_if<control::Notice>(&message)) {
      log_.warning(notice->text);
    } else if (control::is_about_store(message)) {
      if (const auto received = store_.receive(message); !received)
        fail_generation(fmt::format("{}: {}", job_.host, received.error().message));
    }
  }

  void ready_for_next(std::int64_t generation) {
    store_.end();
    if (const auto open = store_.open_port(); !open) return fail_join(kExitSystem, open.error().message);
    client_->ready(generation, store_.offered_port(), std::exchange(reached_, {}));
  }

  void on_assigned(const control::Assignment& assignment) {
    assigned_ = assignment;
    stopped_by_ = {};
    times_.gathered = SteadyClock::now();
    outside_ = false;
    store_.cancel();
    coordinator_->set_joined();
    if (!joined_) return;
    wait_status_.cancel();
    log_.info(fmt::format("generation {}: node {} of {}, ranks {} to {} of {}", assignment.generation,
                          assignment.group_rank, assignment.group_world_size, assignment.base_rank,
                          assignment.base_rank + assignment.ranks - 1, assignment.world_size));
    if (assignment.group_rank == 0 && !std::exchange(warned_, true))
      if (const auto text = unauthenticated_access(job_)) log_.warning(*text);
    store_.start(assignment,
                 {[this](const control::Message& message) { client_->send_store(message); },
                  [this] { return client_->unsent_bytes(); }},
                 linked_, coordinator_->is_hosting() ? coordinator_->host() : std::string(),
                 [this](const auto& location) { on_located(location); });
  }

  void on_located(const Result<WorkerStore::Location>& location) {
    if (!location && location.error().code == ErrorCode::kPeerGone)
      return fail_generation(location.error().message);
    if (!location) return fail_join(kExitSystem, location.error().message);
    const control::Assignment& from = *assigned_;
    finish_join(Assignment{.attempt = from.restarts_used,
                           .group_rank = from.group_rank,
                           .group_world_size = from.group_world_size,
                           .base_rank = from.base_rank,
                           .world_size = from.world_size,
                           .role_base_rank = from.role_base_rank,
                           .role_world_size = from.role_world_size,
                           .master_addr = location->host,
                           .master_port = location->port,
                           .interface = location->interface,
                           .generation = from.generation});
  }

  void on_waiting(const control::Waiting& waiting) {
    outside_ = waiting.outside;
    coordinator_->set_joined();
    if (!joined_) return;  // a join round begins while workers here are still being stopped
    // The others have begun, or, most likely, have the same wrong command line: there is nothing to tell.
    if (!job_.unhealthy.empty() && !hosts_coordinator() &&
        (waiting.outside || (lacks_program() && !job_.elastic.ranks_given)))
      return finish_join(
          FailureNotice{.text = waiting.outside ? "the job has begun without this node" : job_.unhealthy});
    if (waiting.outside) {
      wait_status_.set(fmt::format("rendezvous: this node has no workers: {}", waiting.text), true);
      // Members that cannot reach the first node end their generation; nobody outside of it has to.
      store_.check_reach(waiting, [this](const std::string& text) {
        is_replaceable() ? fail_join(kExitRendezvous, text) : log_.warning(text);
      });
    } else {
      store_.cancel();
      // By the job's time-out, which need not be the one that this agent was given.
      wait_status_.set(fmt::format("rendezvous: {}{}", waiting.text, loopback_advice()), false,
                       waiting.rest.count() > 0 ? SteadyClock::now() + std::min(waiting.rest, kLongestRest)
                                                : Instant::max());
    }
  }

  void on_generation_over(const control::GenerationOver& over) {
    if (!joined_) return end(outcome_of(over));
    // Before the workers were started.
    log_.warning(fmt::format("{}; waiting for the next generation", outcome_of(over).text));
    // Perhaps of one that this agent had not heard of yet.
    ready_for_next(assigned_ ? assigned_->generation : over.generation);
  }

  void on_closed(const control::Closed& closed) {
    store_.cancel();
    AttemptOutcome outcome = outcome_of(closed);
    auto* notice = std::get_if<FailureNotice>(&outcome);
    if (notice != nullptr && stopped_here_ && assigned_) notice->node_rank = assigned_->group_rank;
    if (!joined_) return end(outcome);
    const int code = notice != nullptr && !assigned_ ? notice->exit_code : kExitOk;
    const bool unhealthy = code == kExitPreflight || code == kExitNotFound || code == kExitNotExecutable;
    if (unhealthy && hosts_coordinator() && job_.elastic.ranks_given) return await_late_nodes(*notice);
    finish_join(final_notice(std::move(outcome)));
  }

  void leave_with(const FailureNotice& notice) {
    send_leave(notice.text, kShortLeave);
    outcome_ = AttemptOutcome(notice);
    watch(std::exchange(watch_, {}));
  }

  bool leave_unanswered() {
    const auto notice = std::exchange(unanswered_, {});
    if (notice) leave_with(*notice);
    return notice.has_value();
  }

  void on_lost(const Error& error) {
    store_.cancel();
    if (leave_unanswered()) return;
    FailureNotice notice =
        outcome_of(error, assigned_.has_value(), coordinator_->title(), coordinator_->listen_error());
    if (joined_) return finish_join(std::move(notice));
    end(std::move(notice));
  }

  void on_linked(bool there) {
    linked_ = there;
    if (there && !times_.gathered) times_.connected = SteadyClock::now();
    // Who asked is not answered any more.
    if (const auto passed = there ? nullptr : std::exchange(safe_point_passed_, {})) passed();
    store_.linked(there);
  }

  template <class Message>
  void send_of_generation(Message message) {
    if (!assigned_ || !client_) return;
    message.generation = assigned_->generation;
    client_->send(message);
  }

  // The coordinator ends the generation for everybody, or the job.
  void fail_generation(std::string text) {
    log_.error(text);
    client_->send_until_over(control::WorkerFailed{
        .generation = assigned_->generation, .exit_code = kExitRendezvous, .text = std::move(text)});
  }

  void finish_join(Membership membership) {
    wait_status_.cancel();
    late_nodes_.cancel();
    if (auto* notice = std::get_if<FailureNotice>(&membership);
        notice != nullptr && !job_.unhealthy.empty() && !hosts_coordinator()) {
      notice->node_rank = -1;
      notice->exit_code = job_.unhealthy_code;
    }
    if (const auto call = std::exchange(joined_, {})) call(std::move(membership));
  }

  void fail_join(int exit_code, std::string text) {
    FailureNotice notice{.node_rank = -1, .exit_code = exit_code, .text = std::move(text)};
    // Between two generations the others count on this node.
    if (client_) withdraw(notice);
    finish_join(std::move(notice));
  }

  // A node is unhealthy, and its job is over before it began. Nodes that come later would find no coordinator
  // that gives the reason.
  void await_late_nodes(const FailureNotice& notice) {
    const std::vector<int> late = coordinator_->nodes_never_seen();
    if (late.empty()) return finish_join(final_notice(notice));
    told_late_nodes_ = [this, notice] { finish_join(final_notice(notice)); };
    const Millis limit = std::min<Millis>(job_.join_timeout, kLateNodes);
    log_.warning(
        fmt::format("the job is cancelled; waiting at most {} s for node {} to connect and get the reason",
                    whole_seconds(limit), to_ranges(late, ", ")));
    lifetime_.call_at(late_nodes_, after(limit), [this] {
      if (const auto call = std::exchange(told_late_nodes_, {})) call();
    });
  }

  void end(const AttemptOutcome& outcome) {
    safe_point_passed_ = {};
    unanswered_ = {};
    if (const auto call = std::exchange(watch_, {}).outcome)
      call(outcome);
    else
      outcome_ = outcome;
  }

  void hand_over_parts() {
    if (!report_received_) return;
    for (control::Report& part : std::exchange(parts_, {}))
      if (assigned_ && part.generation == assigned_->generation)
        report_received_(part.group_rank, std::move(part.payload));
  }

  // The coordinator is here, and ends with this agent.
  [[nodiscard]] bool hosts_coordinator() const {
    return coordinator_ && coordinator_->is_hosting() && !coordinator_->survives_exit();
  }

  // Whether the others go on if this node leaves. Before their first generation they wait for another one.
  [[nodiscard]] bool is_replaceable() const {
    if (hosts_coordinator()) return false;
    const membership::Settings& rules = job_.elastic.rules;
    return !assigned_ || outside_ ||
           (rules.min_nodes < rules.max_nodes && assigned_->group_world_size > rules.min_nodes);
  }

  // The coordinator knows whether a spare is there to take this node's place.
  void stop_or_leave(const FailureNotice& notice) {
    stopped_here_ = true;
    client_->send_until_over(control::Stop{notice.exit_code, notice.text, !hosts_coordinator()});
  }

  // From a generation that has not begun here.
  void withdraw(const FailureNotice& notice) {
    is_replaceable() ? send_leave(notice.text, kShortLeave) : stop_or_leave(notice);
  }

  void send_leave(const std::string& reason, Millis timeout) {
    if (std::exchange(leaving_, true)) return;
    const auto left = lifetime_.guard([this] {
      left_ = true;
      if (const auto call = std::exchange(on_left_, {})) call();
    });
    client_ ? client_->leave(reason, timeout, left) : std::function<void()>(left)();
  }

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
  std::optional<int> stopped_by_;                // the node that asked for the stop; came before watch()
  std::function<void()> safe_point_passed_;      // while the coordinator is asked
  StepProgress reached_;                         // in the last generation, by the workers here
  ReportReceived report_received_;               // while reports are gathered
  std::vector<control::Report> parts_;           // came before that
  std::function<void()> told_late_nodes_;        // while they are waited for
  LoopTimer late_nodes_;
  std::optional<FailureNotice> unanswered_;  // this node has asked for the end of the job
  LoopTimer answer_timer_;
  bool leaving_ = false;
  bool left_ = false;
  std::function<void()> on_left_;
  const Instant born_ = SteadyClock::now();
  Lifetime lifetime_;
};

}  // namespace

std::unique_ptr<Rendezvous> make_coordinated_rendezvous(asio::io_context& io, const Job& job,
                                                        const Log& log) {
  return std::make_unique<CoordinatedRendezvous>(io, job, log);
}

}  // namespace muster::launcher
