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
    // Anything else, a fraction or what does not fit, would be converted without a word.
    if (!found->is_number_integer()) return false;
    const bool fits = found->is_number_unsigned() ? std::in_range<T>(found->get<std::uint64_t>())
                                                  : std::in_range<T>(found->get<std::int64_t>());
    if (!fits) return false;
  }
  to = found->get<T>();
  return true;
}

}  // namespace

std::string to_json(const JobRecord& record) {
  Json workers = Json::array();
  for (const auto& worker : record.workers)
    workers.push_back({{"rank", worker.rank}, {"pid", worker.pid}, {"progress_file", worker.progress}});
  const Json out = {{"name", record.name},
                    {"pid", record.pid},
                    {"start_time", record.start_time},
                    {"boot_id", record.boot_id},
                    {"host", record.host},
                    {"directory", record.directory},
                    {"command", record.command},
                    {"output", record.output},
                    {"metrics", record.metrics},
                    {"began", record.began_s},
                    {"state", record.state},
                    {"generation", record.generation},
                    {"restarts", record.restarts},
                    {"nodes", record.nodes},
                    {"world_size", record.world_size},
                    {"workers", std::move(workers)},
                    {"exit_status", record.exit_status},
                    {"ended", record.ended_s}};
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
  if (!take(json, "name", out.name) || !is_job_name(out.name)) return bad("name");
  const bool whole = take(json, "pid", out.pid) && take(json, "start_time", out.start_time) &&
                     take(json, "boot_id", out.boot_id) && take(json, "host", out.host) &&
                     take(json, "directory", out.directory) && take(json, "output", out.output) &&
                     take(json, "metrics", out.metrics) && take(json, "began", out.began_s) &&
                     take(json, "state", out.state) && take(json, "generation", out.generation) &&
                     take(json, "restarts", out.restarts) && take(json, "nodes", out.nodes) &&
                     take(json, "world_size", out.world_size) && take(json, "exit_status", out.exit_status) &&
                     take(json, "ended", out.ended_s);
  if (!whole) return bad("a field is missing or has the wrong type");
  if (out.pid <= 1) return bad("pid");
  const auto command = json.find("command");
  const auto workers = json.find("workers");
  if (command == json.end() || !command->is_array() || workers == json.end() || !workers->is_array())
    return bad("command or workers");
  for (const Json& word : *command) {
    if (!word.is_string()) return bad("command");
    out.command.push_back(word.get<std::string>());
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
