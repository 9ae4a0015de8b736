// SPDX-License-Identifier: Apache-2.0
#include "launcher/join/make_rendezvous.h"

#include <utility>

#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>

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

}  // namespace muster::launcher
