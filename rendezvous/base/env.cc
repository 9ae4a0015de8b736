// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/base/env.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <unistd.h>

#include "rendezvous/base/fail.h"
#include "rendezvous/base/split.h"

namespace muster {

Environment current_environment() {
  Environment out;
  for (char** entry = ::environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const auto equals = text.find('=');
    if (equals == std::string_view::npos || equals == 0) continue;
    out.emplace(text.substr(0, equals), text.substr(equals + 1));
  }
  return out;
}

std::optional<std::string> current_value(std::string_view name) {
  const char* const value = std::getenv(std::string(name).c_str());
  return value == nullptr || *value == '\0' ? std::nullopt : std::optional<std::string>(value);
}

void wipe_variable(std::string_view name) {
  const std::string key(name);
  if (char* value = std::getenv(key.c_str())) std::fill_n(value, std::strlen(value), '\0');
  ::unsetenv(key.c_str());
}

std::optional<std::string_view> lookup(const Environment& environment, std::string_view name) {
  const auto found = environment.find(name);
  if (found == environment.end()) return std::nullopt;
  return found->second;
}

Result<std::int64_t> parse_integer(std::string_view name, std::string_view text, std::int64_t min,
                                   std::int64_t max) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || value < min || value > max)
    return invalid("{}={} is not an integer between {} and {}", name, text, min, max);
  return value;
}

Result<std::vector<int>> parse_integers(std::string_view name, std::string_view text, int min, int max) {
  std::vector<int> out;
  for (const std::string_view number : split(text, ',')) {
    MUSTER_TRY(const std::int64_t value, parse_integer(name, number, min, max));
    out.push_back(static_cast<int>(value));
  }
  return out;
}

Result<std::int64_t> require_integer(const Environment& environment, std::string_view name, std::int64_t min,
                                     std::int64_t max) {
  const auto text = lookup(environment, name);
  if (!text || text->empty())
    return invalid(
        "environment variable {} is not set; start the program with muster, torchrun or srun, or set it by "
        "hand",
        name);
  return parse_integer(name, *text, min, max);
}

}  // namespace muster
