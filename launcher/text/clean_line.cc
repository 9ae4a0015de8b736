// SPDX-License-Identifier: Apache-2.0
#include "launcher/text/clean_line.h"

#include <algorithm>

#include "rendezvous/base/text.h"

namespace muster::launcher {
namespace {

constexpr std::size_t kMaxTextBytes = 300;

}  // namespace

std::string one_clean_line(std::string_view text) {
  std::string out = one_line(text.substr(0, std::min(text.find('\n'), 4 * kMaxTextBytes)));
  const auto first = out.find_first_not_of(' ');
  if (first == std::string::npos) return {};
  out = one_line(std::string_view(out).substr(first), kMaxTextBytes);
  out.erase(out.find_last_not_of(' ') + 1);
  return out;
}

}  // namespace muster::launcher
