// SPDX-License-Identifier: Apache-2.0
#include "launcher/coordinator_seat.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <fstream>
#include <unistd.h>
#include <utility>

#include <boost/asio/ip/address.hpp>
#include <boost/asio/post.hpp>
#include <fmt/format.h>

#include "rendezvous/base/syscall.h"
#include "rendezvous/net/dial.h"
#include "rendezvous/net/port_owner.h"

namespace muster::launcher {
namespace {

namespace asio = boost::asio;
constexpr std::chrono::seconds kLookUpPatience{5};

std::string host_name() {
  char name[256] = "";
  return ::gethostname(name, sizeof name - 1) == 0 ? name : "";
}

bool is_numeric(const std::string& host) {
  boost::system::error_code error;
  (void)asio::ip::make_address(host, error);
  return !error;
}

}  // namespace

bool names_this_host(const std::string& host, const std::vector<InterfaceAddress>& own,
                     const std::string& own_name) {
  if (is_loopback(host) || (!own_name.empty() && host == own_name)) return true;
  boost::system::error_code error;
  const auto wanted = asio::ip::make_address(host, error);
  if (error) return false;
  return std::any_of(own.begin(), own.end(), [&](const InterfaceAddress& entry) {
    boost::system::error_code not_numeric;
    const auto address = asio::ip::make_address(entry.address, not_numeric);
    return !not_numeric && address == wanted;
  });
}

CoordinatorSeat::CoordinatorSeat(asio::io_context& io, const Job& job, const Log& log)
    : io_(io),
      job_(job),
      log_(log),
      port_(job.elastic.endpoint_port),
      resolver_(io),
      timer_(io),
      alive_(std::make_shared<bool>(true)) {}

CoordinatorSeat::~CoordinatorSeat() {
  *alive_ = false;
}

void CoordinatorSeat::take(const std::vector<InterfaceAddress>& own, const std::vector<std::string>&,
                           Callbacks callbacks) {
  const ElasticJob& elastic = job_.elastic;
  std::function<void(Result<void>)> decided = [this, tell = std::move(callbacks.decided)](
                                                  const Result<void>& seat) {
    if (!seat || port_ != 0) return tell(seat);
    tell(fail(ErrorCode::kInvalidArgument,
              fmt::format("--rdzv-endpoint={}:0: the agent on {}, which runs the coordinator, knows the port "
                          "that it was given and has said it; this is another host, or it may run none: "
                          "give that port",
                          job_.elastic.endpoint_host, job_.elastic.endpoint_host)));
  };
  if (elastic.is_host == false) return decided({});
  // It would have nothing to show: the coordinator is elsewhere, or a musterd.
  if (elastic.tls && !elastic.tls_server) return decided({});
  if (elastic.is_host == true || names_this_host(elastic.endpoint_host, own, host_name()))
    return listen(decided);
  if (is_numeric(elastic.endpoint_host)) return decided({});
  look_up(own, std::move(decided));
}

void CoordinatorSeat::look_up(const std::vector<InterfaceAddress>& own,
                              std::function<void(Result<void>)> decided) {
  // Whichever comes first: the answer, or the end of the patience. A name nobody knows is the client's to
  // report.
  const auto once = std::make_shared<std::function<void(bool)>>(
      [this, decided = std::move(decided)](bool here) { here ? listen(decided) : decided({}); });
  const auto tell = [once, alive = alive_](bool here) {
    const auto call = std::exchange(*once, {});
    if (call && *alive) call(here);
  };
  resolver_.async_resolve(job_.elastic.endpoint_host, "",
                          [this, tell, own, alive = alive_](
                              const auto& error, const asio::ip::tcp::resolver::results_type& found) {
                            if (!*alive) return;
                            timer_.cancel();
                            tell(!error && std::any_of(found.begin(), found.end(), [&](const auto& entry) {
                              return names_this_host(entry.endpoint().address().to_string(), own, "");
                            }));
                          });
  timer_.expires_after(kLookUpPatience);
  timer_.async_wait([tell](const auto& error) {
    if (!error) tell(false);
  });
}

void CoordinatorSeat::listen(const std::function<void(Result<void>)>& decided) {
  const ElasticJob& elastic = job_.elastic;
  net::RendezvousServerOptions options;
  if (is_loopback(elastic.endpoint_host))
    options.store.host = elastic.endpoint_host;
  else if (job_.one_node())
    options.store.host = "127.0.0.1";
  options.store.port = port_;
  // Of several agents here all but one find the port taken, and only one that does not reach a coordinator
  // asks by whom: looking at the descriptors of all processes cost 64 agents 2 s.
  options.store.name_port_owner = elastic.is_host == true;
  options.control.secret = elastic.secret;
  // With is_host the other job's own host is not at this port: its agents are here by mistake.
  if (elastic.is_host == true) options.control.jobs.only_job = job_.run_id;
  options.control.jobs.outlives_jobs = false;
  options.control.tls = elastic.tls_server;
  options.control.heartbeat_interval = elastic.heartbeat_interval;
  options.control.on_close = [this, alive = alive_] {
    // Not from within the server, which is about to be stopped.
    asio::post(io_, [this, alive] {
      if (*alive) check_empty();
    });
  };
  auto server = net::RendezvousServer::listen(io_, options, log_);
  if (server) {
    server_ = *std::move(server);
    port_ = server_->port();
    return decided(publish());
  }
  if (elastic.is_host == true) return decided(fail(std::move(server).error()));
  busy_ = server.error().message;
  in_use_ = server.error().code == ErrorCode::kExhausted;
  decided({});
}

Result<void> CoordinatorSeat::publish() {
  const std::string endpoint = title();
  if (job_.elastic.endpoint_port == 0)
    log_.warning(
        fmt::format("the coordinator of job {} listens; start the other nodes with "
                    "--rdzv-endpoint={}",
                    job_.run_id, endpoint));
  const std::string& path = job_.port_file;
  if (path.empty()) return {};
  // Whoever waits for the file finds all of it.
  const std::string unfinished = fmt::format("{}.{}", path, ::getpid());
  std::ofstream file(unfinished, std::ios::trunc);
  file << endpoint << '\n';
  file.close();
  if (file && std::rename(unfinished.c_str(), path.c_str()) == 0) return {};
  std::string text = errno_error("--port-file=" + path, errno).message;
  (void)std::remove(unfinished.c_str());
  return fail(ErrorCode::kIo, std::move(text));
}

std::string CoordinatorSeat::busy() const {
  return busy_.empty() || !in_use_ ? busy_ : busy_ + net::busy_port_advice({}, port_, true);
}

std::string CoordinatorSeat::in_the_way(const Error& error) {
  if (!in_use_ || met_ || error.code == ErrorCode::kMismatch) return {};
  if (in_the_way_.empty()) in_the_way_ = net::busy_port_advice({}, port_, true);
  return in_the_way_;
}

std::string CoordinatorSeat::title() const {
  return net::endpoint_text(job_.elastic.endpoint_host, port_);
}

std::string CoordinatorSeat::host() const {
  if (!taken()) return job_.elastic.endpoint_host;
  // The endpoint may be an address that leads here from outside only.
  return is_loopback(job_.elastic.endpoint_host) ? job_.elastic.endpoint_host : "127.0.0.1";
}

void CoordinatorSeat::see_off(Millis patience, std::function<void()> gone) {
  if (!taken()) return gone();
  gone_ = std::move(gone);
  timer_.expires_after(patience);
  timer_.async_wait([this, alive = alive_](const auto& error) {
    if (error || !*alive) return;
    if (const auto call = std::exchange(gone_, {})) call();
  });
  check_empty();
}

void CoordinatorSeat::check_empty() {
  if (!gone_ || server_->coordinator().stats().num_open > 0) return;
  timer_.cancel();
  std::exchange(gone_, {})();
}

}  // namespace muster::launcher
