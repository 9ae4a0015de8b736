// SPDX-License-Identifier: Apache-2.0
// Fields of JSON that another process or node wrote, read with limits: nothing in it is trusted to be small
// or printable. A missing field is empty; one of another type throws nlohmann's exception, which parse_json()
// turns into an error. Pure.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <muster/result.h>

namespace muster::launcher::json {

using Json = nlohmann::json;

/// Of one line of text.
inline constexpr std::size_t kMaxLineBytes = 2048;

/// One line: control characters become blanks.
[[nodiscard]] inline std::string clean(std::string text, std::size_t max_bytes = kMaxLineBytes) {
  text.resize(std::min(text.size(), max_bytes));
  for (char& c : text)
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = ' ';
  return text;
}

[[nodiscard]] inline std::string text(const Json& object, const char* name, std::size_t max_bytes) {
  return object.value(name, std::string()).substr(0, max_bytes);
}
[[nodiscard]] inline std::string line(const Json& object, const char* name,
                                      std::size_t max_bytes = kMaxLineBytes) {
  return clean(object.value(name, std::string()), max_bytes);
}

/// At most `most` elements of an array, each as `read` makes it.
template <class Read>
[[nodiscard]] auto list(const Json& object, const char* name, std::size_t most, Read read) {
  std::vector<decltype(read(object))> out;
  if (const auto found = object.find(name); found != object.end())
    for (const Json& element : *found) {
      if (out.size() == most) break;
      out.push_back(read(element));
    }
  return out;
}
[[nodiscard]] inline std::vector<std::string> lines(const Json& object, const char* name, std::size_t most) {
  return list(object, name, most, [](const Json& element) { return clean(element.get<std::string>()); });
}
[[nodiscard]] inline std::vector<int> numbers(const Json& object, const char* name, std::size_t most) {
  return list(object, name, most, [](const Json& element) { return element.get<int>(); });
}

/// Sets a field that has contents.
inline void put(Json& object, const char* name, const std::string& value,
                std::size_t max_bytes = kMaxLineBytes) {
  if (!value.empty()) object[name] = value.substr(0, max_bytes);
}
inline void put(Json& object, const char* name, const std::vector<std::string>& lines, std::size_t most) {
  if (lines.empty()) return;
  Json& out = object[name] = Json::array();
  for (std::size_t i = 0; i < lines.size() && i < most; ++i) out.push_back(lines[i].substr(0, kMaxLineBytes));
}

/// On one line; bytes that are no UTF-8 are replaced.
[[nodiscard]] inline std::string dump(const Json& value, int indent = -1) {
  return value.dump(indent, ' ', false, Json::error_handler_t::replace);
}

/// `what`: "a node's part of the report", for the error. `read` makes the value of an object with "version".
template <class Value, class Read>
[[nodiscard]] Result<Value> parse_json(std::string_view text, std::size_t max_bytes, int version,
                                       std::string_view what, Read read) {
  const auto refused = [&](std::string_view why) {
    return fail(ErrorCode::kProtocol, fmt::format("{} cannot be read: {}", what, why));
  };
  if (text.size() > max_bytes) return refused("it is too long");
  const Json object = Json::parse(text, nullptr, false);
  try {
    if (const int found = object.at("version"); found != version)
      return refused(fmt::format("version {}", found));
    return read(object);
  } catch (const Json::exception& error) {
    return refused(error.what());
  }
}

}  // namespace muster::launcher::json
