// SPDX-License-Identifier: Apache-2.0
// Options: the command line and the PET_* variables as typed values, by the rows of option_table.h; and back
// as words, for whoever passes them on. Pure. Errors are kInvalidArgument: one line, to be followed by
// exit 2.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <muster/result.h>

#include "launcher/text/usage_error.h"
#include "rendezvous/base/env.h"

namespace muster::launcher {

struct Options {
  std::string nnodes = "1";
  std::optional<std::string> nproc_per_node;  // nothing: one per GPU where there are GPUs, else 1
  std::optional<int> node_rank;
  std::string master_addr = "127.0.0.1";
  std::optional<int> master_port;
  bool standalone = false;
  int max_restarts = 0;
  std::string restart_backoff = "0";
  std::string no_restart_on;
  std::string restart_on;
  std::string join_at = "now";
  int max_restarts_without_progress = 0;
  std::optional<int> exhausted_exit_code;
  bool module = false;
  bool no_python = false;
  bool run_path = false;
  bool use_env = false;
  bool no_use_env = false;
  std::optional<std::string> local_rank_arg;
  std::optional<std::string> log_dir;
  std::string redirects = "0";
  std::string tee = "0";
  std::string local_ranks_filter;
  std::string ranks_filter;
  std::string view = "all";
  std::string log_max_size;
  std::string log_keep = "5";
  std::optional<std::string> duplicate_stdout_filters;
  std::optional<std::string> duplicate_stderr_filters;
  std::optional<std::string> log_line_prefix_template;
  std::string role = "default";
  std::optional<std::string> rdzv_id;
  std::string rdzv_backend = "static";
  std::string rdzv_endpoint;
  std::string rdzv_conf;
  double monitor_interval_s = 0.1;  // this and the next two are checked and have no effect
  std::string start_method = "spawn";
  std::string event_log_handler = "null";
  std::string logs_specs;  // is refused
  std::string signals_to_handle = "SIGTERM,SIGINT,SIGHUP,SIGQUIT";
  std::optional<double> shutdown_timeout_s;
  std::string hang_timeout = "auto";
  std::string on_hang = "report";
  bool virtual_local_rank = false;
  std::string local_addr;
  std::string iface;
  std::string port_file;
  int spares = 0;
  std::string secret_file;
  std::string metrics_addr;
  std::string events;
  bool detach = false;
  std::string job_name;
  std::optional<std::string> print_completion;
  bool exec = false;
  bool srun = false;
  bool no_slurm = false;
  std::string tls_ca;
  std::string tls_cert;
  std::string tls_key;
  bool store_proxy = false;
  bool no_store_proxy = false;
  std::string gpus;
  bool oversubscribe = false;
  std::string bind;
  std::string numa_binding;
  bool report_bindings = false;
  bool dry_run = false;
  std::string preflight = "off";
  std::string cgroup = "auto";
  bool help = false;
  bool help_all = false;
  bool version = false;
  bool doctor = false;

  std::string program;
  std::vector<std::string> arguments;
  std::map<std::string, std::string, std::less<>> given;  // name -> text, typed or PET_*; not defaults
  std::map<std::string, std::string, std::less<>> from_environment;  // of these, name -> "PET_X=text"
};

/// `arguments` without argv[0]. With --help, --help-all, --version, --print-completion or --doctor a program
/// is not required.
[[nodiscard]] Result<Options> parse_options(std::span<const std::string> arguments,
                                            const Environment& environment);

/// One screen: the options that most people use (help.cc).
[[nodiscard]] std::string help_text();
/// All options by group, failures, exit codes.
[[nodiscard]] std::string full_help_text();
/// Completes option names up to the program. `shell`: bash, zsh, fish or tcsh. kInvalidArgument for another.
[[nodiscard]] Result<std::string> completion_script(std::string_view shell);

/// An error about an option that nobody typed also names the variable that it came from.
[[nodiscard]] Error with_source(Error error, const Options& options);

/// The options that were given and that `keep` names, as words of a command line, sorted by name.
[[nodiscard]] std::vector<std::string> option_words(const Options& options,
                                                    const std::function<bool(std::string_view name)>& keep);

/// Defaults, but for the options that have one of these traits (option_table.h).
[[nodiscard]] Options with_traits(const Options& options, unsigned traits);

// Command line: argv cut into muster's options and the program with its arguments, by argparse's rules.
// Options precede the program; everything after it is the program's, except one "--" next to it. Values stay
// text; options.h types them. Pure. Errors are kInvalidArgument with a line that names the option and, for an
// unknown one, the nearest that exists.

struct OptionRow;

struct GivenOption {
  const OptionRow* row;
  std::string value;  // empty for options that take nothing
};

struct CommandLine {
  std::vector<GivenOption> options;    // in the order given
  std::optional<std::string> program;  // nothing: only options were given
  std::vector<std::string> arguments;  // of the program
};

/// `arguments` without argv[0].
[[nodiscard]] Result<CommandLine> split_command_line(std::span<const std::string> arguments);

/// The row of a long option, by its exact name or by an unambiguous prefix; '_' counts as '-'. Without
/// leading dashes.
[[nodiscard]] Result<const OptionRow*> find_option(std::string_view name);

}  // namespace muster::launcher
