// SPDX-License-Identifier: Apache-2.0
#include "launcher/text/process_title.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <sys/prctl.h>

#include "rendezvous/base/syscall.h"

namespace muster::launcher {
namespace {

struct Arguments {
  char* begin = nullptr;
  std::size_t size = 0;
};

/// Of proc_pid_stat(5)'s fields the 48th and 49th: arg_start and arg_end. Without a stream, whose pages and
/// locale cost each process that muster forks 0.5 MB.
Arguments own_arguments() {
  const auto stat = read_file("/proc/self/stat", 4096);
  const auto name_end = stat ? stat->rfind(')') : std::string::npos;
  if (name_end == std::string::npos) return {};
  std::string_view rest = std::string_view(*stat).substr(name_end + 1);
  std::array<std::uintptr_t, 2> found{};  // begin and end
  for (std::size_t field = 3; field < 50; ++field) {
    rest.remove_prefix(std::min(rest.find_first_not_of(' '), rest.size()));
    const std::string_view word = rest.substr(0, rest.find(' '));
    rest.remove_prefix(word.size());
    if (field < 48) continue;
    const auto [at, error] = std::from_chars(word.data(), word.data() + word.size(), found.at(field - 48));
    if (error != std::errc() || at != word.data() + word.size()) return {};
  }
  if (found[0] == 0 || found[1] <= found[0]) return {};
  return {reinterpret_cast<char*>(found[0]), found[1] - found[0]};
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
