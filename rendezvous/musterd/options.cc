// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/musterd/options.h"

#include <algorithm>
#include <cstdio>
#include <iterator>
#include <string>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <muster/check.h>

namespace muster {
namespace {

struct OptionRow {
  const char* group;
  const char* name;
  const char* value;    ///< what stands for it in --help; empty: a flag
  const char* initial;  ///< as one would write it; empty: none
  const char* meaning;
};
constexpr const char* kListening = "Listening";
constexpr const char* kSecrets = "Secrets and TLS";
constexpr const char* kState = "Jobs and state";
constexpr const char* kLimits = "Limits";

// clang-format off
constexpr OptionRow kOptions[] = {
    OptionRow{kListening, "--host", "ADDRESS", "", "address or name of this host to listen on; without it every address"},
    OptionRow{kListening, "--port", "PORT", "29500", "TCP port; 0 takes any free one, see --port-file"},
    OptionRow{kListening, "--port-file", "FILE", "", "write the port to this file once connections are accepted"},
    OptionRow{kListening, "--listen-fd", "FD", "", "listen with this inherited descriptor of a bound socket"},
    OptionRow{kListening, "--unprotected", "", "", "without a secret and TLS: serve every host, not this one alone; --host and --listen-fd do so too"},
    OptionRow{kListening, "--allow-uid", "UID", "", "with a secret or TLS: serve TCPStore clients of this user too; may be repeated"},
    OptionRow{kListening, "--metrics-addr", "HOST:PORT", "", "answer GET /healthz and /metrics (Prometheus) there; a PORT alone is on 127.0.0.1"},
    OptionRow{kListening, "--log-level", "LEVEL", "info", "what to report on standard error: debug, info, warning, error or off"},
    OptionRow{kListening, "--legacy", "VERSION", "auto", "which PyTorch old clients have: 2.0 (or older), 2.1, or auto to find out"},
    OptionRow{kSecrets, "--secret-file", "FILE", "", "file with the secret that agents must know, instead of the environment variable MUSTER_SECRET"},
    OptionRow{kSecrets, "--job-secret", "JOB=FILE", "", "the secret of one job; a job without any secret is refused then; may be repeated"},
    OptionRow{kSecrets, "--secrets-dir", "DIR", "", "the secrets of jobs, each in a file of the job's name; SIGHUP reads secrets and certificates again"},
    OptionRow{kSecrets, "--tls-cert", "FILE", "", "PEM file with the certificate of musterd; agents must use TLS then"},
    OptionRow{kSecrets, "--tls-key", "FILE", "", "PEM file with its key, which only its owner may read"},
    OptionRow{kSecrets, "--tls-ca", "FILE", "", "PEM file with certificates to trust; agents must show one that is signed by them"},
    OptionRow{kState, "--keep", "SECONDS", "0", "how long a job, or the keys of a torchrun job, are kept after its last agent has left"},
    OptionRow{kState, "--heartbeat-interval", "SECONDS", "5", "time between two heartbeats of an agent"},
    OptionRow{kState, "--state-dir", "DIR", "", "keep keys, queues and jobs in a log in this directory, and go on with them after a restart"},
    OptionRow{kState, "--reconnect-grace", "SECONDS", "60", "how long the agents of jobs found in --state-dir have to come back"},
    OptionRow{kState, "--state-rewrite-min-bytes", "SIZE", "4MiB", "rewrite the log when it has doubled since the last time, and not before it has this size"},
    OptionRow{kLimits, "--max-connections", "N", "200000", "TCPStore clients at a time"},
    OptionRow{kLimits, "--max-keys", "N", "10000000", "keys and queues of one store: that of all TCPStore clients, or that of one job's workers"},
    OptionRow{kLimits, "--max-bytes", "SIZE", "4GiB", "keys, values and queues of one store, with about 100 bytes for each"},
    OptionRow{kLimits, "--max-waits", "N", "10000000", "keys that the clients of one store wait for"},
    OptionRow{kLimits, "--max-buffered-bytes", "SIZE", "4GiB", "unfinished requests and unread answers of all clients, and as much of all agents"},
    OptionRow{kLimits, "--max-agents", "N", "100000", "agents at a time"},
    OptionRow{kLimits, "--max-jobs", "N", "1024", "jobs at a time"},
};
// clang-format on

/// Binds the rows of the table to variables, which get the rows' defaults.
class Binder {
 public:
  explicit Binder(CLI::App& app) : app_(app) {}
  /// After all rows are bound.
  void set_defaults() {
    for (const OptionRow& row : kOptions) {
      CLI::Option* option = app_.get_option_no_throw(row.name);
      MUSTER_CHECK(option != nullptr, row.name);
      if (*row.initial != '\0') option->run_callback_for_default()->default_val(std::string(row.initial));
    }
  }

  template <class T>
  CLI::Option* value(const char* name, T& variable) {
    const OptionRow& row = find(name);
    return add(row, app_.add_option(name, variable, row.meaning));
  }
  CLI::Option* seconds(const char* name, Millis& variable, double least, double most) {
    const OptionRow& row = find(name);
    const auto set = [&variable](double given) {
      variable = Millis(static_cast<std::int64_t>(given * 1000));
    };
    return add(row, app_.add_option_function<double>(name, set, row.meaning))->check(CLI::Range(least, most));
  }
  CLI::Option* count(const char* name, std::size_t& variable) {
    return value(name, variable)->check(CLI::PositiveNumber);
  }
  CLI::Option* size(const char* name, std::size_t& variable) {
    return value(name, variable)->transform(CLI::AsSizeValue(false))->check(CLI::PositiveNumber);
  }
  CLI::Option* flag(const char* name, bool& variable) {
    const OptionRow& row = find(name);
    return app_.add_flag(name, variable, row.meaning)->group(row.group);
  }

 private:
  static const OptionRow& find(std::string_view name) {
    const auto* const row = std::find_if(std::begin(kOptions), std::end(kOptions),
                                         [&](const OptionRow& each) { return each.name == name; });
    MUSTER_CHECK(row != std::end(kOptions), name);
    return *row;
  }
  static CLI::Option* add(const OptionRow& row, CLI::Option* option) {
    const std::string initial = *row.initial == '\0' ? "" : fmt::format(" [{}]", row.initial);
    return option->group(row.group)->option_text(row.value + initial);
  }

  CLI::App& app_;
};

void define(CLI::App& app, MusterdOptions& options, bool& unprotected, std::string& log_level,
            std::string& legacy) {
  Binder bind(app);
  net::ServerOptions& store = options.server.store;
  net::ControlServerOptions& control = options.server.control;
  bind.value("--host", store.host);
  bind.value("--port", store.port)->check(CLI::Range(0, 65535));
  bind.value("--port-file", options.port_file);
  bind.value("--listen-fd", store.listen_fd)->check(CLI::NonNegativeNumber);
  bind.flag("--unprotected", unprotected);
  bind.value("--allow-uid", store.allowed_users)->allow_extra_args(false);
  bind.value("--metrics-addr", options.metrics_addr);
  bind.value("--log-level", log_level)
      ->check(CLI::IsMember({"debug", "info", "warning", "error", "off"}, CLI::ignore_case));
  bind.value("--legacy", legacy)->check(CLI::IsMember({"auto", "2.0", "2.1"}));

  bind.value("--secret-file", options.secret_file);
  bind.value("--job-secret", options.job_secrets.files)->allow_extra_args(false);
  bind.value("--secrets-dir", options.job_secrets.directory);
  bind.value("--tls-cert", options.tls.cert);
  bind.value("--tls-key", options.tls.key);
  bind.value("--tls-ca", options.tls.ca);
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

  bind.seconds("--keep", control.jobs.keep, 0, 1e6);
  bind.seconds("--heartbeat-interval", control.heartbeat_interval, 0.01, 3600);
  CLI::Option* directory = bind.value("--state-dir", options.state.directory);
  bind.seconds("--reconnect-grace", control.restart_grace, 0, 3600)->needs(directory);
  bind.size("--state-rewrite-min-bytes", options.state.rewrite_min_bytes)->needs(directory);

  StoreLimits& limits = store.limits.store;
  bind.count("--max-connections", store.max_connections);
  bind.count("--max-keys", limits.max_keys);
  bind.size("--max-bytes", limits.max_bytes);
  bind.count("--max-waits", limits.max_waits);
  bind.size("--max-buffered-bytes", store.max_buffered_bytes);
  bind.count("--max-agents", control.max_connections);
  bind.count("--max-jobs", control.jobs.max_jobs);
  bind.set_defaults();
}

}  // namespace

int complain(std::string_view text) {
  std::fprintf(stderr, "musterd: %.*s\n", static_cast<int>(text.size()), text.data());
  return 1;
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
    if (error.get_exit_code() == 0) return tl::unexpected(app.exit(error));
    complain(fmt::format("{}; see musterd --help", error.what()));
    return tl::unexpected(2);
  }
  options.log_level = parse_log_level(log_level);
  net::ServerOptions& store = options.server.store;
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
