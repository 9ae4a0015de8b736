// SPDX-License-Identifier: Apache-2.0
#include "launcher/network/host_map.h"

#include <algorithm>
#include <cctype>
#include <utility>

#include <fmt/format.h>

#include "launcher/network/interfaces.h"
#include "launcher/text/split.h"
#include "launcher/text/usage_error.h"
#include "rendezvous/base/syscall.h"

namespace muster::launcher {
namespace {

constexpr std::size_t kMaxFileBytes = std::size_t{16} << 20;
constexpr std::size_t kMaxNameBytes = 253;  // DNS

std::size_t stars(std::string_view text) {
  return static_cast<std::size_t>(std::count(text.begin(), text.end(), '*'));
}

/// Nothing if this may be looked for, or be a pattern of it.
std::string defect_of(std::string_view text) {
  if (text.empty()) return "is empty";
  if (text.size() > kMaxNameBytes) return fmt::format("has more than {} bytes", kMaxNameBytes);
  const bool good = std::all_of(text.begin(), text.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 ||
           std::string_view("_.:-%*").find(static_cast<char>(c)) != std::string_view::npos;
  });
  if (!good) return "is neither a name nor an address";
  return stars(text) > 1 ? "has more than one *" : "";
}

}  // namespace

Result<HostMap> HostMap::read(const std::string& value) {
  if (value.empty()) return HostMap();
  const std::string where = fmt::format("--host-map={}", value);
  if (value.find('=') != std::string::npos) return parse(value, ',', "--host-map");
  const auto text = read_file(value, kMaxFileBytes);
  if (!text)
    return usage("{}: {}; or give NAME=HOST, with commas between several", where,
                 text.error().code == ErrorCode::kNotFound ? "there is no such file" : text.error().message);
  return parse(*text, '\n', where);
}

Result<HostMap> HostMap::parse(std::string_view entries, char separator, std::string_view where) {
  HostMap out;
  std::vector<std::string_view> names;
  std::size_t number = 0;
  for (std::string_view entry : split(entries, separator)) {
    ++number;
    if (separator == '\n') entry = entry.substr(0, entry.find('#'));
    entry = trimmed(entry);
    const auto wrong = [&](const std::string& why) {
      const std::string place = separator == '\n' ? fmt::format(" line {}", number) : "";
      return usage("{}{}: '{}': {}", where, place, entry.substr(0, 2 * kMaxNameBytes), why);
    };
    if (entry.empty() && separator == '\n') continue;
    const auto equals = entry.find('=');
    if (equals == std::string_view::npos) return wrong("not NAME=HOST");
    const std::string_view name = trimmed(entry.substr(0, equals)), host = trimmed(entry.substr(equals + 1));
    if (const std::string defect = defect_of(name); !defect.empty()) return wrong("the name " + defect);
    if (const std::string defect = defect_of(host); !defect.empty()) return wrong("the host " + defect);
    if (stars(host) > stars(name))
      return wrong("the host's * stands for what the name's * found, and there is none");
    names.push_back(name);
    out.entries_.push_back({std::string(name), std::string(host)});
  }
  std::sort(names.begin(), names.end());
  if (const auto twice = std::adjacent_find(names.begin(), names.end()); twice != names.end())
    return usage("{}: {} is there twice", where, *twice);
  return out;
}

std::string HostMap::find(const std::string& name) const {
  for (const Entry& entry : entries_)
    if (entry.name == name) return entry.host;
  if (is_numeric_address(name) || is_loopback(name)) return name;
  for (const Entry& entry : entries_) {
    const auto star = entry.name.find('*');
    if (star == std::string::npos || name.size() + 1 < entry.name.size()) continue;
    const std::string_view before = std::string_view(entry.name).substr(0, star);
    const std::string_view behind = std::string_view(entry.name).substr(star + 1);
    if (!name.starts_with(before) || !name.ends_with(behind)) continue;
    std::string out = entry.host;
    if (const auto at = out.find('*'); at != std::string::npos)
      out.replace(at, 1, name, before.size(), name.size() - before.size() - behind.size());
    return out;
  }
  return name;
}

}  // namespace muster::launcher
