// SPDX-License-Identifier: Apache-2.0
// JSON for people and their tools (report.json, hang.json): fields that have contents, texts and lists with a
// limit. Pure.
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace muster::launcher::json {

using Json = nlohmann::json;

/// Of one text.
inline constexpr std::size_t kMaxTextBytes = 16384;

/// Sets a field that has contents.
inline void put(Json& object, const char* name, const std::string& value) {
  if (!value.empty()) object[name] = value.substr(0, kMaxTextBytes);
}
inline void put(Json& object, const char* name, const std::vector<std::string>& lines) {
  if (!lines.empty()) object[name] = lines;
}

/// Bytes that are no UTF-8 are replaced.
[[nodiscard]] inline std::string dump(const Json& value, int indent) {
  return value.dump(indent, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace muster::launcher::json
