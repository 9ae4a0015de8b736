// SPDX-License-Identifier: Apache-2.0
#include "launcher/progress/runtime_page_reader.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "rendezvous/base/runtime_page.h"
#include "rendezvous/base/syscall.h"

namespace muster::launcher {

RuntimePageReader::RuntimePageReader(std::string_view progress_file) {
  if (progress_file.empty()) return;
  // O_NONBLOCK: the worker may have made a pipe of it.
  UniqueFd file(::open(runtime_page_file(progress_file).c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  struct stat info {};
  if (file && ::fstat(file.get(), &info) == 0 && S_ISREG(info.st_mode)) file_ = std::move(file);
}

std::string RuntimePageReader::read() const {
  std::string out;
  if (!file_) return out;
  out.resize(sizeof(RuntimePage));
  const ssize_t n = retry_eintr([&] { return ::pread(file_.get(), out.data(), out.size(), 0); });
  out.resize(n > 0 ? static_cast<std::size_t>(n) : 0);
  return out;
}

}  // namespace muster::launcher
