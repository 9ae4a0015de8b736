// SPDX-License-Identifier: Apache-2.0
// How a program ends where its command line is all there is to do. CLI11 stays in the sources that use it.
#pragma once

#include <cstdio>
#include <sstream>
#include <string>

#include <fmt/format.h>

#include "rendezvous/base/syscall.h"

namespace muster {

/// Prints `asked` (help, version) on stdout, or, where that is empty, one line about what is `wrong`, in
/// CLI11's words. Returns the exit status: 2 for wrong arguments, 71 where stdout takes nothing.
[[nodiscard]] inline int end_of_parsing(const std::string& program, const std::string& asked,
                                        std::string wrong) {
  if (!asked.empty()) {
    const auto written = write_all(STDOUT_FILENO, asked);
    if (written) return 0;
    (void)write_all(STDERR_FILENO, fmt::format("{}: stdout: {}\n", program, written.error().message));
    return 71;
  }
  // "Could not convert: --port = x"
  if (const auto equals = wrong.find(" = "); wrong.starts_with("Could not convert: ") && equals != wrong.npos)
    wrong = fmt::format("{}={}: not a valid number", wrong.substr(19, equals - 19), wrong.substr(equals + 3));
  // "Value 0 not in range 0.100000 to 3600.000000"
  double least = 0, most = 0;
  if (const auto range = wrong.find(" not in range ");
      range != wrong.npos &&
      std::sscanf(wrong.c_str() + range, " not in range %lf to %lf", &least, &most) == 2)
    wrong = fmt::format("{} not in range {:.15g} to {:.15g}", wrong.substr(0, range), least, most);
  (void)write_all(STDERR_FILENO, fmt::format("{}: {}; see {} --help\n", program, wrong, program));
  return 2;
}

/// The same of the CLI::App whose parsing threw a CLI::ParseError.
template <class App, class ParseError>
[[nodiscard]] int end_of_parsing(const std::string& program, const App& app, const ParseError& error) {
  std::ostringstream asked;
  if (error.get_exit_code() == 0) (void)app.exit(error, asked, asked);
  const auto unknown = app.remaining(true);
  return end_of_parsing(program, asked.str(),
                        unknown.empty() ? error.what() : "unknown argument " + unknown.front());
}

}  // namespace muster
