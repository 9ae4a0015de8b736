// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/base/text.h"

#include <algorithm>

#include <fmt/format.h>

namespace muster {

std::string printable(std::string_view bytes, std::size_t max_bytes) {
  std::string out;
  for (const char c : bytes.substr(0, max_bytes)) {
    if (c >= 0x20 && c < 0x7f)
      out.push_back(c);
    else
      out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
  }
  if (bytes.size() > max_bytes) out += fmt::format("... ({} bytes)", bytes.size());
  return out;
}

std::string one_line(std::string_view text, std::size_t max_bytes) {
  std::string out;
  for (std::size_t i = 0; i < text.size() && out.size() <= max_bytes; ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    if (c == 0x1b) {
      if (i + 1 < text.size() && text[i + 1] == '[')
        for (++i; i + 1 < text.size() && (text[i + 1] < '@' || text[i + 1] > '~');) ++i;
      ++i;
      continue;
    }
    // C1 controls in UTF-8 (C2 80 to C2 9F) as well: to some terminals U+009B is ESC [.
    if (c == 0xc2 && i + 1 < text.size() && (text[i + 1] & 0xe0) == 0x80) {
      out.push_back(' ');
      ++i;
      continue;
    }
    out.push_back(c < 0x20 || c == 0x7f ? ' ' : text[i]);
  }
  if (out.size() <= max_bytes) return out;
  while (max_bytes > 0 && (static_cast<unsigned char>(out[max_bytes]) & 0xc0) == 0x80) --max_bytes;
  out.resize(max_bytes);
  return out;
}

std::string counted(std::uint64_t count, std::string_view noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

std::string to_ranges(std::span<const int> sorted, std::string_view separator) {
  std::string out;
  for (std::size_t i = 0; i < sorted.size();) {
    std::size_t last = i;
    while (last + 1 < sorted.size() && std::int64_t{sorted[last + 1]} - sorted[last] == 1) ++last;
    if (!out.empty()) out += separator;
    out += last == i ? fmt::format("{}", sorted[i]) : fmt::format("{}-{}", sorted[i], sorted[last]);
    i = last + 1;
  }
  return out;
}

std::string numbered(std::string_view noun, std::vector<int> numbers, std::string_view separator) {
  std::ranges::sort(numbers);
  return fmt::format("{}{} {}", noun, numbers.size() == 1 ? "" : "s", to_ranges(numbers, separator));
}

std::string endpoint_text(std::string_view host, std::uint16_t port) {
  const bool v6 = host.find(':') != std::string_view::npos;
  return fmt::format("{}{}{}:{}", v6 ? "[" : "", host, v6 ? "]" : "", port);
}

bool is_loopback(std::string_view host) {
  return host == "localhost" || host == "::1" ||
         (host.starts_with("127.") && host.find_first_not_of("0123456789.") == std::string_view::npos);
}

}  // namespace muster
