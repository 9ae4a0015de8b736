// SPDX-License-Identifier: Apache-2.0
#include "launcher/process/fatal_errors.h"

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <unistd.h>

#include <boost/system/system_error.hpp>

#include "launcher/job/exit_status.h"

namespace muster::launcher {
namespace {

[[noreturn]] void end() noexcept {
  try {
    if (const auto thrown = std::current_exception()) std::rethrow_exception(thrown);
  } catch (const boost::system::system_error& error) {
    std::fprintf(stderr, "muster: muster cannot go on: the system refused a resource: %s; see ulimit -n\n",
                 error.what());
    ::_exit(kExitSystem);
  } catch (...) {  // the core dump tells more
  }
  std::abort();
}

}  // namespace

void end_on_fatal_errors() {
  std::set_terminate(end);
}

}  // namespace muster::launcher
