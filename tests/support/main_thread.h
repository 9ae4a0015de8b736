// SPDX-License-Identifier: Apache-2.0
// Catch2's macros are not thread-safe: threads of a test return what they saw, and the main thread asserts.
// These functions end the test program where a macro is used on another thread, also where nothing failed.
#pragma once

#include <cstddef>

namespace muster::testing {

/// Aborts with a line of text unless it is called on the thread of main(), or in a forked child of it.
void require_main_thread(const char* macro, const char* file, std::size_t line);
/// "", for INFO.
const char* main_thread_only();

}  // namespace muster::testing
