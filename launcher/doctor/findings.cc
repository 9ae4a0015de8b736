// SPDX-License-Identifier: Apache-2.0
#include "launcher/doctor/findings.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace muster::launcher {
namespace {

using Json = nlohmann::json;

constexpr std::array<std::string_view, 8> kOutcomes = {"works",   "timeout", "refused", "no route",
                                                       "another", "silent",  "MTU",     "error"};
constexpr std::size_t kMaxText = 256;

// Of the wrong kind or not there: empty, 0. What is said of a node is shown to people.
std::string text_in(const Json& from, const char* name) {
  const auto found = from.find(name);
  if (found == from.end() || !found->is_string()) return {};
  std::string out = found->get<std::string>().substr(0, kMaxText);
  for (char& c : out)
    if (static_cast<unsigned char>(c) < 32 || c == 127) c = '?';
  return out;
}

double number_in(const Json& from, const char* name, double otherwise = 0) {
  const auto found = from.find(name);
  return found == from.end() || !found->is_number() ? otherwise : found->get<double>();
}

template <class Call>
void each_in(const Json& from, const char* name, const Call& call) {
  const auto found = from.find(name);
  if (found == from.end() || !found->is_array()) return;
  for (const Json& each : *found)
    if (each.is_object()) call(each);
}

std::string dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Reach reach_in(const Json& from) {
  Reach out;
  out.address = text_in(from, "address");
  out.interface = text_in(from, "interface");
  out.text = text_in(from, "text");
  out.round_trip_ms = number_in(from, "rtt", -1);
  out.clock_ms = number_in(from, "clock");
  const std::string outcome = text_in(from, "outcome");
  const auto found = std::find(kOutcomes.begin(), kOutcomes.end(), outcome);
  if (found != kOutcomes.end()) out.outcome = static_cast<Reach::Outcome>(found - kOutcomes.begin());
  return out;
}

}  // namespace

std::string_view to_string(Reach::Outcome outcome) {
  return kOutcomes[static_cast<std::size_t>(outcome)];
}

const Reach* Way::best() const {
  const Reach* out = nullptr;
  for (const Reach& each : tried)
    if (each.outcome == Reach::Outcome::kWorks && (out == nullptr || each.round_trip_ms < out->round_trip_ms))
      out = &each;
  return out;
}

std::string to_json(const DoctorNode& node) {
  Json out{{"host", node.host}, {"token", node.token}, {"port", node.port}, {"addresses", Json::array()}};
  for (const OfferedAddress& each : node.addresses)
    out["addresses"].push_back({{"address", each.address}, {"interface", each.interface}});
  return dump(out);
}

std::string to_json(const DoctorRow& row) {
  Json out{{"ways", Json::array()}};
  for (const Way& way : row.ways) {
    Json ways{{"tried", Json::array()}, {"name_error", way.name_error}, {"named_as", way.named_as}};
    for (const Reach& each : way.tried)
      ways["tried"].push_back({{"address", each.address},
                               {"interface", each.interface},
                               {"outcome", to_string(each.outcome)},
                               {"rtt", each.round_trip_ms},
                               {"clock", each.clock_ms},
                               {"text", each.text}});
    out["ways"].push_back(std::move(ways));
  }
  return dump(out);
}

Result<DoctorNode> parse_doctor_node(std::string_view text) {
  const Json json = Json::parse(text, nullptr, false);
  if (!json.is_object()) return fail(ErrorCode::kProtocol, "what a node offers is no JSON object");
  DoctorNode out;
  out.host = text_in(json, "host");
  out.token = text_in(json, "token");
  const double port = number_in(json, "port");
  if (port < 1 || port > 65535) return fail(ErrorCode::kProtocol, fmt::format("{} offers no port", out.host));
  out.port = static_cast<std::uint16_t>(port);
  each_in(json, "addresses", [&](const Json& each) {
    out.addresses.push_back({text_in(each, "address"), text_in(each, "interface")});
  });
  return out;
}

Result<DoctorRow> parse_doctor_row(std::string_view text, std::size_t nodes) {
  const Json json = Json::parse(text, nullptr, false);
  if (!json.is_object()) return fail(ErrorCode::kProtocol, "what a node found is no JSON object");
  DoctorRow out;
  each_in(json, "ways", [&](const Json& each) {
    Way way;
    way.name_error = text_in(each, "name_error");
    if (const auto names = each.find("named_as"); names != each.end() && names->is_array())
      for (const Json& name : *names)
        if (name.is_string()) way.named_as.push_back(name.get<std::string>().substr(0, kMaxText));
    each_in(each, "tried", [&](const Json& tried) { way.tried.push_back(reach_in(tried)); });
    out.ways.push_back(std::move(way));
  });
  if (out.ways.size() != nodes)
    return fail(ErrorCode::kProtocol,
                fmt::format("a node tells of {} ways, there are {}", out.ways.size(), nodes));
  return out;
}

}  // namespace muster::launcher
