// SPDX-License-Identifier: Apache-2.0
// Bytes written as hex in tests: "05 ff" <-> "\x05\xff". Anything but hex digits separates nothing and is
// skipped.
#pragma once

#include <cctype>
#include <string>
#include <string_view>

namespace muster::test {

inline std::string unhex(std::string_view text) {
  std::string out;
  int high = -1;
  for (const char c : text) {
    if (std::isxdigit(static_cast<unsigned char>(c)) == 0) continue;
    const int digit = c <= '9' ? c - '0' : (c | 0x20) - 'a' + 10;
    if (high < 0) {
      high = digit;
    } else {
      out.push_back(static_cast<char>(high * 16 + digit));
      high = -1;
    }
  }
  return out;
}

inline std::string hex(std::string_view bytes) {
  std::string out;
  for (const char c : bytes) {
    if (!out.empty()) out.push_back(' ');
    out.push_back("0123456789abcdef"[static_cast<unsigned char>(c) >> 4]);
    out.push_back("0123456789abcdef"[static_cast<unsigned char>(c) & 15]);
  }
  return out;
}

}  // namespace muster::test
