// SPDX-License-Identifier: Apache-2.0
#include "launcher/text/clean_line.h"

#include <algorithm>

namespace muster::launcher {
namespace {

constexpr std::size_t kMaxTextBytes = 300;

}  // namespace

std::string printable(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\x1b') {
      if (i + 1 < text.size() && text[i + 1] == '[') {
        ++i;
        while (i + 1 < text.size() && (text[i + 1] < '@' || text[i + 1] > '~')) ++i;
      }
      ++i;
      continue;
    }
    const auto c = static_cast<unsigned char>(text[i]);
    out.push_back(c < 0x20 || c == 0x7f ? ' ' : text[i]);
  }
  return out;
}

std::string one_clean_line(std::string_view text) {
  std::string out = printable(text.substr(0, std::min(text.find('\n'), 4 * kMaxTextBytes)));
  const auto first = out.find_first_not_of(' ');
  if (first == std::string::npos) return {};
  out.erase(0, first);
  if (out.size() > kMaxTextBytes) {
    std::size_t end = kMaxTextBytes;
    while (end > 0 && (static_cast<unsigned char>(out[end]) & 0xC0) == 0x80) --end;  // not within a character
    out.resize(end);
  }
  out.erase(out.find_last_not_of(' ') + 1);
  return out;
}

}  // namespace muster::launcher
