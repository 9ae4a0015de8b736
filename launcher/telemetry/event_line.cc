// SPDX-License-Identifier: Apache-2.0
#include "launcher/telemetry/event_line.h"

#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "rendezvous/base/clock.h"

namespace muster::launcher {

EventTime EventTime::now() {
  return {std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count(),
          std::chrono::duration<double>(SteadyClock::now().time_since_epoch()).count()};
}

std::string json_string(std::string_view text) {
  using Json = nlohmann::json;
  return Json(text).dump(-1, ' ', false, Json::error_handler_t::replace);
}

EventLine::EventLine(std::string_view event, const EventPlace& place, const EventTime& time) : text_("{") {
  raw("time", fmt::format("{:.6f}", time.wall_s));
  raw("monotonic", fmt::format("{:.6f}", time.monotonic_s));
  add("event", event).add("run_id", place.run_id).add("host", place.host);
  if (place.node >= 0) add("node", place.node);
  if (place.generation >= 0) add("generation", place.generation);
  add("restarts", place.restarts);
}

EventLine& EventLine::raw(std::string_view key, std::string_view value) {
  if (text_.empty()) return *this;
  if (text_.size() > 1) text_ += ',';
  text_ += fmt::format("\"{}\":{}", key, value);
  return *this;
}

EventLine& EventLine::add(std::string_view key, std::string_view text) {
  if (text_.empty()) return *this;
  // Never so long that the line could not be written at once; a text that does not fit any more is left out.
  std::string value = json_string(text.substr(0, kMaxTextBytes));
  constexpr std::size_t kRest = 256;  // for what else belongs to the line
  if (text_.size() + key.size() + value.size() + kRest > kMaxBytes) value = "\"\"";
  return raw(key, value);
}
EventLine& EventLine::add(std::string_view key, std::int64_t number) {
  return raw(key, fmt::format("{}", number));
}
EventLine& EventLine::add_seconds(std::string_view key, double seconds) {
  return raw(key, fmt::format("{:.6f}", seconds));
}
EventLine& EventLine::add_flag(std::string_view key, bool set) {
  return raw(key, set ? "true" : "false");
}

std::string EventLine::take() {
  return text_.empty() ? std::string() : std::exchange(text_, {}) + "}\n";
}

}  // namespace muster::launcher
