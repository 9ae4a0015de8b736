// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/counter.h"

#include <charconv>

#include <fmt/format.h>

namespace muster {
namespace {

constexpr std::size_t kShown = 32;  // of a value in an error text

}  // namespace

Result<std::int64_t> add_to_counter(std::string_view key, std::string_view current, std::int64_t delta) {
  std::int64_t value = 0;
  if (!current.empty()) {
    std::string_view digits = current;
    digits.remove_prefix(std::min(digits.find_first_not_of(" \t\n\v\f\r"), digits.size()));
    if (digits.size() > 1 && digits[0] == '+' && digits[1] != '-') digits.remove_prefix(1);
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    if (error != std::errc{} || end == digits.data())
      return fail(ErrorCode::kInvalidArgument, fmt::format("add to key {}: its value '{}' is not a counter",
                                                           key, current.substr(0, kShown)));
  }
  std::int64_t sum = 0;
  if (__builtin_add_overflow(value, delta, &sum))
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("add {} to key {}: {} is too large a counter", delta, key, value));
  return sum;
}

}  // namespace muster
