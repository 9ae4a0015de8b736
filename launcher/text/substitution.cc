// SPDX-License-Identifier: Apache-2.0
#include "launcher/text/substitution.h"

#include <algorithm>
#include <cctype>

namespace muster::launcher {
namespace {

/// Length of the name at the front of `text`, 0 if there is none.
std::size_t name_length(std::string_view text) {
  constexpr std::string_view kNameCharacters =
      "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_";
  if (text.empty() || (text[0] >= '0' && text[0] <= '9')) return 0;
  return std::min(text.find_first_not_of(kNameCharacters), text.size());
}

}  // namespace

std::string substitute(std::string_view text, const SubstitutionLookup& lookup) {
  std::string out;
  while (!text.empty()) {
    const auto dollar = text.find('$');
    out.append(text.substr(0, dollar));
    if (dollar == std::string_view::npos) break;
    text.remove_prefix(dollar);
    if (text.size() > 1 && text[1] == '$') {
      out.push_back('$');
      text.remove_prefix(2);
      continue;
    }
    const bool braced = text.size() > 1 && text[1] == '{';
    const std::string_view rest = text.substr(braced ? 2 : 1);
    const std::size_t length = name_length(rest);
    const bool closed = !braced || (length < rest.size() && rest[length] == '}');
    const std::size_t used = length == 0 || !closed ? 1 : length + (braced ? 3 : 1);
    const auto value = used > 1 ? lookup(rest.substr(0, length)) : std::nullopt;
    out.append(value ? *value : text.substr(0, used));
    text.remove_prefix(used);
  }
  return out;
}

std::string substitute_local_rank(std::string_view text, int local_rank) {
  return substitute(text, [&](std::string_view name) -> std::optional<std::string> {
    if (name == "local_rank") return std::to_string(local_rank);
    return std::nullopt;
  });
}

std::string shell_word(std::string_view word) {
  const bool plain = !word.empty() && std::ranges::all_of(word, [](unsigned char c) {
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
