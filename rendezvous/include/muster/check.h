// SPDX-License-Identifier: Apache-2.0
// MUSTER_CHECK: a condition that only a bug can make false. Prints what was true instead and aborts.
#pragma once

#include <string_view>

namespace muster {
/// Writes "file:line: check failed: expression (detail)" to stderr and aborts.
[[noreturn]] void check_failed(const char* file, int line, const char* expression, std::string_view detail);
}  // namespace muster

#define MUSTER_CHECK(condition, detail)                                 \
  do {                                                                  \
    if (!(condition)) [[unlikely]]                                      \
      ::muster::check_failed(__FILE__, __LINE__, #condition, (detail)); \
  } while (false)
