// SPDX-License-Identifier: Apache-2.0
// HangRules: after how long a silence a worker is taken for one that hangs, and what follows: --hang-timeout
// and --on-hang as values. Pure. Errors are kInvalidArgument: one line that names the option.
#pragma once

#include <string_view>

#include <muster/result.h>

#include "rendezvous/base/clock.h"

namespace muster::launcher {

enum class OnHang { kReport, kRestart, kStop, kLast = kStop };

struct HangRules {
  enum class Watch {
    kOff,
    kAuto,   // those that tell of their progress, by a deadline that follows from what they do
    kFixed,  // everybody, by `limit`; who tells of no progress, by its output
  };
  Watch watch = Watch::kAuto;
  Millis limit{0};  // kFixed: without a sign of life
  Millis start{0};  // likewise, until signs came three times: a first step may take long
  OnHang action = OnHang::kReport;

  /// `timeout`: SECONDS, SECONDS:START, auto or off; START is ten times SECONDS unless given.
  [[nodiscard]] static Result<HangRules> parse(std::string_view timeout, std::string_view on_hang);
};

}  // namespace muster::launcher
