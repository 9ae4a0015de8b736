// SPDX-License-Identifier: Apache-2.0
#include "launcher/stderr_file.h"

#include <algorithm>
#include <fcntl.h>
#include <string_view>
#include <unistd.h>

#include "launcher/tail_buffer.h"
#include "rendezvous/base/syscall.h"
#include "rendezvous/base/unique_fd.h"

namespace muster::launcher {

std::optional<Cause> StderrFile::error_so_far(std::string& buffer) {
  const UniqueFd file(::open(path_.c_str(), O_RDONLY | O_CLOEXEC));
  const off_t size = file ? ::lseek(file.get(), 0, SEEK_END) : 0;
  const off_t head_ends = std::min(size, searched_ + kSearchBytes);
  const off_t tail_begins = std::max(head_ends, size - kSearchBytes);
  while (searched_ < size) {
    if (searched_ == head_ends && searched_ < tail_begins) {
      errors_.feed("\n");  // what follows is no part of this line
      searched_ = tail_begins;
    }
    const off_t end = searched_ < head_ends ? head_ends : size;
    const auto most = std::min(buffer.size(), static_cast<std::size_t>(end - searched_));
    const ssize_t n = retry_eintr([&] { return ::pread(file.get(), buffer.data(), most, searched_); });
    if (n <= 0) break;
    errors_.feed(std::string_view(buffer.data(), static_cast<std::size_t>(n)));
    searched_ += n;
  }
  ErrorWatch watch = errors_;  // a copy: the last line may go on
  watch.finish();
  return watch.found();
}

std::vector<std::string> StderrFile::last_lines(std::size_t count) const {
  const UniqueFd file(::open(path_.c_str(), O_RDONLY | O_CLOEXEC));
  const off_t size = file ? ::lseek(file.get(), 0, SEEK_END) : 0;
  std::string end(static_cast<std::size_t>(std::clamp<off_t>(size, 0, TailBuffer::kDefaultCap)), '\0');
  const ssize_t n = retry_eintr(
      [&] { return ::pread(file.get(), end.data(), end.size(), size - static_cast<off_t>(end.size())); });
  TailBuffer tail;
  tail.append(std::string_view(end).substr(0, n > 0 ? static_cast<std::size_t>(n) : 0));
  return tail.last_lines(count);
}

}  // namespace muster::launcher
