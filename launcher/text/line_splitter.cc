// SPDX-License-Identifier: Apache-2.0
#include "launcher/text/line_splitter.h"

namespace muster::launcher {

void TailBuffer::append(std::string_view bytes) {
  if (bytes.size() >= cap_bytes_) {
    bytes_.assign(bytes.substr(bytes.size() - cap_bytes_));
    return;
  }
  if (bytes_.size() + bytes.size() > 2 * cap_bytes_)
    bytes_.erase(0, bytes_.size() + bytes.size() - cap_bytes_);
  bytes_.append(bytes);
}

std::vector<std::string> TailBuffer::last_lines(std::size_t count) const {
  const std::string_view kept =
      std::string_view(bytes_).substr(bytes_.size() - std::min(bytes_.size(), cap_bytes_));
  std::vector<std::string> lines;
  LineSplitter splitter;
  const auto keep = [&](std::string_view line) { lines.emplace_back(line); };
  splitter.feed(kept, keep);
  splitter.finish(keep);
  if (lines.size() > count) lines.erase(lines.begin(), lines.end() - static_cast<std::ptrdiff_t>(count));
  return lines;
}

}  // namespace muster::launcher
