// SPDX-License-Identifier: Apache-2.0
// Substitution of $name and ${name} in arguments and log prefixes, as Python's
// string.Template.safe_substitute does it:
// "$$" is "$", unknown names and stray dollars stay as they are. And words for a shell. Pure.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace muster::launcher {

using SubstitutionLookup = std::function<std::optional<std::string>(std::string_view name)>;

[[nodiscard]] std::string substitute(std::string_view text, const SubstitutionLookup& lookup);

/// Knows `local_rank` only: what workers' arguments are put through.
[[nodiscard]] std::string substitute_local_rank(std::string_view text, int local_rank);

/// The word as a shell has to be given it. On one line: control characters become '?'.
[[nodiscard]] std::string shell_word(std::string_view word);

}  // namespace muster::launcher
