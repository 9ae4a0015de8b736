// SPDX-License-Identifier: Apache-2.0
// musterd: the TCPStore server and the coordinator of jobs as a program. Exit codes: 0 orderly stop, 1 it
// cannot serve, 2 wrong arguments.
#include <cstdio>
#include <fcntl.h>
#include <functional>
#include <limits>
#include <signal.h>
#include <string>
#include <unistd.h>
#include <utility>

#include <CLI/CLI.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/signal_set.hpp>
#include <fmt/format.h>

#include "rendezvous/base/clock.h"
#include "rendezvous/base/env.h"
#include "rendezvous/base/log.h"
#include "rendezvous/base/syscall.h"
#include "rendezvous/base/unique_fd.h"
#include "rendezvous/protocol/auth.h"
#include "rendezvous/server/rendezvous_server.h"
#include "rendezvous/status/daemon_metrics.h"
#include "rendezvous/wal/state_log.h"

namespace {

using namespace muster;

struct Options {
  net::ServerOptions server;
  net::ControlServerOptions control;
  net::StateLogOptions state;
  std::string secret_file;
  JobSecrets::Sources job_secrets;
  tls::Files tls;
  std::string port_file;
  std::string metrics_addr;
  std::string log_level = "info";
  std::string legacy = "auto";
  bool unprotected = false;
  double slow_reader_seconds = 60;
  double keep_seconds = 0;
  double heartbeat_seconds = 5;
  double handshake_seconds = 10;
  double reconnect_grace_seconds = 60;
};

void define_job_limits(CLI::App& app, JobLimits& job) {
  const auto add = [&](const char* name, std::size_t& limit, const char* what) {
    app.add_option(name, limit, what)->check(CLI::PositiveNumber)->capture_default_str();
  };
  add("--max-job-connections", job.max_connections,
      "most clients of a torchrun job, and of a job's proxied store, at a time");
  add("--max-job-keys", job.max_keys, "most keys and queues of a torchrun job, and of a job's proxied store");
  add("--max-job-bytes", job.max_bytes, "most bytes of either, counted as for --max-total-bytes");
  add("--max-job-waits", job.max_waits, "most keys that clients of either wait for or watch");
}

void define(CLI::App& app, Options& options) {
  auto& server = options.server;
  auto& limits = server.limits;
  app.set_version_flag("--version", "musterd " MUSTER_VERSION);
  app.add_option("--host", server.host,
                 "address or name of this host to listen on [every address, IPv6 and IPv4]");
  server.port = 29500;
  app.add_option("--port", server.port, "TCP port; 0: any free one, see --port-file")
      ->check(CLI::Range(0, 65535))
      ->capture_default_str();
  app.add_option("--port-file", options.port_file,
                 "write the port to this file once connections are accepted");
  app.add_option(
      "--metrics-addr", options.metrics_addr,
      "answer GET /healthz and /metrics (Prometheus) there: HOST:PORT, or PORT for 127.0.0.1 [off]");
  app.add_option("--listen-fd", server.listen_fd, "inherited descriptor of a bound socket to listen with")
      ->check(CLI::NonNegativeNumber);
  app.add_flag(
      "--unprotected", options.unprotected,
      "without a secret and TLS: serve every host that reaches the port, not this one alone; --host and "
      "--listen-fd do so too");
  app.add_option(
         "--allow-uid", server.allowed_users,
         "with a secret or TLS: serve TCPStore clients on this host that belong to this user id too, not "
         "only to root and the server's own user; may be repeated")
      ->allow_extra_args(false);
  app.add_option("--log-level", options.log_level, "what to report on standard error")
      ->check(CLI::IsMember({"debug", "info", "warning", "error", "off"}, CLI::ignore_case))
      ->capture_default_str();
  app.add_option("--max-key-bytes", limits.wire.max_key_bytes, "longest key")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--max-value-bytes", limits.wire.max_value_bytes, "longest value in one request")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--max-keys", limits.wire.max_keys, "most keys in one request")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--max-request-bytes", limits.wire.max_request_bytes, "longest request")
      ->capture_default_str();
  app.add_option("--max-output-bytes", limits.max_output_bytes,
                 "longest answer, and most unread ones of a client")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--max-connections", server.max_connections, "most TCPStore clients at a time")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--max-total-keys", limits.store.max_keys,
                 "most keys and queues of all TCPStore clients together")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--max-total-bytes", limits.store.max_bytes,
                 "most bytes of all keys, values and queues, with about 100 for each to keep it")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--max-waits", limits.store.max_waits,
                 "most keys that are waited for or watched, each once for each client")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  define_job_limits(app, limits.store.job);
  app.add_option("--max-buffered-bytes", server.max_buffered_bytes,
                 "most bytes of unfinished requests and unread answers of all clients, and of all agents")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--slow-reader-timeout", options.slow_reader_seconds,
                 "close a client that reads nothing of its answers for so many seconds")
      ->check(CLI::Range(0.001, 1e6))
      ->capture_default_str();
  app.add_option("--legacy", options.legacy,
                 "what clients without VALIDATE are: PyTorch up to 2.0, 2.1, or find out")
      ->check(CLI::IsMember({"auto", "2.0", "2.1"}))
      ->capture_default_str();

  auto& jobs = options.control.jobs;
  app.add_option(
      "--secret-file", options.secret_file,
      "file with the secret that agents have to know, readable by its owner alone [MUSTER_SECRET]; other "
      "hosts are then served as agents only, TCPStore clients on this one");
  app.add_option(
         "--job-secret", options.job_secrets.files,
         "JOB=FILE, may be repeated: the agents of this job have to know the secret in the file, and no "
         "other; a job without a secret is refused then")
      ->allow_extra_args(false);
  app.add_option(
      "--secrets-dir", options.job_secrets.directory,
      "likewise, a file of the job's name for each job; SIGHUP reads secrets and certificates again");
  app.add_option("--tls-cert", options.tls.cert,
                 "PEM file with the certificate to show: agents have to speak TLS");
  app.add_option("--tls-key", options.tls.key, "PEM file with its key, readable by its owner alone");
  app.add_option("--tls-ca", options.tls.ca,
                 "PEM file with the certificates to trust: agents have to show one signed by these");
  // Refused without being repeated: error lines end up in logs.
  app.add_option_function<std::string>(
         "--secret",
         [](const std::string&) {
           throw CLI::ValidationError(
               "--secret",
               "a secret does not belong on a command line, which every user of this host "
               "can read; use MUSTER_SECRET or --secret-file, and choose another secret");
         })
      ->group("");
  app.add_option(
         "--keep", options.keep_seconds,
         "remember a job, and the keys of one of torchrun, for so many seconds after its last agent left")
      ->check(CLI::Range(0.0, 1e6))
      ->capture_default_str();
  app.add_option("--heartbeat-interval", options.heartbeat_seconds,
                 "seconds between two heartbeats of an agent")
      ->check(CLI::Range(0.01, 3600.0))
      ->capture_default_str();
  app.add_option("--max-jobs", jobs.max_jobs, "most jobs at a time")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--max-nodes-per-job", jobs.max_nodes_per_job, "most agents of a job")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--max-node-bytes", jobs.max_node_bytes,
                 "longest description of an agent: host, machine, role and addresses")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--max-agents", options.control.max_connections, "most agents at a time")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--max-handshakes", options.control.max_handshakes,
                 "most agents that have not proven yet that they know the secret; one more closes the oldest")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  auto& stores = options.control.stores;
  app.add_option("--max-store-channels", stores.max_channels,
                 "most connections of an agent's workers to the store that it proxies")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--max-unsent-bytes", options.control.max_unsent_bytes,
                 "close an agent that has so many bytes to read")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--handshake-timeout", options.handshake_seconds,
                 "close an agent that has proven nothing after so many seconds")
      ->check(CLI::Range(0.001, 3600.0))
      ->capture_default_str();
}

void define_state(CLI::App& app, Options& options) {
  auto& state = options.state;
  auto* directory = app.add_option(
      "--state-dir", state.directory,
      "keep keys, queues and jobs in a log in this directory, and go on with them when started again; "
      "nothing is acknowledged before it is on the disk");
  app.add_option("--reconnect-grace", options.reconnect_grace_seconds,
                 "seconds that the agents of jobs found in --state-dir have to come back")
      ->check(CLI::Range(0.0, 3600.0))
      ->needs(directory)
      ->capture_default_str();
  app.add_option("--state-rewrite-factor", state.rewrite_factor,
                 "rewrite the log when it is so many times as long as it was after the last time")
      ->check(CLI::Range(1.5, 1e6))
      ->needs(directory)
      ->capture_default_str();
  app.add_option("--state-rewrite-min-bytes", state.rewrite_min_bytes, "and not before it has so many bytes")
      ->check(CLI::PositiveNumber)
      ->needs(directory)
      ->capture_default_str();
}

// What agents have to prove. Read at the start and again at each SIGHUP.
Result<void> read_credentials(const Options& options, net::ControlServerOptions& out) {
  MUSTER_TRY(out.secret, auth::find_secret(options.secret_file, current_environment()));
  if (!options.job_secrets.empty()) {
    MUSTER_TRY(JobSecrets secrets, JobSecrets::read(options.job_secrets));
    out.job_secrets = std::make_shared<JobSecrets>(std::move(secrets));
  }
  if (const auto& files = options.tls; !files.cert.empty() || !files.key.empty() || !files.ca.empty()) {
    MUSTER_TRY(out.tls, tls::Context::server(files));
  }
  return {};
}

void reload_credentials(const Options& options, net::ControlServer& server, const Log& log) {
  net::ControlServerOptions fresh;
  if (const auto read = read_credentials(options, fresh); !read)
    return log.error(
        fmt::format("SIGHUP: {}; secrets and certificates are as they were", read.error().message));
  server.set_credentials(fresh);
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
  } else if (options.this_host_only || store.loopback_only()) {
    log.info(
        "serving this host alone, since there is neither a secret nor TLS; for others, use --secret-file, "
        "--tls-cert or --unprotected");
  } else {
    log.warning(fmt::format(
        "serving everybody who reaches {}, since there is neither a secret nor TLS: they may join "
        "any job, and read and write the store",
        store.address()));
  }
}

int complain(std::string_view text) {
  std::fprintf(stderr, "musterd: %.*s\n", static_cast<int>(text.size()), text.data());
  return 1;
}

int serve(const Options& options) {
  const Log log("musterd", parse_log_level(options.log_level));
  raise_descriptor_limit();
  // A file of an earlier run must not be taken for this one's.
  if (!options.port_file.empty() && ::unlink(options.port_file.c_str()) != 0 && errno != ENOENT)
    return complain(errno_error("port file " + options.port_file, errno).message);

  boost::asio::io_context loop(1);
  boost::asio::signal_set signals(loop, SIGINT, SIGTERM), hang_up(loop, SIGHUP);
  net::RendezvousServerOptions server_options{.store = options.server, .control = options.control};
  server_options.this_host_only =
      !options.unprotected && options.server.host.empty() && options.server.listen_fd < 0;
  if (const auto read = read_credentials(options, server_options.control); !read)
    return complain(read.error().message);
  int exit_code = 0;
  std::unique_ptr<net::RendezvousServer> server;
  std::unique_ptr<net::StatusServer> status;
  const auto stop = [&] {
    signals.cancel();
    hang_up.cancel();
    if (status) status->stop();
    // First: what is on the disk by this is still told to those who wait for it.
    if (server_options.state) server_options.state->close();
    server->stop();
  };
  if (!options.state.directory.empty()) {
    ::signal(SIGXFSZ, SIG_IGN);  // a file size limit is then an error of write(2)
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
  auto listening = net::RendezvousServer::listen(loop, server_options, log);
  if (!listening) return complain(listening.error().message);
  server = *std::move(listening);
  if (!options.metrics_addr.empty()) {
    auto listener = net::open_status_listener("--metrics-addr", options.metrics_addr);
    if (!listener) {
      complain(listener.error().message);
      return listener.error().code == ErrorCode::kInvalidArgument ? 2 : 1;
    }
    log.info(fmt::format("metrics at http://{}/metrics", listener->address));
    status = std::make_unique<net::StatusServer>(
        loop, *std::move(listener), [&server, state = server_options.state.get()](std::string_view path) {
          return net::daemon_status(path, *server, state, MUSTER_VERSION);
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
    log.info(fmt::format("signal {}: stopping after {} requests of {} connections, {} of them still open",
                         number, stats.num_requests, stats.num_accepted, stats.num_open));
    stop();
  });
  const std::function<void()> wait_hang_up = [&] {
    hang_up.async_wait([&](const boost::system::error_code& error, int) {
      if (error) return;
      reload_credentials(options, server->coordinator(), log);
      wait_hang_up();
    });
  };
  wait_hang_up();
  loop.run();
  return exit_code;
}

}  // namespace

int main(int argc, char** argv) {
  using namespace muster;
  CLI::App app(
      "TCPStore server and coordinator: the rendezvous point of muster's agents and of PyTorch programs (all "
      "versions since 1.9)",
      "musterd");
  Options options;
  define(app, options);
  define_state(app, options);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);
    complain(fmt::format("{}; see musterd --help", error.what()));
    return 2;
  }
  options.server.slow_reader_timeout = Millis(static_cast<std::int64_t>(options.slow_reader_seconds * 1000));
  options.control.jobs.keep = Millis(static_cast<std::int64_t>(options.keep_seconds * 1000));
  options.server.keep_torchrun_jobs = options.control.jobs.keep;
  options.control.heartbeat_interval = Millis(static_cast<std::int64_t>(options.heartbeat_seconds * 1000));
  options.control.handshake_timeout = Millis(static_cast<std::int64_t>(options.handshake_seconds * 1000));
  options.control.max_buffered_bytes = options.server.max_buffered_bytes;
  options.server.first_byte_timeout = options.control.handshake_timeout;
  options.control.restart_grace = Millis(static_cast<std::int64_t>(options.reconnect_grace_seconds * 1000));
  options.control.software = "muster " MUSTER_VERSION;
  if (options.legacy != "auto")
    options.server.limits.legacy =
        options.legacy == "2.0" ? wire::Generation::kTorch20 : wire::Generation::kTorch21;
  try {
    return serve(options);
  } catch (const std::exception& error) {
    return complain(error.what());
  }
}
