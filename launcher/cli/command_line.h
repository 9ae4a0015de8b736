// SPDX-License-Identifier: Apache-2.0
// Command line: argv cut into muster's options and the program with its arguments, by argparse's rules.
// Options precede the program; everything after it is the program's, except one "--" next to it. Values stay
// text; options.h types them. Pure. Errors are kInvalidArgument with a line that names the option and, for an
// unknown one, the nearest that exists.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <muster/result.h>

#include "launcher/cli/option_table.h"

namespace muster::launcher {

struct GivenOption {
  const OptionRow* row;
  std::string value;  // empty for options that take nothing

  friend bool operator==(const GivenOption&, const GivenOption&) = default;
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
