// SPDX-License-Identifier: Apache-2.0
#include "launcher/cli/completion.h"

#include <fmt/format.h>

#include "launcher/cli/option_table.h"

namespace muster::launcher {
namespace {

/// Names of the options that are not refused, each put into `form`.
template <class Form>
std::string each_option(const Form& form) {
  std::string out;
  for (const OptionRow& row : kOptionTable)
    if (row.support != Support::kRefused) out += form(row);
  return out;
}

std::string for_bash() {
  const std::string takes = each_option(
      [](const OptionRow& row) { return row.takes == Takes::kText ? fmt::format(" --{}", row.name) : ""; });
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

std::string for_zsh() {
  const auto quoted = [](std::string_view text) {
    std::string out;
    for (const char c : text) {
      if (c == '\'') {
        out += "'\\''";
        continue;
      }
      if (c == '[' || c == ']' || c == ':' || c == '\\') out += '\\';
      out += c;
    }
    return out;
  };
  std::string out = "#compdef muster\n_muster() {\n  _arguments -s -S \\\n";
  out += each_option([&](const OptionRow& row) {
    const std::string value = row.takes == Takes::kText ? fmt::format(":{}:_files", quoted(row.metavar)) : "";
    std::string lines = fmt::format("    '--{}{}[{}]{}' \\\n", row.name, value.empty() ? "" : "=",
                                    quoted(row.meaning), value);
    if (row.letter != 0)
      lines += fmt::format("    '-{}{}[{}]{}' \\\n", row.letter, value.empty() ? "" : "+",
                           quoted(row.meaning), value);
    return lines;
  });
  // Sourced, it registers itself; from a directory of fpath it is the function.
  return out +
         "    '1:program:_files' '*::argument:_files'\n}\n"
         "if [ \"$funcstack[1]\" = _muster ]; then _muster \"$@\"; else compdef _muster muster; fi\n";
}

std::string for_tcsh() {
  const std::string names = each_option([](const OptionRow& row) { return fmt::format(" {}", row.name); });
  return fmt::format("complete muster 'c/--/({})/' 'p/*/f/'\n", names.substr(1));
}

}  // namespace

Result<std::string> completion_script(std::string_view shell) {
  if (shell == "bash") return for_bash();
  if (shell == "zsh") return for_zsh();
  if (shell == "tcsh") return for_tcsh();
  return fail(ErrorCode::kInvalidArgument,
              fmt::format("--print-completion={}: it is one of bash, zsh and tcsh", shell));
}

}  // namespace muster::launcher
