// SPDX-License-Identifier: Apache-2.0
#include "launcher/join/make_rendezvous.h"

#include <csignal>
#include <optional>
#include <utility>

#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <fmt/format.h>

#include "launcher/job/exit_status.h"
#include "rendezvous/coordinator/progress_tracker.h"
#include "rendezvous/server/server.h"

namespace muster::launcher {

namespace {

// One node. Every attempt gets an empty store on a loopback port, the given one or one of the kernel's
// choice, so that a restarted worker never meets keys of the attempt before.
class StandaloneRendezvous final : public Rendezvous {
 public:
  StandaloneRendezvous(boost::asio::io_context& io, const Job& job, const Log& log)
      : io_(io), job_(job), log_(log) {}

  void join(int attempt, Joined joined) override {
    if (server_) {
      server_->begin_anew();
    } else {
      net::ServerOptions options;
      options.host = job_.master_addr;
      options.port = job_.master_port;
      auto server = net::Server::listen(io_, options, log_);
      if (!server) return joined(fail(std::move(server).error()));
      server_ = *std::move(server);
    }
    attempt_ = attempt;
    Assignment out;
    out.attempt = attempt;
    out.generation = attempt;
    out.world_size = out.role_world_size = job_.local_world_size;
    out.master_addr = job_.master_addr;
    out.master_port = server_->port();
    joined(std::move(out));
  }

  void watch(Watch watch) override { watch_ = std::move(watch); }

  void announce(const FailureNotice& notice) override {
    FailureNotice out = notice;
    if (out.restart) steps_.note(attempt_, out.reached, true);
    if (const int most = job_.restarts.max_without_progress; out.restart && steps_.exhausted(most)) {
      out.restart = false;
      out.exit_code = kExitNoProgress;
      out.text += "; " + steps_.verdict(most);
    }
    end(std::move(out));
  }

  void succeeded() override { end(AllSucceeded{}); }

  void leave(Millis, std::function<void()> left) override { left(); }

 private:
  void end(AttemptOutcome outcome) {
    boost::asio::post(io_, [call = std::exchange(watch_, {}).outcome, outcome = std::move(outcome)] {
      if (call) call(outcome);
    });
  }

  boost::asio::io_context& io_;
  const Job& job_;
  const Log& log_;
  std::unique_ptr<net::Server> server_;
  Watch watch_;
  int attempt_ = 0;        // of the last join()
  ProgressTracker steps_;  // restarts without progress, as a coordinator counts them for several nodes
};

}  // namespace

std::unique_ptr<Rendezvous> make_rendezvous(boost::asio::io_context& io, const Job& job, const Log& log) {
  if (job.mode == RendezvousMode::kStandalone) return std::make_unique<StandaloneRendezvous>(io, job, log);
  return make_coordinated_rendezvous(io, job, log);
}

namespace {

constexpr std::chrono::seconds kLongLeaveTimeout{10};
constexpr std::chrono::seconds kShortLeaveTimeout{1};

/// The job is over here.
int exit_status_of(const Result<Rendezvous::Membership>& membership, const Log& log) {
  if (!membership) {
    log.error(fmt::format("the other nodes could not be informed: {}", membership.error().message));
    return kExitPreflight;
  }
  const auto* notice = std::get_if<FailureNotice>(&*membership);
  if (notice == nullptr) return kExitPreflight;
  if (!notice->text.empty()) log.error(notice->text);
  return notice->exit_code;
}

}  // namespace

std::unique_ptr<boost::asio::signal_set> handle_signals(boost::asio::io_context& io, const Job& job,
                                                        const Log& log) {
  auto out = std::make_unique<boost::asio::signal_set>(io);
  for (const int signal : job.signals) {
    struct sigaction current {};
    if ((signal == SIGHUP || signal == SIGINT || signal == SIGQUIT) &&
        ::sigaction(signal, nullptr, &current) == 0 && current.sa_handler == SIG_IGN)
      continue;
    boost::system::error_code error;
    out->add(signal, error);
    if (error) log.warning(fmt::format("cannot handle {}: {}", signal_name(signal), error.message()));
  }
  return out;
}

int tell_unhealthy(boost::asio::io_context& io, const Job& job, const Log& log) {
  const auto signals = handle_signals(io, job, log);
  std::optional<int> status;
  int signalled = 0;
  const auto arm = [&] {
    signalled = 0;
    signals->async_wait([&](const auto& error, int signal) {
      if (!error) signalled = signal;
    });
  };
  arm();
  const std::unique_ptr<Rendezvous> rendezvous = make_rendezvous(io, job, log);
  rendezvous->join(
      0, [&](const Result<Rendezvous::Membership>& membership) { status = exit_status_of(membership, log); });
  while (!status && signalled == 0) io.run_one();

  const bool hurried = signalled != 0;
  if (hurried) {
    const FailureNotice notice{.node_rank = job.node_rank,
                               .exit_code = 128 + signalled,
                               .text = fmt::format("{} received on {}", signal_name(signalled), job.host)};
    log.error(notice.text);
    rendezvous->decline(notice);
    status = notice.exit_code;
    arm();
  }
  bool left = false;
  const Millis timeout = hurried ? kShortLeaveTimeout : kLongLeaveTimeout;
  rendezvous->leave(timeout, [&] { left = true; });
  const Instant deadline = SteadyClock::now() + timeout;
  while (!left && signalled == 0 && SteadyClock::now() < deadline)
    io.run_one_for(deadline - SteadyClock::now());
  return *status;
}

}  // namespace muster::launcher
