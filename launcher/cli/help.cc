// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <utility>

#include <fmt/format.h>

#include "launcher/cli/option_table.h"
#include "launcher/cli/options.h"
#include "launcher/job/exit_status.h"
#include "launcher/job/restart_policy.h"
#include "launcher/text/usage_error.h"

namespace muster::launcher {
namespace {

constexpr std::size_t kWidth = 100;
constexpr std::size_t kLeft = 34;

constexpr std::array kGroups = {
    std::pair{Group::kNodes, "Nodes and workers"},
    std::pair{Group::kRendezvous, "Rendezvous of several nodes"},
    std::pair{Group::kSecurity, "Secrets and encryption"},
    std::pair{Group::kFailures, "Failures, restarts and hangs"},
    std::pair{Group::kOutput, "Output"},
    std::pair{Group::kPlacement, "Placement and checks"},
    std::pair{Group::kRunning, "Slurm, detached jobs and monitoring"},
    std::pair{Group::kHelp, "Help"},
    std::pair{Group::kTorchrun, "Options of torchrun without effect here"},
};

std::string_view first_sentence(std::string_view text) {
  return text.substr(0, text.find(". "));
}

/// A row of --help: the option, and its meaning beside it in lines of at most kWidth columns.
std::string described(const OptionRow& row, std::string_view meaning) {
  std::string left = row.letter != 0 ? fmt::format("  -{}, --{}", row.letter, row.name)
                                     : fmt::format("      --{}", row.name);
  if (row.takes_value()) left += fmt::format("={}", row.metavar);
  std::string right(meaning);
  if (!row.default_text.empty()) right += fmt::format(" [{}]", row.default_text);
  if (left.size() > kLeft) left += fmt::format("\n{:{}}", "", kLeft);
  std::string out = fmt::format("{:{}}", left, kLeft);
  for (std::string_view rest = right; !rest.empty();) {
    std::size_t end = rest.size();
    if (end > kWidth - kLeft - 1) end = rest.rfind(' ', kWidth - kLeft - 1);
    if (end == std::string_view::npos) end = std::min(rest.find(' '), rest.size());
    if (out.back() == '\n') out += fmt::format("{:{}}", "", kLeft);
    out += fmt::format(" {}\n", rest.substr(0, end));
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  return out;
}

/// Names of the options that are not refused, each put into `form`.
template <class Form>
std::string each_option(const Form& form) {
  std::string out;
  for (const OptionRow& row : kOptionTable)
    if (!row.is(kRefused)) out += form(row);
  return out;
}

std::string for_bash() {
  const std::string takes = each_option(
      [](const OptionRow& row) { return row.takes_value() ? fmt::format(" --{}", row.name) : ""; });
  const std::string all = each_option([](const OptionRow& row) {
    return fmt::format(" --{}{}", row.name, row.letter != 0 ? fmt::format(" -{}", row.letter) : "");
  });
  // A word that is neither an option nor an option's value is the program: nothing behind it is ours.
  return fmt::format(R"(_muster() {{
  local taking=" {} -r -t " word previous= i
  COMPREPLY=()
  for ((i = 1; i < COMP_CWORD; i++)); do
    word=${{COMP_WORDS[i]}}
    if [[ $word != -* && $word != = && $previous != = && $taking != *" ${{previous//_/-}} "* ]]; then return; fi
    previous=$word
  done
  word=${{COMP_WORDS[COMP_CWORD]}}
  if [[ $word == -* ]]; then COMPREPLY=($(compgen -W "{}" -- "$word")); fi
}}
complete -o default -o bashdefault -F _muster muster
)",
                     takes.substr(1), all.substr(1));
}

std::string escaped(std::string_view text, std::string_view special) {
  std::string out;
  for (const char c : text) {
    if (c == '\'') {
      out += "'\\''";
      continue;
    }
    if (special.find(c) != std::string_view::npos) out += '\\';
    out += c;
  }
  return out;
}

std::string for_zsh() {
  std::string out = "#compdef muster\n_muster() {\n  _arguments -s -S \\\n";
  out += each_option([&](const OptionRow& row) {
    const std::string meaning = escaped(first_sentence(row.meaning), "[]:\\");
    const std::string value =
        row.takes_value() ? fmt::format(":{}:_files", escaped(row.metavar, "[]:\\")) : "";
    std::string lines =
        fmt::format("    '--{}{}[{}]{}' \\\n", row.name, value.empty() ? "" : "=", meaning, value);
    if (row.letter != 0)
      lines += fmt::format("    '-{}{}[{}]{}' \\\n", row.letter, value.empty() ? "" : "+", meaning, value);
    return lines;
  });
  // Sourced, it registers itself; from a directory of fpath it is the function.
  return out +
         "    '1:program:_files' '*::argument:_files'\n}\n"
         "if [ \"$funcstack[1]\" = _muster ]; then _muster \"$@\"; else compdef _muster muster; fi\n";
}

std::string for_fish() {
  // A word that is no option is the program: nothing behind it is ours.
  return each_option([](const OptionRow& row) {
    return fmt::format("complete -c muster -n __fish_use_subcommand -l {}{}{} -d '{}'\n", row.name,
                       row.letter != 0 ? fmt::format(" -s {}", row.letter) : "",
                       row.takes_value() ? " -r" : "", escaped(first_sentence(row.meaning), "\\"));
  });
}

std::string for_tcsh() {
  const std::string names = each_option([](const OptionRow& row) { return fmt::format(" {}", row.name); });
  return fmt::format("complete muster 'c/--/({})/' 'p/*/f/'\n", names.substr(1));
}

}  // namespace

std::string help_text() {
  std::string out =
      "usage: muster [options] program|script.py [args...]\n"
      "Starts the workers of a distributed job on this node, watches them, and says why the job failed.\n";
  for (const auto& [group, title] : kGroups) {
    std::string rows;
    for (const OptionRow& row : kOptionTable)
      if (row.group == group && row.is(kCommon)) rows += described(row, first_sentence(row.meaning));
    if (!rows.empty()) out += fmt::format("{}:\n{}", title, rows);
  }
  return out +
         "Examples:\n"
         "  muster --nproc-per-node=8 train.py\n"
         "  muster --nnodes=2 --rdzv-backend=c10d --rdzv-endpoint=node0 train.py    # on both nodes\n"
         "  srun -N 2 --ntasks-per-node=1 muster train.py                           # under Slurm\n";
}

std::string full_help_text() {
  std::string typed_only;
  for (const OptionRow& row : kOptionTable)
    if (row.is(kTypedOnly) && !row.is(kRefused))
      typed_only += fmt::format("{}--{}", typed_only.empty() ? "" : ", ", row.name);
  std::string out = fmt::format(
      "usage: muster [options] program|script.py [args...]\n\n"
      "Starts one worker per GPU (or --nproc-per-node) on this node and tells each worker its rank. The "
      "first\n"
      "failure stops all workers, and the report says which rank failed and why. Python runs a .py file;\n"
      "anything executable is executed. Options come before the program.\n"
      "An option may also be given as PET_<NAME> in the environment, except\n{}.\n"
      "'_' may stand for '-' in a name, and an unambiguous beginning of a name is enough.\n",
      typed_only);
  for (const auto& [group, title] : kGroups) {
    out += fmt::format("\n{}:\n", title);
    for (const OptionRow& row : kOptionTable)
      if (row.group == group) out += described(row, row.meaning);
  }
  out += fmt::format("\nFailures for --restart-on and --no-restart-on:\n  {}, signal:NAME, exit:CODE\n",
                     failure_names());
  out +=
      "\nExit status: that of the first worker that failed, 128+N if signal N killed it or stopped muster; "
      "otherwise\n";
  for (const ExitCode& row : kExitCodes) out += fmt::format("  {:4}  {}\n", row.code, row.meaning);
  return out;
}

Result<std::string> completion_script(std::string_view shell) {
  if (shell == "bash") return for_bash();
  if (shell == "zsh") return for_zsh();
  if (shell == "fish") return for_fish();
  if (shell == "tcsh") return for_tcsh();
  return usage("--print-completion={}: not one of bash, zsh, fish, tcsh", shell);
}

}  // namespace muster::launcher
