// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/store/counter.h"

#include <algorithm>
#include <charconv>

#include "rendezvous/base/fail.h"

namespace muster {
namespace {

constexpr std::size_t kShown = 32;  // of a value in an error text

}  // namespace

std::optional<std::int64_t> read_counter(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of(" \t\n\v\f\r"), text.size()));
  if (text.size() > 1 && text[0] == '+' && text[1] != '-') text.remove_prefix(1);
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{}) return std::nullopt;
  return value;
}

Result<std::int64_t> add_to_counter(std::string_view key, std::string_view current, std::int64_t delta) {
  const auto number = current.empty() ? std::optional<std::int64_t>(0) : read_counter(current);
  if (!number)
    return invalid("add to key {}: its value '{}' is not a counter", key, current.substr(0, kShown));
  const std::int64_t value = *number;
  std::int64_t sum = 0;
  if (__builtin_add_overflow(value, delta, &sum))
    return invalid("add {} to key {}: {} is too large a counter", delta, key, value);
  return sum;
}

}  // namespace muster
