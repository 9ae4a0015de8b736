// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/base/hostlist.h"

#include <algorithm>
#include <charconv>
#include <cstdint>

#include <fmt/format.h>

#include "rendezvous/base/text.h"

namespace muster {
namespace {

constexpr std::size_t kMaxDigits = 18;  // of a number: fits 64 bits
constexpr std::size_t kShownBytes = 80;

/// Numbers of a bracket: from `first` to `last`, each at least `width` digits.
struct Range {
  std::uint64_t first = 0;
  std::uint64_t last = 0;
  std::size_t width = 0;

  [[nodiscard]] std::uint64_t size() const { return last - first + 1; }
};

/// A name is texts and brackets in turn: texts[0] brackets[0] texts[1] ...
struct Entry {
  std::vector<std::string_view> texts;
  std::vector<std::vector<Range>> brackets;
};

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

bool is_name_byte(char c) {
  return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' || c == '_' || c == '.';
}

tl::unexpected<Error> refuse(std::string_view entry, std::string_view why) {
  return fail(ErrorCode::kInvalidArgument,
              fmt::format("node list entry '{}': {}", printable(entry, kShownBytes), why));
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
  if (text.empty() || text.size() > kMaxDigits || !std::all_of(text.begin(), text.end(), is_digit))
    return refuse(entry, "brackets hold numbers and ranges, as in n[01-04,7]");
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

Result<std::vector<Range>> parse_bracket(std::string_view text, std::string_view entry) {
  std::vector<Range> out;
  while (true) {
    const auto comma = text.find(',');
    const std::string_view part = text.substr(0, comma);
    const auto dash = part.find('-');
    const std::string_view first = part.substr(0, dash);
    Range range;
    MUSTER_TRY(range.first, parse_number(first, entry));
    range.last = range.first;
    if (dash != std::string_view::npos) {
      MUSTER_TRY(range.last, parse_number(part.substr(dash + 1), entry));
    }
    if (range.last < range.first) return refuse(entry, "a range begins with the smaller number");
    range.width = first.size();
    out.push_back(range);
    if (comma == std::string_view::npos) return out;
    text.remove_prefix(comma + 1);
  }
}

Result<Entry> parse_entry(std::string_view entry) {
  if (entry.empty()) return refuse(entry, "empty");
  Entry out;
  std::string_view rest = entry;
  while (true) {
    const auto open = rest.find('[');
    const std::string_view text = rest.substr(0, open);
    if (!std::all_of(text.begin(), text.end(), is_name_byte))
      return refuse(entry, "a node name is made of letters, digits, '-', '_' and '.'");
    out.texts.push_back(text);
    if (open == std::string_view::npos) return out;
    rest.remove_prefix(open + 1);
    const auto close = rest.find(']');
    if (close == std::string_view::npos) return refuse(entry, "] is missing");
    if (out.brackets.size() == kMaxHostBrackets) return refuse(entry, "too many brackets");
    MUSTER_TRY(std::vector<Range> ranges, parse_bracket(rest.substr(0, close), entry));
    out.brackets.push_back(std::move(ranges));
    rest.remove_prefix(close + 1);
  }
}

/// How many names the entry stands for; more than kMaxHosts counts as kMaxHosts + 1.
std::uint64_t count(const Entry& entry) {
  std::uint64_t total = 1;
  for (const auto& bracket : entry.brackets) {
    std::uint64_t here = 0;
    for (const Range& range : bracket) here = std::min<std::uint64_t>(here + range.size(), kMaxHosts + 1);
    total = std::min<std::uint64_t>(total * here, kMaxHosts + 1);
  }
  return total;
}

/// Appends every name of `entry` that begins with `begun`, the text before bracket number `next`.
Result<void> append_names(const Entry& parts, std::size_t next, const std::string& begun,
                          std::string_view entry, std::vector<std::string>& out) {
  if (begun.size() > kMaxHostName) return refuse(entry, "the name is too long");
  if (next == parts.brackets.size()) {
    out.push_back(begun);
    return {};
  }
  for (const Range& range : parts.brackets[next])
    for (std::uint64_t number = range.first; number <= range.last; ++number)
      MUSTER_OK(append_names(parts, next + 1,
                             fmt::format("{}{:0{}}{}", begun, number, range.width, parts.texts[next + 1]),
                             entry, out));
  return {};
}

}  // namespace

Result<std::vector<std::string>> expand_hostlist(std::string_view text) {
  std::vector<std::string> out;
  while (true) {
    const std::size_t end = entry_end(text);
    const std::string_view entry = text.substr(0, end);
    MUSTER_TRY(const Entry parts, parse_entry(entry));
    if (out.size() + count(parts) > kMaxHosts)
      return refuse(entry, fmt::format("with it the list has more than {} nodes", kMaxHosts));
    MUSTER_OK(append_names(parts, 0, std::string(parts.texts.front()), entry, out));
    if (end == text.size()) return out;
    text.remove_prefix(end + 1);
  }
}

}  // namespace muster
