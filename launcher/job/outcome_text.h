// SPDX-License-Identifier: Apache-2.0
// The outcome of an attempt as the JSON under which agents share it. Pure.
#pragma once

#include <string>
#include <string_view>

#include <muster/result.h>

#include "launcher/job/rendezvous.h"

namespace muster::launcher {

[[nodiscard]] std::string to_json(const AttemptOutcome& outcome);
[[nodiscard]] Result<AttemptOutcome> outcome_from_json(std::string_view text);

}  // namespace muster::launcher
