// SPDX-License-Identifier: Apache-2.0
// Catch2's main, compiled once for every test program (v2 of Debian 12 or v3), with the check that its macros
// are used on the main thread only.
#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_all.hpp>
using Listener = Catch::EventListenerBase;
int main(int argc, char** argv) {
  return Catch::Session().run(argc, argv);
}
#else
#define CATCH_CONFIG_MAIN
#include <catch2/catch.hpp>
using Listener = Catch::TestEventListenerBase;
#endif

#include "tests/support/main_thread.h"

namespace {

struct MainThreadListener : Listener {
  using Listener::Listener;
  void assertionStarting(const Catch::AssertionInfo& info) override {
    muster::testing::require_main_thread(info.macroName.data(), info.lineInfo.file, info.lineInfo.line);
  }
#if !__has_include(<catch2/catch_all.hpp>)
  bool assertionEnded(const Catch::AssertionStats&) override {
    return false;
  }
#endif
};
CATCH_REGISTER_LISTENER(MainThreadListener)

}  // namespace
