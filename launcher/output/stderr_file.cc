// SPDX-License-Identifier: Apache-2.0
#include "launcher/output/stderr_file.h"

#include <algorithm>
#include <fcntl.h>
#include <string_view>
#include <unistd.h>

#include "launcher/text/tail_buffer.h"
#include "rendezvous/base/syscall.h"
#include "rendezvous/base/unique_fd.h"

namespace muster::launcher {

std::optional<Cause> StderrFile::error_so_far(std::string& buffer) {
  if (rotated_)
    search_rotated(buffer);
  else
    search(buffer);
  ErrorWatch watch = errors_;  // a copy: the last line may go on
  watch.finish();
  return watch.found();
}

void StderrFile::search(std::string& buffer) {
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
}

void StderrFile::search_rotated(std::string& buffer) {
  struct Rest {
    FollowedFile& file;
    ~Rest() { file.rest(); }
  } const rest{*rotated_};
  off_t searched = 0;
  while (searched < 2 * kSearchBytes) {
    const std::size_t n = rotated_->read(buffer.data(), buffer.size());
    if (rotated_->take_skipped() > 0) errors_.feed("\n");  // what follows is no part of this line
    if (n == 0) return;
    errors_.feed(std::string_view(buffer.data(), n));
    searched += static_cast<off_t>(n);
  }
  errors_.feed("\n");
  errors_.feed(end_of_log(path_, static_cast<std::size_t>(kSearchBytes)));
}

std::vector<std::string> StderrFile::last_lines(std::size_t count) const {
  TailBuffer tail;
  tail.append(end_of_log(path_, TailBuffer::kDefaultCap));
  return tail.last_lines(count);
}

}  // namespace muster::launcher
