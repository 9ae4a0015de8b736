// SPDX-License-Identifier: Apache-2.0
#include "launcher/cli/options.h"

#include <algorithm>
#include <cctype>
#include <charconv>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "launcher/cli/option_table.h"
#include "rendezvous/base/split.h"

namespace muster::launcher {

namespace {

/// Where a value came from and what it is.
struct Value {
  std::string text;
  std::string variable;  // "PET_X=text"; empty: it was typed
};

/// What is typed beats the PET_* variable. Nothing: the default stays.
Result<std::optional<Value>> find_value(const OptionRow& row, const CommandLine& line,
                                        const Environment& environment) {
  std::optional<Value> typed;
  for (const GivenOption& given : line.options)
    if (given.row == &row) typed = {given.value, ""};
  if (typed && row.is(kRefused)) return usage("--{} is {}", row.name, row.meaning);
  const std::string variable = row.variable();
  const auto text = typed || variable.empty() ? std::nullopt : lookup(environment, variable);
  if (!text) return typed;
  std::string source = fmt::format("{}={}", variable, *text);
  if (row.takes_value()) return Value{std::string(*text), std::move(source)};
  const auto on = parse_integer(variable, *text, INT32_MIN, INT32_MAX);
  if (!on) return usage("{}: 1 turns it on, 0 off", source);
  return *on == 0 ? std::nullopt : std::optional(Value{"", std::move(source)});
}

std::string wrong_choice(const OptionRow& row, std::string_view text) {
  const std::vector<std::string_view> known = split(row.metavar, '|');
  if (std::ranges::find(known, text) != known.end()) return {};
  return fmt::format("not one of {}", fmt::join(known, ", "));
}

// Each puts the value where it belongs, and returns what is wrong with it, or an empty text.

std::string put_value(const OptionRow&, const std::string&, bool& to) {
  to = true;
  return {};
}

std::string put_value(const OptionRow&, const std::string& text, std::string& to) {
  to = text;
  return {};
}

std::string put_value(const OptionRow& row, const std::string& text, int& to) {
  const auto value =
      parse_integer("", text, static_cast<std::int64_t>(row.min), static_cast<std::int64_t>(row.max));
  if (value) to = static_cast<int>(*value);
  if (value) return {};
  return fmt::format("not a whole number, {:.0f} to {:.0f}", row.min, row.max);
}

std::string put_value(const OptionRow& row, const std::string& text, double& to) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), to);
  if (error == std::errc{} && end == text.data() + text.size() && to >= row.min && to <= row.max) return {};
  return row.min > 0 ? "not a number of seconds above 0"
                     : fmt::format("not a number of seconds, 0 to {:.0f}", row.max);
}

template <class T>
std::string put_value(const OptionRow& row, const std::string& text, std::optional<T>& to) {
  return put_value(row, text, to.emplace());
}

Result<void> assign(const OptionRow& row, const Value& value, Options& out) {
  const bool typed = value.variable.empty();
  if (row.takes_value() && value.text.empty() && !row.is(kKeepsEmpty)) {
    if (row.is(kMayBeEmpty)) return {};
    return usage(typed ? fmt::format("--{} needs a value", row.name)
                       : fmt::format("{} has no value; unset it, or give one", value.variable));
  }
  std::string wrong;
  if (row.is(kChoice)) wrong = wrong_choice(row, value.text);
  // argparse checks the choices of what is typed, not of what the environment says.
  if (!wrong.empty() && row.is(kNoEffect) && !typed) return {};
  if (wrong.empty())
    wrong = std::visit([&](auto to) { return put_value(row, value.text, out.*to); }, row.target);
  if (wrong.empty()) return {};
  return usage(typed ? fmt::format("--{}={}: {}", row.name, value.text, wrong)
                     : fmt::format("{}: {}", value.variable, wrong));
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
    if (!row->takes_value() && equals != std::string_view::npos)
      return usage("--{} takes no value, but '{}' was given", row->name, token.substr(equals + 1));
    if (!row->takes_value() || equals != std::string_view::npos) {
      out_.options.push_back(
          {row, std::string(equals == std::string_view::npos ? "" : token.substr(equals + 1))});
      return {};
    }
    return value_of(row, fmt::format("--{}", row->name));
  }

  /// "-m", "-r3", "-r 3", "-mr3".
  Result<void> letters(std::string_view token) {
    while (!token.empty()) {
      const auto* const row = std::ranges::find(kOptionTable, token[0], &OptionRow::letter);
      if (row == kOptionTable.end())
        return usage("unknown option -{}{}; see muster --help", token[0],
                     token == "n" || token == "np" ? "; the number of workers is --nproc-per-node=N" : "");
      token.remove_prefix(1);
      if (row->takes_value() && token.empty()) return value_of(row, fmt::format("-{}", row->letter));
      if (row->takes_value() && token[0] == '=') token.remove_prefix(1);
      out_.options.push_back({row, std::string(row->takes_value() ? token : "")});
      if (row->takes_value()) return {};
    }
    return {};
  }

  Result<void> value_of(const OptionRow* row, const std::string& option) {
    if (next_ == arguments_.size() || arguments_[next_] == "--" || looks_like_option(arguments_[next_]))
      return usage("{} needs a value: {} {}", option, option, row->metavar);
    out_.options.push_back({row, arguments_[next_++]});
    return {};
  }

  std::span<const std::string> arguments_;
  std::size_t next_ = 0;
  CommandLine out_;
};

}  // namespace

std::string OptionRow::variable() const {
  if (is(kTypedOnly)) return {};
  std::string out = "PET_";
  for (const char c : name)
    out += c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return out;
}

Result<Options> parse_options(std::span<const std::string> arguments, const Environment& environment) {
  MUSTER_TRY(CommandLine line, split_command_line(arguments));
  for (const GivenOption& given : line.options) {
    // Asking for help must work in a shell whose PET_* variables are wrong.
    if (given.row->group != Group::kHelp) continue;
    Options only;
    MUSTER_OK(assign(*given.row, {given.value, ""}, only));
    return only;
  }
  Options out;
  for (const OptionRow& row : kOptionTable) {
    MUSTER_TRY(const std::optional<Value> value, find_value(row, line, environment));
    if (!value) continue;
    MUSTER_OK(assign(row, *value, out));
    out.given.emplace(row.name, value->text);
    if (!value->variable.empty()) out.from_environment.emplace(row.name, value->variable);
  }
  if (!line.program && out.doctor) line.program = "doctor";  // it is not run
  if (!line.program)
    return usage("no program given; usage: muster [options] program|script.py [args...] (see muster --help)");
  out.program = std::move(*line.program);
  out.arguments = std::move(line.arguments);
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

std::vector<std::string> option_words(const Options& options,
                                      const std::function<bool(std::string_view name)>& keep) {
  std::vector<std::string> out;
  for (const auto& [name, value] : options.given) {
    if (!keep(name)) continue;
    const auto row = find_option(name);
    out.push_back(row && !(*row)->takes_value() ? fmt::format("--{}", name)
                                                : fmt::format("--{}={}", name, value));
  }
  return out;
}

Options with_traits(const Options& options, unsigned traits) {
  Options out;
  for (const OptionRow& row : kOptionTable) {
    if (!row.is(traits)) continue;
    std::visit([&](auto to) { out.*to = options.*to; }, row.target);
    if (const auto found = options.given.find(row.name); found != options.given.end())
      out.given.insert(*found);
  }
  return out;
}

Result<const OptionRow*> find_option(std::string_view name) {
  std::string dashed(name);
  std::ranges::replace(dashed, '_', '-');
  std::vector<const OptionRow*> matches;
  for (const OptionRow& row : kOptionTable) {
    if (row.name == dashed) return &row;
    if (!dashed.empty() && row.name.starts_with(dashed)) matches.push_back(&row);
  }
  // What is short enough for torchrun is so here.
  if (std::ranges::count_if(matches, [](const OptionRow* row) { return !row->is(kOwn); }) == 1)
    std::erase_if(matches, [](const OptionRow* row) { return row->is(kOwn); });
  if (matches.size() == 1) return matches.front();
  if (matches.empty())
    return usage("unknown option --{}{} (see muster --help)", name,
                 nearest_name("; the nearest is --", kOptionTable, dashed));
  std::string names;
  for (const OptionRow* row : matches) names += fmt::format("{}--{}", names.empty() ? "" : ", ", row->name);
  return usage("--{} is ambiguous: {}", name, names);
}

Result<CommandLine> split_command_line(std::span<const std::string> arguments) {
  return Splitter(arguments).run();
}

}  // namespace muster::launcher
