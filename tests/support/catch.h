// SPDX-License-Identifier: Apache-2.0
// Catch2, whichever major version is installed. Its macros are not thread-safe: threads of a test return what
// they saw, and the main thread asserts. A macro on another thread ends the test program with the place (also
// where nothing failed).
#pragma once

#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_all.hpp>
#else
#include <catch2/catch.hpp>
#endif

#include "tests/support/main_thread.h"

#undef INFO
#define INFO(...) INTERNAL_CATCH_INFO("INFO", ::muster::testing::main_thread_only() << __VA_ARGS__)

/// REQUIREs a Result's success and shows its error's text otherwise.
#define REQUIRE_OK(expression)                                             \
  do {                                                                     \
    const auto& require_ok_ = (expression);                                \
    INFO((require_ok_ ? std::string("ok") : require_ok_.error().message)); \
    REQUIRE(require_ok_.has_value());                                      \
  } while (false)
