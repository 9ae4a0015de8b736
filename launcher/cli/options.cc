// SPDX-License-Identifier: Apache-2.0
#include "launcher/cli/options.h"

#include <algorithm>
#include <cctype>
#include <charconv>

#include <fmt/format.h>

#include "launcher/cli/command_line.h"

namespace muster::launcher {
namespace {

/// Where a value came from and what it is.
struct Value {
  std::string text;
  std::string variable;  // "PET_X=text"; empty: it was typed
};

/// By option name. What is typed beats PET_* variables; what is in neither is not in the result, so that the
/// defaults are those of the members of Options.
Result<std::map<std::string, Value>> collect(const CommandLine& line, const Environment& environment) {
  std::map<std::string, Value> out;
  for (const GivenOption& given : line.options) out[std::string(given.row->name)] = {given.value, ""};
  for (const OptionRow& row : kOptionTable) {
    const std::string name(row.name), variable = row.variable();
    if (row.is(kRefused) && out.contains(name)) return usage(fmt::format("--{} is {}", name, row.meaning));
    if (variable.empty() || out.contains(name)) continue;
    const auto text = lookup(environment, variable);
    if (!text) continue;
    if (!row.takes_value()) {
      MUSTER_TRY(const std::int64_t on, parse_integer(variable, *text, INT32_MIN, INT32_MAX));
      if (on == 0) continue;
    }
    out[name] = {row.takes_value() ? std::string(*text) : "", fmt::format("{}={}", variable, *text)};
  }
  return out;
}

std::string wrong_choice(const OptionRow& row, std::string_view text) {
  std::string known;
  for (std::string_view rest = row.metavar; !rest.empty();) {
    const std::string_view word = rest.substr(0, rest.find('|'));
    if (word == text) return {};
    known += fmt::format("{}{}", known.empty() ? "" : ", ", word);
    rest.remove_prefix(std::min(word.size() + 1, rest.size()));
  }
  return fmt::format("not one of {}", known);
}

/// Puts the value where it belongs. Returns what is wrong with it, or an empty text.
class Assigner {
 public:
  Assigner(const OptionRow& row, const std::string& text, Options& options)
      : row_(row), text_(text), options_(options) {}

  std::string operator()(std::monostate) { return "not supported"; }
  std::string operator()(bool Options::*to) {
    options_.*to = true;
    return {};
  }
  std::string operator()(std::string Options::*to) { return set(to, text_); }
  std::string operator()(std::optional<std::string> Options::*to) { return set(to, text_); }
  std::string operator()(int Options::*to) { return whole_number(to); }
  std::string operator()(std::optional<int> Options::*to) { return whole_number(to); }
  std::string operator()(double Options::*to) { return seconds(to); }
  std::string operator()(std::optional<double> Options::*to) { return seconds(to); }

 private:
  template <class To, class From>
  std::string set(To Options::*to, const From& value) {
    options_.*to = value;
    return {};
  }
  template <class To>
  std::string whole_number(To Options::*to) {
    const auto value =
        parse_integer("", text_, static_cast<std::int64_t>(row_.min), static_cast<std::int64_t>(row_.max));
    if (value) return set(to, static_cast<int>(*value));
    return row_.max == INT_MAX ? fmt::format("not a whole number, {} or more", row_.min)
                               : fmt::format("not a whole number, {} to {}", row_.min, row_.max);
  }
  template <class To>
  std::string seconds(To Options::*to) {
    double value = 0;
    const auto [end, error] = std::from_chars(text_.data(), text_.data() + text_.size(), value);
    if (error == std::errc{} && end == text_.data() + text_.size() && value >= row_.min && value <= row_.max)
      return set(to, value);
    return row_.min > 0 ? "not a number of seconds above 0"
                        : fmt::format("not a number of seconds, 0 to {:.0f}", row_.max);
  }

  const OptionRow& row_;
  const std::string& text_;
  Options& options_;
};

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
  if (wrong.empty()) wrong = std::visit(Assigner(row, value.text, out), row.target);
  if (wrong.empty()) return {};
  return usage(typed ? fmt::format("--{}={}: {}", row.name, value.text, wrong)
                     : fmt::format("{}: {}", value.variable, wrong));
}

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
  MUSTER_TRY(const auto values, collect(line, environment));
  Options out;
  for (const OptionRow& row : kOptionTable) {
    const auto found = values.find(std::string(row.name));
    if (found == values.end()) continue;
    MUSTER_OK(assign(row, found->second, out));
    out.given.emplace(row.name, found->second.text);
    if (!found->second.variable.empty()) out.from_environment.emplace(row.name, found->second.variable);
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
    std::visit(
        [&](const auto& to) {
          if constexpr (!std::is_same_v<std::decay_t<decltype(to)>, std::monostate>) out.*to = options.*to;
        },
        row.target);
    if (const auto found = options.given.find(row.name); found != options.given.end())
      out.given.insert(*found);
  }
  return out;
}

}  // namespace muster::launcher
