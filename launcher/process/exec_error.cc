// SPDX-License-Identifier: Apache-2.0
#include "launcher/process/exec_error.h"

#include <array>
#include <fcntl.h>
#include <unistd.h>

#include <fmt/format.h>

#include "launcher/output/error_watch.h"
#include "rendezvous/base/syscall.h"
#include "rendezvous/base/unique_fd.h"

namespace muster::launcher {
namespace {

constexpr std::size_t kBeginning = 256;  // the kernel looks no further for "#!" itself

/// Empty: not a file that can be read.
std::string beginning_of(const std::string& path) {
  const UniqueFd fd(retry_eintr([&] { return ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK); }));
  std::array<char, kBeginning> bytes{};
  const ssize_t n = fd ? retry_eintr([&] { return ::read(fd.get(), bytes.data(), bytes.size()); }) : -1;
  return n > 0 ? std::string(bytes.data(), static_cast<std::size_t>(n)) : std::string();
}

std::string missing_interpreter(const std::string& beginning) {
  if (!beginning.starts_with("#!"))
    return "; the file is there: its loader is not, as for a program of another architecture or C library";
  const std::string line = beginning.substr(0, beginning.find('\n'));
  if (line.ends_with('\r'))
    return "; the file is there, but its lines end as Windows ends them, so that its interpreter's name "
           "does, "
           "too: sed -i 's/\\r$//' it";
  return fmt::format("; the file is there, but its first line names an interpreter that is not: {}",
                     one_clean_line(line));
}

std::string unknown_format(const std::string& beginning) {
  if (beginning.starts_with("\x7f"
                            "ELF"))
    return "; is it a program for another architecture?";
  if (beginning.empty()) return "; is it empty?";
  return "; a script begins with a line such as #!/bin/sh";
}

}  // namespace

Error exec_error(const std::string& path, int error_number) {
  Error out = errno_error("execute " + path, error_number);
  switch (error_number) {
    case ENOENT:
      if (::access(path.c_str(), F_OK) == 0) out.message += missing_interpreter(beginning_of(path));
      break;
    case ENOEXEC:
      out.code = ErrorCode::kUnsupported;
      out.message += unknown_format(beginning_of(path));
      break;
    case EACCES:
      out.code = ErrorCode::kUnsupported;
      out.message += "; is its file system mounted noexec, or its interpreter not executable?";
      break;
    case E2BIG:
      out.code = ErrorCode::kUnsupported;
      out.message +=
          "; an argument or a variable is larger than 128 KiB, or all are larger than ulimit -s "
          "permits";
      break;
    case ETXTBSY:
    case ELOOP:
    case EISDIR:
    case EPERM:
      out.code = ErrorCode::kUnsupported;
      break;
    default:
      break;
  }
  return out;
}

}  // namespace muster::launcher
