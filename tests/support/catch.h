// SPDX-License-Identifier: Apache-2.0
// Catch2, whichever major version is installed.
#pragma once

#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_all.hpp>
#else
#include <catch2/catch.hpp>
#endif

/// REQUIREs a Result's success and shows its error's text otherwise.
#define REQUIRE_OK(expression)                                             \
  do {                                                                     \
    const auto& require_ok_ = (expression);                                \
    INFO((require_ok_ ? std::string("ok") : require_ok_.error().message)); \
    REQUIRE(require_ok_.has_value());                                      \
  } while (false)
