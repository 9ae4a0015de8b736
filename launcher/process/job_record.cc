// SPDX-License-Identifier: Apache-2.0
#include "launcher/process/job_record.h"

#include <algorithm>
#include <type_traits>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace muster::launcher {
namespace {

using Json = nlohmann::json;

constexpr std::size_t kMaxName = 64;

template <class T>
bool take(const Json& from, const char* key, T& to) {
  const auto found = from.find(key);
  if (found == from.end()) return false;
  if constexpr (std::is_same_v<T, std::string>) {
    if (!found->is_string()) return false;
  } else {
    // Anything else, a fraction or what does not fit, would be converted silently.
    if (!found->is_number_integer()) return false;
    const bool fits = found->is_number_unsigned() ? std::in_range<T>(found->get<std::uint64_t>())
                                                  : std::in_range<T>(found->get<std::int64_t>());
    if (!fits) return false;
  }
  to = found->get<T>();
  return true;
}

/// The fields that are one value, with their names in the file.
template <class Record, class Visit>
void each_field(Record& record, Visit visit) {
  visit("name", record.name);
  visit("pid", record.pid);
  visit("start_time", record.start_time);
  visit("boot_id", record.boot_id);
  visit("host", record.host);
  visit("directory", record.directory);
  visit("output", record.output);
  visit("metrics", record.metrics);
  visit("began", record.began_s);
  visit("state", record.state);
  visit("generation", record.generation);
  visit("restarts", record.restarts);
  visit("nodes", record.nodes);
  visit("world_size", record.world_size);
  visit("exit_status", record.exit_status);
  visit("ended", record.ended_s);
}

}  // namespace

std::string to_json(const JobRecord& record) {
  Json out = {{"command", record.command}, {"workers", Json::array()}};
  each_field(record, [&](const char* name, const auto& value) { out[name] = value; });
  for (const auto& worker : record.workers)
    out["workers"].push_back(
        {{"rank", worker.rank}, {"pid", worker.pid}, {"progress_file", worker.progress}});
  return out.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

Result<JobRecord> job_record_from_json(std::string_view text) {
  constexpr int kMaxDepth = 4;
  const Json json = Json::parse(
      text, [](int depth, Json::parse_event_t, const Json&) { return depth < kMaxDepth; }, false);
  const auto bad = [](std::string_view what) {
    return fail(ErrorCode::kProtocol, fmt::format("not a job record: {}", what));
  };
  if (!json.is_object()) return bad("no JSON object");
  JobRecord out;
  bool whole = true;
  each_field(out, [&](const char* name, auto& value) { whole = take(json, name, value) && whole; });
  if (!is_job_name(out.name)) return bad("name");
  if (!whole) return bad("a field is missing or has the wrong type");
  if (out.pid <= 1) return bad("pid");
  const auto command = json.find("command");
  const auto workers = json.find("workers");
  if (command == json.end() || !command->is_array() || workers == json.end() || !workers->is_array())
    return bad("command or workers");
  for (const Json& argument : *command) {
    if (!argument.is_string()) return bad("command");
    out.command.push_back(argument.get<std::string>());
  }
  for (const Json& item : *workers) {
    JobRecord::Worker worker;
    if (!item.is_object() || !take(item, "rank", worker.rank) || !take(item, "pid", worker.pid) ||
        !take(item, "progress_file", worker.progress))
      return bad("workers");
    out.workers.push_back(worker);
  }
  return out;
}

bool is_job_name(std::string_view text) {
  const auto plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
  };
  return !text.empty() && text.size() <= kMaxName && plain(text[0]) &&
         std::all_of(text.begin(), text.end(), [&](char c) { return plain(c) || c == '.' || c == '-'; });
}

}  // namespace muster::launcher
