// SPDX-License-Identifier: Apache-2.0
// Environment as a value: read once in main and handed in, so that code which depends on it is tested with
// literals.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <muster/result.h>

namespace muster {

/// Name -> value. Ordered, so that what is printed from it is stable.
using Environment = std::map<std::string, std::string, std::less<>>;

/// This process' environment.
[[nodiscard]] Environment current_environment();
/// One variable of it; nothing where it is not set, or empty.
[[nodiscard]] std::optional<std::string> current_value(std::string_view name);
/// Overwrites the variable where /proc/PID/environ shows it, and unsets it: a secret is for nobody who may
/// read this process' environment, or that of what it starts.
void wipe_variable(std::string_view name);

/// The value, or nothing when the variable is not set. An empty value counts as set.
[[nodiscard]] std::optional<std::string_view> lookup(const Environment& environment, std::string_view name);

/// A decimal integer within [min, max]. Errors name the variable, its value and the range.
[[nodiscard]] Result<std::int64_t> parse_integer(std::string_view name, std::string_view text,
                                                 std::int64_t min, std::int64_t max);

/// Such integers with commas between them, at least one.
[[nodiscard]] Result<std::vector<int>> parse_integers(std::string_view name, std::string_view text, int min,
                                                      int max);

/// A required integer variable.
[[nodiscard]] Result<std::int64_t> require_integer(const Environment& environment, std::string_view name,
                                                   std::int64_t min, std::int64_t max);

}  // namespace muster
