// SPDX-License-Identifier: Apache-2.0
#include "launcher/cli/options.h"

#include <map>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "launcher/cli/command_line.h"
#include "launcher/job/exit_status.h"
#include "launcher/job/failure_rules.h"

namespace muster::launcher {
namespace {

/// Values by option name, after precedence, and where the ones not typed by the user came from.
struct Values {
  std::map<std::string, std::string> values;
  std::map<std::string, std::string> from_environment;  // option name -> "PET_X=value"
};

/// What an option means that is given without one.
std::string without_value(const OptionRow& row) {
  return std::string(row.takes == Takes::kOptional ? row.metavar.substr(0, row.metavar.find('|')) : "");
}

Result<Values> collect(const CommandLine& line, const Environment& environment) {
  Values out;
  for (const GivenOption& given : line.options)
    out.values[std::string(given.row->name)] =
        given.row->takes != Takes::kText && given.value.empty() ? without_value(*given.row) : given.value;
  for (const OptionRow& row : kOptionTable) {
    const std::string name(row.name);
    if (row.env.empty() || out.values.contains(name)) continue;
    const auto text = lookup(environment, row.env);
    if (!text) continue;
    const bool word =
        row.takes == Takes::kOptional && !parse_integer(row.env, *text, INT32_MIN, INT32_MAX).has_value();
    if (row.takes != Takes::kText && !word) {
      MUSTER_TRY(const std::int64_t on, parse_integer(row.env, *text, INT32_MIN, INT32_MAX));
      if (on == 0) continue;
      out.values[name] = without_value(row);
    } else {
      out.values[name] = std::string(*text);
    }
    out.from_environment[name] = fmt::format("{}={}", row.env, *text);
  }
  for (const OptionRow& row : kOptionTable)
    if (row.support == Support::kRefused && out.values.contains(std::string(row.name)))
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("--{} is not supported: {}", row.name, row.meaning));
  return out;
}

/// CLI11's own range checks print the limits of double.
CLI::Validator whole_number(std::int64_t from, std::int64_t to, std::string complaint) {
  return CLI::Validator(
      [from, to, complaint = std::move(complaint)](const std::string& text) {
        return parse_integer("", text, from, to) ? std::string() : complaint;
      },
      "");
}

CLI::Validator seconds(double from, double to, std::string complaint) {
  return CLI::Validator(
      [from, to, complaint = std::move(complaint)](const std::string& text) {
        double value = 0;
        const bool good = CLI::detail::lexical_cast(text, value) && value >= from && value <= to;
        return good ? std::string() : complaint;
      },
      "");
}

void declare(CLI::App& app, Options& o) {
  const CLI::Validator count = whole_number(0, INT32_MAX, "not a whole number, 0 or more");
  app.set_help_flag();
  app.add_option("--nnodes", o.nnodes);
  app.add_option("--nproc-per-node", o.nproc_per_node);
  app.add_option("--node-rank", o.node_rank)->check(count);
  app.add_option("--master-addr", o.master_addr);
  app.add_option("--master-port", o.master_port)
      ->check(whole_number(0, 65535, "not a port number, 0 to 65535"));
  app.add_flag("--standalone", o.standalone);
  app.add_option("--max-restarts", o.max_restarts)->check(count);
  app.add_option("--restart-backoff", o.restart_backoff);
  app.add_option("--no-restart-on", o.no_restart_on);
  app.add_option("--restart-on", o.restart_on);
  app.add_option("--join-at", o.join_at);
  app.add_option("--max-restarts-without-progress", o.max_restarts_without_progress)
      ->check(CLI::NonNegativeNumber);
  app.add_option("--exhausted-exit-code", o.exhausted_exit_code)->check(CLI::Range(1, 255));
  app.add_flag("--module", o.module);
  app.add_flag("--no-python", o.no_python);
  app.add_flag("--run-path", o.run_path);
  app.add_flag("--use-env", o.use_env);
  app.add_flag("--no-use-env", o.no_use_env);
  app.add_option("--local-rank-arg", o.local_rank_arg);
  app.add_option("--log-dir", o.log_dir);
  app.add_option("--redirects", o.redirects);
  app.add_option("--tee", o.tee);
  app.add_option("--local-ranks-filter", o.local_ranks_filter);
  app.add_option("--ranks-filter", o.ranks_filter);
  app.add_option("--view", o.view);
  app.add_option("--log-max-size", o.log_max_size);
  app.add_option("--log-keep", o.log_keep);
  app.add_option("--duplicate-stdout-filters", o.duplicate_stdout_filters);
  app.add_option("--duplicate-stderr-filters", o.duplicate_stderr_filters);
  app.add_option("--log-line-prefix-template", o.log_line_prefix_template);
  app.add_option("--role", o.role);
  app.add_option("--rdzv-id", o.rdzv_id);
  app.add_option("--rdzv-backend", o.rdzv_backend);
  app.add_option("--rdzv-endpoint", o.rdzv_endpoint);
  app.add_option("--rdzv-conf", o.rdzv_conf);
  app.add_option("--monitor-interval", o.monitor_interval_s)
      ->check(seconds(1e-6, 1e9, "not a number of seconds above 0"));
  app.add_option("--start-method", o.start_method)->check(CLI::IsMember({"spawn", "fork", "forkserver"}));
  app.add_option("--event-log-handler", o.event_log_handler)
      ->check(CLI::IsMember({"null", "console", "dynamic_rendezvous"}));
  app.add_option("--signals-to-handle", o.signals_to_handle);
  app.add_option("--shutdown-timeout", o.shutdown_timeout_s)
      ->check(seconds(0, 1e6, "not a number of seconds, 0 to 1000000"));
  app.add_option("--hang-timeout", o.hang_timeout);
  app.add_option("--on-hang", o.on_hang);
  app.add_option("--heartbeat-file", o.heartbeat_file);
  app.add_flag("--virtual-local-rank", o.virtual_local_rank);
  app.add_option("--local-addr", o.local_addr);
  app.add_option("--iface", o.iface);
  app.add_option("--port-file", o.port_file);
  app.add_option("--host-map", o.host_map);
  app.add_option("--spares", o.spares)->check(count);
  app.add_option("--secret-file", o.secret_file);
  app.add_option("--metrics-addr", o.metrics_addr);
  app.add_option("--events", o.events);
  app.add_flag("--timeline", o.timeline);
  app.add_flag("--detach", o.detach);
  app.add_option("--job-name", o.job_name);
  app.add_flag("--exec", o.exec);
  app.add_flag("--srun", o.srun);
  app.add_flag("--no-slurm", o.no_slurm);
  app.add_option("--tls-ca", o.tls_ca);
  app.add_option("--tls-cert", o.tls_cert);
  app.add_option("--tls-key", o.tls_key);
  app.add_flag("--store-proxy", o.store_proxy);
  app.add_flag("--no-store-proxy", o.no_store_proxy);
  app.add_option("--gpus", o.gpus);
  app.add_flag("--oversubscribe", o.oversubscribe);
  app.add_option("--bind", o.bind);
  app.add_option("--numa-binding", o.numa_binding);
  app.add_flag("--report-bindings", o.report_bindings);
  app.add_option_function<std::string>("--dry-run",
                                       [&o](const std::string& where) {
                                         o.dry_run = true;
                                         o.dry_run_local = where == "local";
                                       })
      ->check(CLI::IsMember({"all", "local"}));
  app.add_option("--preflight", o.preflight)->check(CLI::IsMember({"off", "quick", "full"}));
  app.add_flag("--doctor", o.doctor);
  app.add_option("--cgroup", o.cgroup)->check(CLI::IsMember({"auto", "off", "required"}));
  app.add_flag("--help", o.help);
  app.add_flag("--version", o.version);
}

/// Where an empty text goes that means something else than none.
std::optional<std::string>* empty_text(std::string_view name, Options& o) {
  if (name == "log-line-prefix-template") return &o.log_line_prefix_template;
  if (name == "duplicate-stdout-filters") return &o.duplicate_stdout_filters;
  if (name == "duplicate-stderr-filters") return &o.duplicate_stderr_filters;
  return nullptr;
}

std::string described(const OptionRow& row) {
  std::string left =
      row.letter != 0 ? fmt::format("-{}, --{}", row.letter, row.name) : fmt::format("    --{}", row.name);
  if (row.takes != Takes::kNothing)
    left += row.takes == Takes::kText ? fmt::format("={}", row.metavar) : fmt::format("[={}]", row.metavar);
  std::string right(row.meaning);
  if (!row.default_text.empty()) right += fmt::format(" [{}]", row.default_text);
  return left.size() > 34 ? fmt::format("  {}\n  {:34}  {}\n", left, "", right)
                          : fmt::format("  {:34}  {}\n", left, right);
}

}  // namespace

Result<Options> parse_options(std::span<const std::string> arguments, const Environment& environment) {
  MUSTER_TRY(CommandLine line, split_command_line(arguments));
  for (const GivenOption& given : line.options) {
    // Asking for help must work in a shell whose PET_* variables are wrong.
    Options only;
    only.help = given.row->name == "help";
    only.version = given.row->name == "version";
    if (given.row->name == "print-completion") only.print_completion = given.value;
    if (only.help || only.version || only.print_completion) return only;
  }
  MUSTER_TRY(const Values collected, collect(line, environment));

  Options out;
  CLI::App app;
  declare(app, out);
  std::string current;
  try {
    // One option at a time, so that an error can say whether it was typed or came from the environment.
    for (const auto& [name, value] : collected.values) {
      const CLI::Option* option = app.get_option_no_throw("--" + name);
      if (option == nullptr) continue;
      // argparse holds what is typed to the choices, not what the environment says; it has no effect anyway.
      if (name == "start-method" && collected.from_environment.contains(name)) continue;
      current = name;
      const bool flag = option->get_items_expected_max() == 0;
      // An empty text is a value here (PET_X="" counts as set), which CLI11 would refuse.
      if (!flag && value.empty()) {
        if (name == "log-dir" || name == "rdzv-endpoint" || name == "rdzv-conf" ||
            name == "local-ranks-filter" || name == "ranks-filter" || name == "local-addr" ||
            name == "iface" || name == "host-map" || name == "port-file" || name == "secret-file" ||
            name == "job-name" || name == "no-restart-on" || name == "restart-on" ||
            name == "heartbeat-file" || name == "metrics-addr" || name == "events" ||
            name.starts_with("tls-"))
          continue;
        if (name == "role") {
          out.role = "";
          continue;
        }
        if (std::optional<std::string>* text = empty_text(name, out)) {
          *text = "";
          continue;
        }
        const bool typed = !collected.from_environment.contains(name);
        return fail(ErrorCode::kInvalidArgument, typed ? fmt::format("--{} needs a value", name)
                                                       : fmt::format("{} has no value; unset it, or give one",
                                                                     collected.from_environment.at(name)));
      }
      app.clear();
      app.parse(
          std::vector<std::string>{flag ? fmt::format("--{}", name) : fmt::format("--{}={}", name, value)});
    }
  } catch (const CLI::Error& error) {
    const auto source = collected.from_environment.find(current);
    const std::string what = source != collected.from_environment.end()
                                 ? source->second
                                 : fmt::format("--{}={}", current, collected.values.at(current));
    std::string_view why = error.what();
    // CLI11 says the name once more.
    if (const std::string name = fmt::format("--{}: ", current); why.starts_with(name))
      why.remove_prefix(name.size());
    return fail(ErrorCode::kInvalidArgument, fmt::format("{}: {}", what, why));
  }

  if (!line.program && out.doctor) line.program = "doctor";  // it is not run
  if (!line.program)
    return fail(ErrorCode::kInvalidArgument,
                "no program given; usage: muster [options] program|script.py [args...] (see muster --help)");
  out.program = std::move(*line.program);
  out.arguments = std::move(line.arguments);
  out.given.insert(collected.values.begin(), collected.values.end());
  out.from_environment.insert(collected.from_environment.begin(), collected.from_environment.end());
  return out;
}

Error with_source(Error error, const Options& options) {
  std::string sources;
  for (const auto& [name, source] : options.from_environment) {
    const std::string option = "--" + name;
    const auto at = error.message.find(option);
    if (at == std::string::npos) continue;
    const auto behind = at + option.size();
    const char next = behind < error.message.size() ? error.message[behind] : ' ';
    if (next == '-' || (next >= 'a' && next <= 'z')) continue;  // a longer name
    sources += fmt::format("{}{}", sources.empty() ? "" : ", ", source);
  }
  if (!sources.empty()) error.message += fmt::format(" ({} in the environment)", sources);
  return error;
}

std::string help_text() {
  std::string out =
      "usage: muster [options] program|script.py [args...]\n\n"
      "Starts one worker per GPU (or --nproc-per-node) on this node, tells each who it is, and keeps them "
      "together:\n"
      "the first failure stops all, and the report says which rank failed and why.\n"
      "A .py file is run by Python, anything executable directly. Options precede the program.\n"
      "Under Slurm: srun -N 2 --ntasks-per-node=1 muster [options] program; nodes and ranks come from "
      "Slurm.\n"
      "In a batch script muster --srun does the same.\n\n"
      "options (";
  std::string typed_only;
  for (const OptionRow& row : kOptionTable)
    if (row.support == Support::kFull && row.env.empty())
      typed_only += fmt::format("{}--{}", typed_only.empty() ? "" : ", ", row.name);
  out += fmt::format("each also as PET_<NAME> in the environment, but for {}; '_' may stand for '-'):\n",
                     typed_only);
  for (const OptionRow& row : kOptionTable)
    if (row.support == Support::kFull) out += described(row);
  out += "\naccepted for torchrun's sake, without effect:\n";
  for (const OptionRow& row : kOptionTable)
    if (row.support == Support::kNoEffect) out += described(row);
  out += "\nnot supported:\n";
  for (const OptionRow& row : kOptionTable)
    if (row.support == Support::kRefused) out += described(row);
  out += fmt::format("\nfailures for --restart-on and --no-restart-on: {}, signal:NAME, exit:CODE\n",
                     failure_words());
  out +=
      "\nexit status: that of the first worker that failed, 128+n if signal n killed it or stopped muster; "
      "else\n";
  for (const ExitCode& row : kExitCodes) out += fmt::format("  {:4}  {}\n", row.code, row.meaning);
  return out;
}

}  // namespace muster::launcher
