// SPDX-License-Identifier: Apache-2.0
#include "launcher/join/unhealthy_node.h"

#include <csignal>
#include <memory>
#include <optional>

#include <boost/asio/signal_set.hpp>
#include <fmt/format.h>

#include "launcher/job/exit_status.h"
#include "launcher/join/make_rendezvous.h"

namespace muster::launcher {
namespace {

constexpr std::chrono::seconds kLeaveTimeout{10};
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

std::string unhealthy_text(const Job& job) {
  return fmt::format("node {} ({}) is unhealthy: {}", job.node_rank, job.host, job.unhealthy);
}

int tell_unhealthy(boost::asio::io_context& io, const Job& job, const Log& log) {
  boost::asio::signal_set signals(io);
  for (const int signal : job.signals) {
    struct sigaction current {};
    if (::sigaction(signal, nullptr, &current) == 0 && current.sa_handler == SIG_IGN) continue;
    boost::system::error_code ignored;
    signals.add(signal, ignored);
  }
  std::optional<int> status;
  int signalled = 0;
  const auto arm = [&] {
    signalled = 0;
    signals.async_wait([&](const auto& error, int signal) {
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
    FailureNotice notice;
    notice.node_rank = job.node_rank;
    notice.exit_code = 128 + signalled;
    notice.text = fmt::format("{} received on {}", signal_name(signalled), job.host);
    log.error(notice.text);
    rendezvous->decline(notice);
    status = notice.exit_code;
    arm();
  }
  bool left = false;
  const Millis timeout = hurried ? kShortLeaveTimeout : kLeaveTimeout;
  rendezvous->leave(timeout, [&] { left = true; });
  const Instant deadline = SteadyClock::now() + timeout;
  while (!left && signalled == 0 && SteadyClock::now() < deadline) io.run_one_until(deadline);
  return *status;
}

}  // namespace muster::launcher
