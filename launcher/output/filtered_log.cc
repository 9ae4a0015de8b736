// SPDX-License-Identifier: Apache-2.0
#include "launcher/output/filtered_log.h"

#include <algorithm>
#include <cerrno>
#include <fcntl.h>

#include "rendezvous/base/syscall.h"

namespace muster::launcher {

Result<FilteredLog> FilteredLog::create(std::string path, const std::vector<std::string>& texts) {
  UniqueFd file(retry_eintr(
      [&] { return ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0666); }));
  if (!file) return fail(errno_error("create " + path, errno));
  return FilteredLog(std::move(path), std::move(file), texts);
}

void FilteredLog::offer(std::string_view prefix, std::string_view line) {
  if (broken_) return;
  const bool wanted = std::any_of(texts_->begin(), texts_->end(), [&](const std::string& text) {
    return line.find(text) != std::string_view::npos;
  });
  if (wanted) taken_.append(prefix).append(line).push_back('\n');
}

Result<void> FilteredLog::flush() {
  if (taken_.empty()) return {};
  auto written = write_all(file_.get(), taken_);
  taken_.clear();
  if (written) return {};
  broken_ = true;
  return fail("write " + path_ + ", which gets no more lines", std::move(written).error());
}

}  // namespace muster::launcher
