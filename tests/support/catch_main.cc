// SPDX-License-Identifier: Apache-2.0
// Catch2's main, compiled once for every test program (v2 of Debian 12 or v3).
#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_session.hpp>
int main(int argc, char** argv) {
  return Catch::Session().run(argc, argv);
}
#else
#define CATCH_CONFIG_MAIN
#include <catch2/catch.hpp>
#endif
