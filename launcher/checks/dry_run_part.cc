// SPDX-License-Identifier: Apache-2.0
#include "launcher/checks/dry_run_part.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "launcher/job/worker_env.h"
#include "launcher/plan/placement_text.h"
#include "launcher/report/job_report.h"
#include "rendezvous/base/env_contract.h"
#include "rendezvous/store/wire.h"

namespace muster::launcher {
namespace {

using Json = nlohmann::json;

constexpr int kPartVersion = 1;
constexpr std::size_t kMaxWorkers = 4096;
constexpr std::int64_t kMaxRank = 1'000'000'000;
constexpr std::size_t kMaxVariables = 256;
constexpr std::size_t kMaxTextBytes = 8192;
constexpr std::string_view kDrawn = "(drawn at the start)";

bool in_contract(std::string_view name) {
  return std::any_of(env::kEnvContract.begin(), env::kEnvContract.end(),
                     [&](const auto& row) { return row.name == name; });
}

/// Ports and marks of this meeting are not those of the job.
std::string shown(const Job& job, std::string_view name, const std::string& value) {
  const bool drawn =
      name == env::kLineage ||
      (name == env::kMasterPort && job.mode == RendezvousMode::kElastic && !job.elastic.ranks_given);
  return drawn ? std::string(kDrawn) : value;
}

Json whole(const DryRunPart& part, std::size_t num_workers) {
  Json rows = Json::array(), environment = Json::array();
  for (std::size_t i = 0; i < std::min(num_workers, part.rows.size()); ++i) rows.push_back(part.rows[i]);
  for (std::size_t i = 0; i < std::min(num_workers, part.environment.size()); ++i)
    environment.push_back(part.environment[i]);
  return {{"version", kPartVersion}, {"base_rank", part.base_rank}, {"workers", part.num_workers},
          {"host", part.host},       {"summary", part.summary},     {"rows", std::move(rows)},
          {"notes", part.notes},     {"command", part.command},     {"environment", std::move(environment)}};
}

std::string clean(const Json& json) {
  return wire::printable(std::string_view(json.get_ref<const std::string&>()).substr(0, kMaxTextBytes),
                         kMaxTextBytes);
}

/// "RANK=1 LOCAL_RANK=1", and "no X" for what rank 0 has alone.
std::string differences(const DryRunPart::Variables& first, const DryRunPart::Variables& other) {
  std::string out;
  for (const auto& [name, value] : other) {
    const auto same = first.find(name);
    if (same != first.end() && same->second == value) continue;
    const bool plain = value.find_first_of(" \t'\"") == std::string::npos;
    out += plain ? fmt::format(" {}={}", name, value) : fmt::format(" {}='{}'", name, value);
  }
  for (const auto& [name, value] : first)
    if (!other.contains(name)) out += fmt::format(" no {}", name);
  return out;
}

}  // namespace

Result<DryRunPart> dry_run_part(const Job& job, const Environment& inherited, const Assignment& assignment) {
  DryRunPart out;
  out.base_rank = assignment.base_rank;
  out.num_workers = job.local_world_size;
  out.host = job.host;
  out.summary = placement_summary(job);
  out.command = command_shown(job);
  DryRunPart::Variables shared;
  for (const auto& [name, value] : shared_environment(inherited, job, assignment))
    if (in_contract(name) || lookup(inherited, name) != value) shared[name] = shown(job, name, value);
  for (int i = 0; i < job.local_world_size; ++i) {
    if (job.placement.empty()) {
      std::vector<std::string> row(placement_header().size(), "-");
      row.front() = std::to_string(i);
      out.rows.push_back(std::move(row));
    } else {
      out.rows.push_back(placement_row(job, i));
      if (const std::string& note = job.placement[static_cast<std::size_t>(i)].note; !note.empty())
        out.notes.push_back(fmt::format("local rank {}: {}", i, note));
    }
    MUSTER_TRY(const RankVariables own,
               rank_variables(inherited, job, assignment, i, "(in the log directory)"));
    DryRunPart::Variables& all = out.environment.emplace_back(shared);
    for (const auto& [name, value] : own) all[std::string(name)] = value;
  }
  return out;
}

std::string to_json(const DryRunPart& part) {
  std::size_t num_workers = std::min(part.rows.size(), kMaxWorkers);
  while (true) {
    std::string out = whole(part, num_workers).dump(-1, ' ', false, Json::error_handler_t::replace);
    if (out.size() <= kMaxPartBytes || num_workers == 0) return out;
    num_workers /= 2;
  }
}

Result<DryRunPart> dry_run_part_from_json(std::string_view text) {
  const Json json = Json::parse(text, nullptr, false);
  try {
    if (json.at("version") != kPartVersion)
      return fail(ErrorCode::kMismatch, "another version of muster plans for that node");
    DryRunPart out;
    for (const auto& [name, to] : {std::pair{"base_rank", &out.base_rank}, {"workers", &out.num_workers}}) {
      const Json& number = json.at(name);
      const std::int64_t value = number.is_number_integer() ? number.get<std::int64_t>() : -1;
      if (value < 0 || value > kMaxRank)
        return fail(
            ErrorCode::kProtocol,
            fmt::format("a node's plan has the impossible {} {}", name,
                        wire::printable(number.dump(-1, ' ', true, Json::error_handler_t::replace), 40)));
      *to = static_cast<int>(value);
    }
    out.host = clean(json.at("host"));
    out.summary = clean(json.at("summary"));
    out.command = clean(json.at("command"));
    const std::size_t columns = placement_header().size();
    for (const Json& row : json.at("rows")) {
      if (out.rows.size() == kMaxWorkers) break;
      std::vector<std::string>& cells = out.rows.emplace_back();
      for (const Json& cell : row)
        if (cells.size() < columns) cells.push_back(clean(cell));
      cells.resize(columns, "-");
    }
    for (const Json& note : json.at("notes"))
      if (out.notes.size() < kMaxWorkers) out.notes.push_back(clean(note));
    for (const Json& variables : json.at("environment")) {
      if (out.environment.size() == kMaxWorkers) break;
      DryRunPart::Variables& of_rank = out.environment.emplace_back();
      for (const auto& [name, value] : variables.items())
        if (of_rank.size() < kMaxVariables) of_rank.emplace(clean(Json(name)), clean(value));
    }
    return out;
  } catch (const Json::exception& error) {
    return fail(ErrorCode::kProtocol,
                fmt::format("a node's plan is not what muster writes ({})", error.what()));
  }
}

std::string dry_run_text(std::vector<DryRunPart> parts, int world_size) {
  std::stable_sort(parts.begin(), parts.end(),
                   [](const auto& a, const auto& b) { return a.base_rank < b.base_rank; });
  std::string out = fmt::format("{} workers on {} nodes\n", world_size, parts.size());
  std::vector<std::vector<std::string>> rows{placement_header()};
  rows.front().insert(rows.front().begin(), {"rank", "host"});
  std::string notes, others;
  const DryRunPart::Variables none;
  const auto& first =
      parts.empty() || parts.front().environment.empty() ? none : parts.front().environment[0];
  for (const DryRunPart& part : parts) {
    out += part.summary + '\n';
    for (std::size_t i = 0; i < part.rows.size(); ++i) {
      auto& row = rows.emplace_back(part.rows[i]);
      row.insert(row.begin(), {std::to_string(part.base_rank + static_cast<int>(i)), part.host});
    }
    for (const std::string& note : part.notes) notes += fmt::format("{}: {}\n", part.host, note);
    if (part.command != parts.front().command)
      notes += fmt::format("command on {}: {}\n", part.host, part.command);
    if (part.num_workers > static_cast<std::int64_t>(part.rows.size()))
      notes += fmt::format("{}: its other {} workers are left out (--dry-run=local shows them)\n", part.host,
                           part.num_workers - static_cast<std::int64_t>(part.rows.size()));
    for (std::size_t i = 0; i < part.environment.size(); ++i)
      if (const std::string text = differences(first, part.environment[i]); !text.empty())
        others += fmt::format("  rank {}:{}\n", part.base_rank + static_cast<int>(i), text);
  }
  out += table_text(rows) + notes;
  if (!parts.empty()) out += fmt::format("command: {}\n", parts.front().command);
  out += "environment of rank 0:\n";
  for (const auto& [name, value] : first) out += fmt::format("  {}={}\n", name, value);
  if (!others.empty()) out += "where others differ from it:\n" + others;
  return out + "nothing was started (--dry-run)\n";
}

}  // namespace muster::launcher
