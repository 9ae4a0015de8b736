// SPDX-License-Identifier: Apache-2.0
#include "launcher/cli/command_line.h"

#include <algorithm>

#include <fmt/format.h>

#include "launcher/text/suggestions.h"

namespace muster::launcher {
namespace {

const OptionRow* find_letter(char letter) {
  const auto found = std::find_if(kOptionTable.begin(), kOptionTable.end(),
                                  [&](const OptionRow& row) { return row.letter == letter && letter != 0; });
  return found == kOptionTable.end() ? nullptr : &*found;
}

/// argparse takes "-1" and "-0.5" for values, since no option looks like a number, and so what has a blank in
/// its name.
bool looks_like_option(std::string_view token) {
  if (token.size() < 2 || token[0] != '-') return false;
  const bool number =
      std::all_of(token.begin() + 1, token.end(), [](char c) { return (c >= '0' && c <= '9') || c == '.'; });
  return !number && token.substr(0, token.find('=')).find(' ') == std::string_view::npos;
}

class Splitter {
 public:
  explicit Splitter(std::span<const std::string> arguments) : arguments_(arguments) {}

  Result<CommandLine> run() {
    bool separator_used = false;
    while (next_ < arguments_.size()) {
      const std::string& token = arguments_[next_];
      if (token == "--") {
        separator_used = true;
        ++next_;
        break;
      }
      if (!looks_like_option(token)) break;
      ++next_;
      if (token.starts_with("--")) {
        MUSTER_OK(long_option(std::string_view(token).substr(2)));
      } else {
        MUSTER_OK(letters(std::string_view(token).substr(1)));
      }
    }
    if (next_ == arguments_.size()) return std::move(out_);
    out_.program = arguments_[next_++];
    if (!separator_used && next_ < arguments_.size() && arguments_[next_] == "--") ++next_;
    out_.arguments.assign(arguments_.begin() + static_cast<std::ptrdiff_t>(next_), arguments_.end());
    return std::move(out_);
  }

 private:
  Result<void> long_option(std::string_view token) {
    const auto equals = token.find('=');
    MUSTER_TRY(const OptionRow* row, find_option(token.substr(0, equals)));
    if (!row->takes_value()) {
      if (equals != std::string_view::npos)
        return usage(
            (fmt::format("--{} takes no value, but '{}' was given", row->name, token.substr(equals + 1))));
      out_.options.push_back({row, {}});
      return {};
    }
    if (equals != std::string_view::npos) {
      out_.options.push_back({row, std::string(token.substr(equals + 1))});
      return {};
    }
    return value_of(row, fmt::format("--{}", row->name));
  }

  /// "-m", "-r3", "-r 3", "-mr3".
  Result<void> letters(std::string_view token) {
    while (!token.empty()) {
      const OptionRow* row = find_letter(token[0]);
      if (row == nullptr) return usage(fmt::format("unknown option -{}; see muster --help", token[0]));
      token.remove_prefix(1);
      if (!row->takes_value()) {
        out_.options.push_back({row, {}});
        continue;
      }
      if (token.empty()) return value_of(row, fmt::format("-{}", row->letter));
      if (token[0] == '=') token.remove_prefix(1);
      out_.options.push_back({row, std::string(token)});
      return {};
    }
    return {};
  }

  Result<void> value_of(const OptionRow* row, const std::string& option) {
    if (next_ == arguments_.size() || arguments_[next_] == "--" || looks_like_option(arguments_[next_]))
      return usage(fmt::format("{} needs a value: {} {}", option, option, row->metavar));
    out_.options.push_back({row, arguments_[next_++]});
    return {};
  }

  std::span<const std::string> arguments_;
  std::size_t next_ = 0;
  CommandLine out_;
};

}  // namespace

Result<const OptionRow*> find_option(std::string_view name) {
  std::string dashed(name);
  std::replace(dashed.begin(), dashed.end(), '_', '-');
  std::vector<const OptionRow*> matches;
  for (const OptionRow& row : kOptionTable) {
    if (row.name == dashed) return &row;
    if (!dashed.empty() && row.name.starts_with(dashed)) matches.push_back(&row);
  }
  // What is short enough for torchrun is so here.
  if (std::count_if(matches.begin(), matches.end(), [](const OptionRow* row) { return !row->is(kOwn); }) == 1)
    std::erase_if(matches, [](const OptionRow* row) { return row->is(kOwn); });
  if (matches.size() == 1) return matches.front();
  if (matches.empty())
    return usage(fmt::format("unknown option --{}; the nearest is --{} (see muster --help)", name,
                             nearest_name(kOptionTable, dashed)));
  std::string names;
  for (const OptionRow* row : matches) names += fmt::format("{}--{}", names.empty() ? "" : ", ", row->name);
  return usage(fmt::format("--{} is ambiguous: {}", name, names));
}

Result<CommandLine> split_command_line(std::span<const std::string> arguments) {
  return Splitter(arguments).run();
}

}  // namespace muster::launcher
