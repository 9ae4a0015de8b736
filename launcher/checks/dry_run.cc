// SPDX-License-Identifier: Apache-2.0
#include "launcher/checks/dry_run.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <unistd.h>
#include <utility>
#include <vector>

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <fmt/format.h>

#include "launcher/checks/dry_run_part.h"
#include "launcher/cli/rdzv_conf.h"
#include "launcher/job/exit_status.h"
#include "launcher/join/make_rendezvous.h"
#include "launcher/join/unfit_node.h"
#include "launcher/plan/placement_text.h"
#include "rendezvous/base/syscall.h"
#include "rendezvous/protocol/control.h"

namespace muster::launcher {
namespace {

constexpr std::chrono::seconds kPartPatience{15};  // for all parts, once the nodes have met
constexpr std::chrono::seconds kLastCall{5};
constexpr std::chrono::seconds kSpareCall{3};  // the nodes of the world have met, their spares are on the way
constexpr std::chrono::seconds kPatience{30};  // where commands are typed one after another
constexpr std::chrono::seconds kMargin{15};    // for the rendezvous to end by itself

/// The same nodes at the same place, but never in one world with agents that would start workers.
Job meeting_of(const Job& job, Millis patience) {
  Job out = job;
  constexpr std::string_view kMark = ".dry-run";
  out.run_id.resize(std::min(out.run_id.size(), control::kMaxJobBytes - kMark.size()));
  out.run_id += kMark;
  out.join_timeout = patience;
  out.elastic.connect_timeout = patience;
  out.elastic.reconnect_for = Millis(0);
  out.elastic.rules.join_timeout = patience;
  membership::Settings& rules = out.elastic.rules;
  rules.last_call_timeout = std::min<Millis>(rules.last_call_timeout, kLastCall);
  // Who comes later does not interrupt the others.
  rules.grow_at_safe_point = rules.min_nodes < rules.max_nodes;
  rules.safe_point_patience = Millis(0);
  return out;
}

class Meeting {
 public:
  /// `meeting` is the job that the nodes meet for, `job` the one that they speak of.
  Meeting(boost::asio::io_context& io, const Job& job, const Job& meeting, const Environment& environment,
          Millis patience, const Log& log)
      : io_(io),
        busy_(io.get_executor()),
        job_(job),
        environment_(environment),
        patience_(patience),
        log_(log),
        rendezvous_(make_rendezvous(io, meeting, log)) {}

  int run() {
    rendezvous_->join(0,
                      [this](Result<Rendezvous::Membership> membership) { joined_ = std::move(membership); });
    // Each may take that long: to reach the coordinator, and for the others to.
    wait(2 * patience_ + kMargin, [this] { return joined_.has_value(); });
    const int status = joined_ ? settle() : alone(kExitRendezvous, "the rendezvous took too long");
    bool left = false;
    rendezvous_->leave(kPartPatience, [&left] { left = true; });
    wait(kPartPatience, [&left] { return left; });
    return status;
  }

 private:
  int settle() {
    if (!*joined_) {
      const Error& error = joined_->error();
      return alone(error.code == ErrorCode::kExhausted ? kExitPortInUse : kExitRendezvous, error.message);
    }
    if (const auto* notice = std::get_if<FailureNotice>(&**joined_)) {
      if (notice->exit_code != kExitOk) return alone(notice->exit_code, notice->text);
      log_.warning(fmt::format("--dry-run: the job would begin without {}, a spare or a node that came late",
                               job_.host));
      return kExitOk;
    }
    const Assignment& assignment = std::get<Assignment>(**joined_);
    auto own = dry_run_part(job_, environment_, assignment);
    const bool first = assignment.group_rank == 0;
    rendezvous_->watch(0, [this](Result<AttemptOutcome> outcome) { outcome_ = std::move(outcome); });
    const std::size_t others = static_cast<std::size_t>(assignment.group_world_size) - 1;
    if (own && first) {
      parts_.push_back(*own);
      rendezvous_->gather_reports(0, [this](int node, const std::string& part) { take(node, part); });
      wait(kPartPatience, [&] { return outcome_.has_value() || num_heard_ == others; });
    }
    if (!own) {
      FailureNotice notice;
      notice.node_rank = assignment.group_rank;
      notice.host = job_.host;
      notice.exit_code = kExitUsage;
      notice.text = fmt::format("{}: {}", job_.host, own.error().message);
      rendezvous_->announce(0, notice);
    } else {
      if (!first) rendezvous_->send_report(0, to_json(*own));
      if (first && job_.elastic.rules.spares > 0) wait(kSpareCall, [this] { return outcome_.has_value(); });
      rendezvous_->succeeded(0);
    }
    wait(kPartPatience, [this] { return outcome_.has_value(); });
    if (first && num_heard_ == others && trouble_.empty()) {
      return print(dry_run_text(std::move(parts_), assignment.world_size), kExitOk);
    }
    return part_from(first);
  }

  /// The nodes have met; who is not the first has nothing to print unless that was in vain.
  int part_from(bool first) {
    if (!outcome_) return alone(kExitRendezvous, "the other nodes do not answer");
    if (!*outcome_) return alone(kExitPeerLost, outcome_->error().message);
    if (const auto* notice = std::get_if<FailureNotice>(&**outcome_))
      return alone(notice->exit_code != kExitOk ? notice->exit_code : kExitPeerLost, notice->text);
    if (!first) return kExitOk;
    return alone(kExitRendezvous, trouble_.empty() ? "not every node has sent its plan" : trouble_);
  }

  void take(int node, const std::string& text) {
    ++num_heard_;
    auto part = dry_run_part_from_json(text);
    if (part)
      parts_.push_back(*std::move(part));
    else
      trouble_ = fmt::format("node {}: {}", node, part.error().message);
  }

  int alone(int status, const std::string& why) {
    // That may have several lines.
    log_.error(fmt::format("--dry-run: the plan of {} alone (--dry-run=local asks for no more): {}",
                           job_.host, why));
    return print(dry_run_text(job_, environment_), status);
  }

  /// A plan that is not there in whole is no success.
  int print(const std::string& text, int status) {
    const auto written = write_all(STDOUT_FILENO, text);
    if (written) return status;
    log_.error("stdout: " + written.error().message);
    return status == kExitOk ? kExitSystem : status;
  }

  template <class Done>
  void wait(Millis patience, Done done) {
    const Instant deadline = SteadyClock::now() + patience;
    while (!done() && SteadyClock::now() < deadline) io_.run_one_until(deadline);
  }

  boost::asio::io_context& io_;
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type>
      busy_;  // it waits with nothing under way
  const Job& job_;
  const Environment& environment_;
  Millis patience_;
  const Log& log_;
  std::unique_ptr<Rendezvous> rendezvous_;
  std::optional<Result<Rendezvous::Membership>> joined_;
  std::optional<Result<AttemptOutcome>> outcome_;
  std::vector<DryRunPart> parts_;  // the first node's own and those that came
  std::size_t num_heard_ = 0;      // of the others
  std::string trouble_;            // with one of them
};

}  // namespace

Millis dry_run_patience(const Options& options, const Job& job) {
  const auto pairs = split_rdzv_conf(options.rdzv_conf);
  const bool told = pairs && std::any_of(pairs->begin(), pairs->end(), [](const auto& pair) {
                      return pair.first == "join_timeout" || pair.first == "timeout";
                    });
  return told ? job.join_timeout : kPatience;
}

int dry_run_of_all(const Job& job, const Environment& environment, Millis patience, const Log& log) {
  const Job meeting = meeting_of(job, patience);
  boost::asio::io_context io(1);  // what is suspended in it goes before the job does
  if (!job.unfit.empty()) return tell_unfit(io, meeting, log);
  return Meeting(io, job, meeting, environment, patience, log).run();
}

}  // namespace muster::launcher
