// SPDX-License-Identifier: Apache-2.0
#include "launcher/plan/step_command.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <functional>

#include <fmt/format.h>

#include "launcher/cli/command_line.h"

namespace muster::launcher {
namespace {

constexpr std::size_t kLongestCommand = 600;

constexpr std::array<std::string_view, 11> kWithoutAgent = {
    "exec",        "module",      "no-python",          "role",    "nnodes", "nproc-per-node", "node-rank",
    "master-addr", "master-port", "virtual-local-rank", "host-map"};

std::string render(const Options& options, const std::function<bool(std::string_view)>& keep,
                   std::string_view added) {
  std::string out = "muster";
  for (const auto& [name, value] : options.given) {
    if (!keep(name) || (name == "nnodes" && value.find(':') == std::string::npos)) continue;
    const auto row = find_option(name);
    if (row && (*row)->takes == Takes::kNothing)
      out += fmt::format(" --{}", name);
    else
      out += fmt::format(" --{}={}", name, value.empty() ? "" : shell_word(value));
  }
  if (!added.empty()) out += fmt::format(" {}", added);
  out.append(" ").append(shell_word(options.program));
  for (const std::string& argument : options.arguments) out.append(" ").append(shell_word(argument));
  if (out.size() > kLongestCommand) out = out.substr(0, kLongestCommand) + " ...";
  return out;
}

}  // namespace

std::string command_text(const Options& options, std::initializer_list<std::string_view> without,
                         std::string_view added) {
  const auto keep = [&](std::string_view name) {
    return std::find(without.begin(), without.end(), name) == without.end();
  };
  return render(options, keep, added);
}

std::string exec_command_text(const Options& options) {
  const auto keep = [](std::string_view name) {
    return works_without_agent(name) && name != "exec" && name != "nnodes" && name != "nproc-per-node" &&
           name != "node-rank";
  };
  return render(options, keep, "--exec");
}

bool works_without_agent(std::string_view name) {
  if (std::find(kWithoutAgent.begin(), kWithoutAgent.end(), name) != kWithoutAgent.end()) return true;
  const auto row = find_option(name);
  return row && (*row)->support == Support::kNoEffect;
}

std::string shell_word(std::string_view word) {
  const bool plain = !word.empty() && std::all_of(word.begin(), word.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 ||
           std::string_view("-_./:=,+@%").find(static_cast<char>(c)) != std::string_view::npos;
  });
  if (plain) return std::string(word);
  std::string out = "'";
  for (const char c : word) {
    if (c == '\'')
      out += "'\\''";
    else
      out += static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? '?' : c;  // it has to stay one line
  }
  return out + "'";
}

}  // namespace muster::launcher
