// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/base/hostlist.h"

#include <algorithm>
#include <charconv>
#include <cstdint>

#include <fmt/format.h>

#include "rendezvous/base/fail.h"
#include "rendezvous/base/split.h"
#include "rendezvous/base/text.h"

namespace muster {
namespace {

constexpr std::size_t kMaxDigits = 18;  // of a number: fits 64 bits
constexpr std::size_t kShownBytes = 80;

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

bool is_name_byte(char c) {
  return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' || c == '_' || c == '.';
}

constexpr std::string_view kWhatBracketsHold = "brackets hold numbers and ranges, as in n[01-04,7]";

tl::unexpected<Error> refuse(std::string_view entry, std::string_view why) {
  return invalid("node list entry '{}': {}", printable(entry, kShownBytes), why);
}

/// The bytes of `text` up to the first comma outside of brackets.
std::size_t entry_end(std::string_view text) {
  bool inside = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '[') inside = true;
    if (text[i] == ']') inside = false;
    if (text[i] == ',' && !inside) return i;
  }
  return text.size();
}

Result<std::uint64_t> parse_number(std::string_view text, std::string_view entry) {
  std::uint64_t value = 0;
  if (text.empty() || text.size() > kMaxDigits || !std::ranges::all_of(text, is_digit))
    return refuse(entry, kWhatBracketsHold);
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

/// Appends every name of `entry`: `begun` is the name so far, `rest` what of the entry follows it.
Result<void> append_names(std::string begun, std::string_view rest, std::string_view entry,
                          std::vector<std::string>& out) {
  const auto open = rest.find('[');
  const std::string_view text = rest.substr(0, open);
  if (!std::ranges::all_of(text, is_name_byte))
    return refuse(entry, "a node name is made of letters, digits, '-', '_' and '.'");
  begun += text;
  if (begun.size() > kMaxHostName) return refuse(entry, "the name is too long");
  if (open == std::string_view::npos) {
    if (out.size() == kMaxHosts)
      return refuse(entry, fmt::format("with it the list has more than {} nodes", kMaxHosts));
    out.push_back(std::move(begun));
    return {};
  }
  const auto close = rest.find(']', open);
  if (close == std::string_view::npos) return refuse(entry, "] is missing");
  const std::string_view ranges = rest.substr(open + 1, close - open - 1);
  if (ranges.find('[') != std::string_view::npos) return refuse(entry, kWhatBracketsHold);
  for (const std::string_view range : split(ranges, ',')) {
    const auto dash = range.find('-');
    const std::string_view digits = range.substr(0, dash);
    MUSTER_TRY(const std::uint64_t first, parse_number(digits, entry));
    MUSTER_TRY(const std::uint64_t last, parse_number(range.substr(dash + 1), entry));  // npos + 1: all of it
    if (last < first) return refuse(entry, "a range begins with the smaller number");
    for (std::uint64_t number = first; number <= last; ++number)
      MUSTER_OK(append_names(fmt::format("{}{:0{}}", begun, number, digits.size()), rest.substr(close + 1),
                             entry, out));
  }
  return {};
}

}  // namespace

Result<std::vector<std::string>> expand_hostlist(std::string_view text) {
  std::vector<std::string> out;
  while (true) {
    const std::size_t end = entry_end(text);
    const std::string_view entry = text.substr(0, end);
    if (entry.empty()) return refuse(entry, "empty");
    if (static_cast<std::size_t>(std::ranges::count(entry, '[')) > kMaxHostBrackets)
      return refuse(entry, "too many brackets");
    MUSTER_OK(append_names({}, entry, entry, out));
    if (end == text.size()) return out;
    text.remove_prefix(end + 1);
  }
}

}  // namespace muster
