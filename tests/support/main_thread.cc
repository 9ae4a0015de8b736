// SPDX-License-Identifier: Apache-2.0
#include "tests/support/main_thread.h"

#include <cstdio>
#include <cstdlib>
#include <thread>

namespace muster::testing {
namespace {
const std::thread::id kMainThread = std::this_thread::get_id();
}  // namespace

void require_main_thread(const char* macro, const char* file, std::size_t line) {
  if (std::this_thread::get_id() == kMainThread) return;
  std::fprintf(stderr,
               "%s:%zu: %s on a thread of the test; return what was seen, and assert on the main thread\n",
               file, line, macro);
  std::abort();
}

const char* main_thread_only() {
  require_main_thread("INFO", "a test", 0);
  return "";
}

}  // namespace muster::testing
