// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/musterd/options.h"

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <limits>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "rendezvous/base/command_line.h"
#include "rendezvous/base/env.h"

namespace muster {
namespace {

std::string defect_of_count(std::string& text) {
  constexpr auto kMost = std::numeric_limits<std::int64_t>::max();
  return parse_integer("", text, 1, kMost) ? "" : text + " is not a whole number, 1 or more";
}

/// Makes a number of bytes of "64KiB"; or what is wrong with it.
std::string read_size(std::string& text) {
  const std::string given = text;
  try {
    (void)CLI::AsSizeValue(false)(text);
    if (defect_of_count(text).empty()) return {};
  } catch (const CLI::Error&) {
  }
  return given + " is not a size, as in 500000, 64KiB or 4GiB";
}

/// Options of the group that was named last. In --help `value` stands for what one gives, `initial` is the
/// default as one would write it.
class Binder {
 public:
  explicit Binder(CLI::App& app) : app_(app) {}
  void group(const char* name) { group_ = name; }

  template <class T>
  CLI::Option* value(const char* name, T& variable, const char* value, const char* initial,
                     const char* meaning) {
    CLI::Option* option = app_.add_option(name, variable, meaning);
    // As of a shell's variable that is not set: no file, host or directory was meant.
    if constexpr (std::is_same_v<T, std::string>)
      option->check([](const std::string& text) { return text.empty() ? "an empty value" : ""; });
    return finish(option, value, initial);
  }
  CLI::Option* seconds(const char* name, Millis& variable, const char* initial, double least, double most,
                       const char* meaning) {
    const auto set = [&variable](double given) {
      variable = Millis(static_cast<std::int64_t>(given * 1000));
    };
    const auto is_number = [](const std::string& text) {
      return std::isfinite(std::strtod(text.c_str(), nullptr)) ? "" : text + " is not a number";
    };
    return finish(app_.add_option_function<double>(name, set, meaning), "SECONDS", initial)
        ->check(is_number)
        ->check(CLI::Range(least, most));
  }
  CLI::Option* count(const char* name, std::size_t& variable, const char* initial, const char* meaning) {
    return value(name, variable, "N", initial, meaning)->check(CLI::Validator(defect_of_count, ""));
  }
  CLI::Option* size(const char* name, std::size_t& variable, const char* initial, const char* meaning) {
    CLI::Option* option = app_.add_option(name, variable, meaning)->transform(CLI::Validator(read_size, ""));
    return finish(option, "SIZE", initial);
  }
  void flag(const char* name, bool& variable, const char* meaning) {
    app_.add_flag(name, variable, meaning)->group(group_);
  }

 private:
  CLI::Option* finish(CLI::Option* option, const char* value, const char* initial) {
    option->group(group_)->option_text(*initial == '\0' ? value : fmt::format("{} [{}]", value, initial));
    if (*initial != '\0') option->run_callback_for_default()->default_val(std::string(initial));
    return option;
  }

  CLI::App& app_;
  std::string group_;
};

void define(CLI::App& app, MusterdOptions& options, bool& unprotected, std::string& log_level,
            std::string& legacy) {
  Binder bind(app);
  net::ServerOptions& store = options.server.store;
  net::ControlServerOptions& control = options.server.control;

  bind.group("Listening");
  bind.value("--host", store.host, "ADDRESS", "",
             "address or name of this host to listen on; without it every address");
  bind.value("--port", store.port, "PORT", "29500", "TCP port; 0 takes any free one, see --port-file")
      ->check(CLI::Range(0, 65535));
  bind.value("--port-file", options.port_file, "FILE", "",
             "write the port to this file once connections are accepted");
  bind.value("--listen-fd", store.listen_fd, "FD", "",
             "listen with this inherited descriptor of a bound socket")
      ->check(CLI::NonNegativeNumber);
  bind.flag(
      "--unprotected", unprotected,
      "without a secret and TLS: serve every host, not this one alone; --host and --listen-fd do so too");
  bind.value("--allow-uid", store.allowed_users, "UID", "",
             "with a secret or TLS: serve TCPStore clients of this user too; may be repeated")
      ->allow_extra_args(false);
  bind.value("--metrics-addr", options.metrics_addr, "HOST:PORT", "",
             "answer GET /, /healthz, /metrics and /sd (Prometheus) there; a PORT alone is on 127.0.0.1");
  bind.value("--log-level", log_level, "LEVEL", "info",
             "what to report on standard error: debug, info, warning, error or off")
      ->check(CLI::IsMember({"debug", "info", "warning", "error", "off"}, CLI::ignore_case));
  bind.value("--legacy", legacy, "VERSION", "auto",
             "which PyTorch old clients have: 2.0 (or older), 2.1, or auto to find out")
      ->check(CLI::IsMember({"auto", "2.0", "2.1"}));

  bind.group("Secrets and TLS");
  bind.value("--secret-file", options.secret_file, "FILE", "",
             "file with the secret that agents must know, instead of the environment variable MUSTER_SECRET");
  bind.value("--job-secret", options.job_secrets.files, "JOB=FILE", "",
             "the secret of one job; a job without any secret is refused then; may be repeated")
      ->allow_extra_args(false);
  bind.value(
      "--secrets-dir", options.job_secrets.directory, "DIR", "",
      "the secrets of jobs, each in a file of the job's name; SIGHUP reads secrets and certificates again");
  bind.value("--tls-cert", options.tls.cert, "FILE", "",
             "PEM file with the certificate of musterd; agents must use TLS then");
  bind.value("--tls-key", options.tls.key, "FILE", "",
             "PEM file with its key, which only its owner may read");
  bind.value("--tls-ca", options.tls.ca, "FILE", "",
             "PEM file with certificates to trust; agents must show one that is signed by them");
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

  bind.group("Jobs and state");
  bind.seconds("--keep", control.jobs.keep, "0", 0, 1e6,
               "how long a job, or the keys of a torchrun job, are kept after its last agent has left");
  bind.seconds("--heartbeat-interval", control.heartbeat_interval, "5", 0.01, 3600,
               "most time between two heartbeats of an agent; its job's keep_alive_* may ask for less");
  CLI::Option* directory = bind.value(
      "--state-dir", options.state.directory, "DIR", "",
      "keep keys, queues and jobs in a log in this directory, and go on with them after a restart");
  bind.seconds("--restart-grace", control.restart_grace, "60", 0, 3600,
               "how long the agents of jobs found in --state-dir have to come back")
      ->needs(directory);
  bind.size("--state-rewrite-min-bytes", options.state.rewrite_min_bytes, "4MiB",
            "rewrite the log when it has doubled since the last time, and not before it has this size")
      ->needs(directory);

  bind.group("Limits");
  StoreLimits& limits = store.limits.store;
  bind.count("--max-connections", store.max_connections, "200000", "TCPStore clients at a time");
  bind.count("--max-keys", limits.max_keys, "10000000",
             "keys and queues of one store: that of all TCPStore clients, or that of one job's workers");
  bind.size("--max-bytes", limits.max_bytes, "4GiB",
            "keys, values and queues of one store, with about 100 bytes for each");
  bind.count("--max-waits", limits.max_waits, "10000000", "keys that the clients of one store wait for");
  bind.size("--max-buffered-bytes", store.max_buffered_bytes, "4GiB",
            "unfinished requests and unread answers of all clients, and as much of all agents");
  bind.count("--max-agents", control.max_connections, "100000", "agents at a time");
  bind.count("--max-jobs", control.jobs.max_jobs, "1024", "jobs at a time");
}

}  // namespace

int complain(std::string_view text, int exit_code) {
  std::fprintf(stderr, "musterd: %.*s\n", static_cast<int>(text.size()), text.data());
  return exit_code;
}

tl::expected<MusterdOptions, int> parse_options(int argc, char** argv) {
  CLI::App app(
      "TCPStore server and coordinator: where muster's agents and PyTorch programs (all versions since 1.9) "
      "meet.",
      "musterd");
  app.set_version_flag("--version", "musterd " MUSTER_VERSION);
  MusterdOptions options;
  bool unprotected = false;
  std::string log_level, legacy;
  define(app, options, unprotected, log_level, legacy);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return tl::unexpected(end_of_parsing("musterd", app, error));
  }
  options.log_level = parse_log_level(log_level);
  net::ServerOptions& store = options.server.store;
  if (store.listen_fd >= 0 && app.count("--port") == 0) store.port = 0;  // whichever it is bound to
  if (legacy != "auto")
    store.limits.legacy = legacy == "2.0" ? wire::Generation::kTorch20 : wire::Generation::kTorch21;
  net::ControlServerOptions& control = options.server.control;
  store.keep_torchrun_jobs = control.jobs.keep;
  store.first_byte_timeout = control.handshake_timeout;
  control.max_buffered_bytes = store.max_buffered_bytes;
  control.software = "muster " MUSTER_VERSION;
  options.server.this_host_only = !unprotected && store.host.empty() && store.listen_fd < 0;
  return options;
}

}  // namespace muster
