// SPDX-License-Identifier: Apache-2.0
#include "launcher/report/error_file.h"

#include <charconv>
#include <cmath>

#include <nlohmann/json.hpp>

namespace muster::launcher {
namespace {

using Json = nlohmann::json;

std::string as_text(const Json& json) {
  return json.is_string() ? json.get<std::string>()
                          : json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::optional<std::int64_t> as_seconds(const Json& json) {
  if (json.is_number()) {
    const auto value = json.get<double>();
    if (!(std::abs(value) < 1e18)) return std::nullopt;  // the conversion would be undefined
    return static_cast<std::int64_t>(value);
  }
  if (!json.is_string()) return std::nullopt;
  const auto& text = json.get_ref<const std::string&>();
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// Nothing of what is nested deeper is kept: writing it out would recurse as deep.
Json parse(std::string_view text) {
  constexpr int kMaxDepth = 100;
  return Json::parse(
      text, [](int depth, Json::parse_event_t, const Json&) { return depth < kMaxDepth; }, false);
}

const Json* find(const Json& json, const char* key) {
  if (!json.is_object()) return nullptr;
  const auto found = json.find(key);
  return found == json.end() ? nullptr : &*found;
}

}  // namespace

RecordedError parse_error_file(std::string_view text) {
  const Json json = parse(text);
  const Json* message = find(json, "message");
  if (message == nullptr) return {std::string(text.substr(0, 4096)), {}, {}};
  RecordedError out;
  if (!message->is_object()) {
    out.message = as_text(*message);
    if (const Json* timestamp = find(json, "timestamp")) out.timestamp_s = as_seconds(*timestamp);
    return out;
  }
  if (const Json* inner = find(*message, "message")) out.message = as_text(*inner);
  if (const Json* extra = find(*message, "extraInfo")) {
    if (const Json* callstack = find(*extra, "py_callstack")) out.callstack = as_text(*callstack);
    if (const Json* timestamp = find(*extra, "timestamp")) out.timestamp_s = as_seconds(*timestamp);
  }
  return out;
}

std::string with_error_code(std::string_view text, int code) {
  Json json = parse(text);
  if (code == 0 || !json.is_object() || !json.contains("message") || !json["message"].is_object())
    return std::string(text);
  json["message"]["errorCode"] = code;
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace muster::launcher
