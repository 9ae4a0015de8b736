// SPDX-License-Identifier: Apache-2.0
// musterd: the TCPStore server and the coordinator of jobs as a program. Exit codes: 0 orderly stop, 1 it
// cannot serve, 2 wrong arguments, a secret or TLS file that cannot be used included.
#include <fcntl.h>
#include <functional>
#include <optional>
#include <signal.h>
#include <string>
#include <unistd.h>
#include <utility>

#include <boost/asio/io_context.hpp>
#include <boost/asio/signal_set.hpp>
#include <fmt/format.h>

#include "rendezvous/base/env.h"
#include "rendezvous/base/env_contract.h"
#include "rendezvous/base/log.h"
#include "rendezvous/base/syscall.h"
#include "rendezvous/musterd/options.h"
#include "rendezvous/protocol/auth.h"
#include "rendezvous/server/rendezvous_server.h"
#include "rendezvous/status/daemon_metrics.h"
#include "rendezvous/wal/state_log.h"

namespace {

using namespace muster;

// What agents have to prove. Read at the start and again at each SIGHUP.
Result<void> read_credentials(const MusterdOptions& options, const Environment& environment,
                              net::ControlServerOptions& out) {
  MUSTER_TRY(out.secret, auth::find_secret(options.secret_file, environment));
  if (!options.job_secrets.empty()) {
    MUSTER_TRY(JobSecrets secrets, JobSecrets::read(options.job_secrets));
    out.job_secrets = std::make_shared<JobSecrets>(std::move(secrets));
  }
  if (const auto& files = options.tls; !files.cert.empty() || !files.key.empty() || !files.ca.empty()) {
    MUSTER_TRY(out.tls, tls::Context::server(files));
  }
  return {};
}

/// The page of the jobs is for whoever knows the secret of those that have none of their own.
void protect_page(const net::ControlServerOptions& credentials, std::optional<net::PageAccess>& page) {
  if (page)
    page->set_token(credentials.secret ? net::page_token(*credentials.secret, "jobs of musterd") : "");
}

void reload_credentials(const MusterdOptions& options, const Environment& environment,
                        net::ControlServer& server, net::ControlServerOptions& control,
                        std::optional<net::PageAccess>& page, const Log& log) {
  net::ControlServerOptions fresh;
  if (const auto read = read_credentials(options, environment, fresh); !read)
    return log.error(fmt::format("SIGHUP: {}; secrets and certificates are unchanged", read.error().message));
  server.set_credentials(fresh);
  control.secret = fresh.secret;
  control.job_secrets = fresh.job_secrets;
  protect_page(control, page);
  log.info(fmt::format("SIGHUP: secrets and certificates were read again{}",
                       fresh.job_secrets
                           ? fmt::format("; {} jobs have a secret of their own", fresh.job_secrets->size())
                           : ""));
}

// Who may come, at the start. Agents: see ControlServer; TCPStore clients: see ServerOptions::Clients.
void log_who_is_served(const Log& log, const net::RendezvousServerOptions& options,
                       const net::Server& store) {
  if (net::protects_itself(options.control)) {
    std::string users = fmt::format("root and user {}", ::geteuid());
    for (const uid_t user : options.store.allowed_users) users += fmt::format(" and user {}", user);
    const bool proves =
        options.control.secret || options.control.job_secrets || options.control.tls->asks_for_certificate();
    log.info(fmt::format("serving agents {}, and TCPStore clients on this host of {}",
                         proves ? "that prove who they are" : "that speak TLS", users));
  } else if (options.this_host_only || store.listener().loopback_only) {
    log.info(
        "serving this host alone, since there is neither a secret nor TLS; for others, use --secret-file, "
        "--tls-cert or --unprotected");
  } else {
    log.warning(fmt::format(
        "serving everybody who reaches {}, since there is neither a secret nor TLS: they may join "
        "any job, and read and write the store",
        store.listener().address));
  }
}

int serve(const MusterdOptions& options) {
  const Log log("musterd", options.log_level);
  // The end of whoever reads the log, and a file size limit, are then errors of write(2).
  for (const int number : {SIGPIPE, SIGXFSZ}) ::signal(number, SIG_IGN);
  raise_descriptor_limit();
  // A file of an earlier run must not be taken for this one's.
  if (!options.port_file.empty() && ::unlink(options.port_file.c_str()) != 0 && errno != ENOENT)
    return complain(errno_error("port file " + options.port_file, errno).message);

  boost::asio::io_context loop(1);
  boost::asio::signal_set signals(loop, SIGINT, SIGTERM), hang_up(loop, SIGHUP);
  net::RendezvousServerOptions server_options = options.server;
  const Environment environment = current_environment();
  wipe_variable(env::kSecret);
  if (const auto read = read_credentials(options, environment, server_options.control); !read)
    return complain(read.error().message, kExitUsage);
  int exit_code = 0;
  std::unique_ptr<net::RendezvousServer> server;
  std::optional<net::PageAccess> page;
  std::unique_ptr<net::StatusServer> status;
  const auto stop = [&] {
    signals.cancel();
    hang_up.cancel();
    if (status) status->stop();
    // First: what is on the disk by this is still told to those who wait for it.
    if (server_options.state && !server_options.state->close()) exit_code = 1;
    server->stop();
  };
  if (!options.state.directory.empty()) {
    net::StateLogOptions state = options.state;
    state.failed = [&](const Error& error) {
      exit_code =
          complain(error.message + "; what was not acknowledged is lost: mend the disk and start again");
      stop();
    };
    auto opened = net::StateLog::open(loop, state, log);
    if (!opened) return complain(opened.error().message);
    server_options.state = *std::move(opened);
  }
  std::optional<net::Listener> status_listener;
  if (!options.metrics_addr.empty()) {
    auto opened = net::open_status_listener("--metrics-addr", options.metrics_addr);
    if (!opened)
      return complain(opened.error().message,
                      opened.error().code == ErrorCode::kInvalidArgument ? kExitUsage : 1);
    status_listener = *std::move(opened);
  }
  auto listening = net::RendezvousServer::listen(loop, server_options, log);
  if (!listening) return complain(listening.error().message);
  server = *std::move(listening);
  if (status_listener) {
    log.info(fmt::format("metrics at http://{}/metrics", status_listener->address));
    page.emplace(status_listener->address);
    protect_page(server_options.control, page);
    log.info(fmt::format("jobs at {}", page->url()));
    status = std::make_unique<net::StatusServer>(
        loop, *std::move(status_listener),
        [&server, &page, &control = server_options.control,
         state = server_options.state.get()](const net::StatusRequest& request) {
          return net::daemon_status(request, *server, state, MUSTER_VERSION, *page,
                                    [&control](std::string_view job) -> std::optional<std::string> {
                                      if (control.job_secrets && control.job_secrets->find(job) != nullptr)
                                        return std::nullopt;
                                      return control.secret ? net::page_token(*control.secret, job) : "";
                                    });
        });
  }
  if (!options.port_file.empty()) {
    if (const auto written = replace_file(options.port_file, fmt::format("{}\n", server->port()), 0644);
        !written)
      return complain("port file " + written.error().message);
  }
  log_who_is_served(log, server_options, server->store());
  signals.async_wait([&](const boost::system::error_code& error, int number) {
    if (error) return;
    const auto stats = server->store().stats();
    log.info(fmt::format(
        "SIG{}: stopping after {} connections and {} requests of TCPStore clients, {} of which are connected",
        ::sigabbrev_np(number), stats.num_accepted, stats.num_requests, stats.num_open));
    stop();
  });
  const std::function<void()> wait_hang_up = [&] {
    hang_up.async_wait([&](const boost::system::error_code& error, int) {
      if (error) return;
      reload_credentials(options, environment, server->coordinator(), server_options.control, page, log);
      wait_hang_up();
    });
  };
  wait_hang_up();
  loop.run();
  return exit_code;
}

}  // namespace

int main(int argc, char** argv) {
  const auto options = muster::parse_options(argc, argv);
  if (!options) return options.error();
  try {
    return serve(*options);
  } catch (const std::exception& error) {
    return muster::complain(error.what());
  }
}
