// SPDX-License-Identifier: Apache-2.0
#include "launcher/process_title.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <sstream>
#include <string>
#include <sys/prctl.h>

#include "rendezvous/base/syscall.h"

namespace muster::launcher {
namespace {

struct Arguments {
  char* begin = nullptr;
  std::size_t size = 0;
};

/// Of proc_pid_stat(5)'s fields the 48th and 49th: arg_start and arg_end.
Arguments own_arguments() {
  const auto stat = read_file("/proc/self/stat", 4096);
  const auto name_end = stat ? stat->rfind(')') : std::string::npos;
  if (name_end == std::string::npos) return {};
  std::istringstream fields(stat->substr(name_end + 1));
  std::string skipped;
  for (int field = 3; field < 48; ++field) fields >> skipped;
  std::uintptr_t begin = 0, end = 0;
  fields >> begin >> end;
  if (!fields || begin == 0 || end <= begin) return {};
  return {reinterpret_cast<char*>(begin), end - begin};
}

}  // namespace

void set_process_title(const char* title) {
  ::prctl(PR_SET_NAME, title, 0, 0, 0);
  const Arguments own = own_arguments();
  if (own.size == 0) return;
  std::memset(own.begin, 0, own.size);
  std::memcpy(own.begin, title, std::min(std::strlen(title), own.size - 1));
}

}  // namespace muster::launcher
