// SPDX-License-Identifier: Apache-2.0
#include "launcher/ctl/jobs_text.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "launcher/ctl/job_status.h"

namespace muster::launcher {
namespace {

using control::JobState;
using control::NodeState;
using control::QueryEnd;
using control::StoreJobState;
using Json = nlohmann::ordered_json;

constexpr std::size_t kMaxCell = 80;

std::string shown(std::string_view text, std::size_t most = control::kMaxQueryText) {
  std::string out(text.substr(0, most));
  for (char& c : out)
    if (static_cast<unsigned char>(c) < 32 || c == 127) c = '?';
  return out;
}

using Row = std::vector<std::string>;

/// Left-aligned columns as wide as they need to be; the last one ends where it ends.
std::string table(const std::vector<Row>& rows) {
  std::vector<std::size_t> width(rows.front().size());
  for (const Row& row : rows)
    for (std::size_t i = 0; i < row.size(); ++i) width[i] = std::max(width[i], row[i].size());
  std::string out;
  for (const Row& row : rows) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i)
      line += i + 1 < row.size() ? fmt::format("{:{}}  ", row[i], width[i]) : row[i];
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + '\n';
  }
  return out;
}

std::string wanted(const JobState& job) {
  return job.min_nodes == job.max_nodes ? fmt::format("{}", job.max_nodes)
                                        : fmt::format("{}:{}", job.min_nodes, job.max_nodes);
}

std::string_view word_for(JobState::Phase phase) {
  switch (phase) {
    case JobState::Phase::kGathering:
      return "gathering";
    case JobState::Phase::kRestarting:
      return "restarting";
    case JobState::Phase::kRunning:
      return "running";
    case JobState::Phase::kEnded:
      break;
  }
  return "ended";
}

std::string_view word_for(NodeState::State state) {
  constexpr std::array<std::string_view, 7> kWords = {"runs", "finished", "stopping", "waits",
                                                      "away", "unfit",    "gone"};
  return kWords[static_cast<std::size_t>(state)];
}

std::string state_of(const JobState& job) {
  if (job.phase == JobState::Phase::kEnded) return fmt::format("ended {}", job.exit_code);
  if (job.phase == JobState::Phase::kRunning) return fmt::format("running {}", job.generation);
  return std::string(word_for(job.phase));
}

std::string age(std::int64_t ms) {
  return ms < 0 ? "-" : age_of(0, ms / 1000);
}

std::string store_of(const JobState& job) {
  if (job.generation < 0) return "-";
  if (job.first_port == 0) return "coordinator";
  const bool v6 = job.first_address.find(':') != std::string::npos;
  return fmt::format("{}{}{}:{}", v6 ? "[" : "", shown(job.first_address), v6 ? "]" : "", job.first_port);
}

int inside(const JobState& job) {
  return job.num_present - job.num_outside;
}

Row row_of(const JobState& job) {
  return {shown(job.job),
          state_of(job),
          fmt::format("{}/{}", inside(job), wanted(job)),
          fmt::format("{}/{}", job.num_outside, job.spares),
          job.world_size > 0 ? fmt::format("{}", job.world_size) : "-",
          fmt::format("{}/{}", job.restarts_used, job.max_restarts),
          age(job.age_ms),
          store_of(job),
          shown(job.text, kMaxCell)};
}

std::string store_table(const std::vector<StoreJobState>& jobs) {
  std::vector<Row> rows = {{"TORCHRUN JOB", "AGENTS", "CLIENTS", "KEYS", "BYTES", "WAITS"}};
  for (const StoreJobState& job : jobs)
    rows.push_back({shown(job.job), fmt::format("{}", job.num_agents), fmt::format("{}", job.num_clients),
                    fmt::format("{}", job.num_keys), fmt::format("{}", job.num_bytes),
                    fmt::format("{}", job.num_waits)});
  return table(rows);
}

std::string left_out(std::size_t told, std::uint64_t all, std::string_view what) {
  return all > told ? fmt::format("and {} more {}\n", all - told, what) : "";
}

std::string trouble_of(const QueryEnd& over) {
  return over.problem.empty() ? "" : fmt::format("nothing is acknowledged: {}\n", shown(over.problem));
}

std::string ranks_of(const NodeState& node) {
  if (node.group_rank < 0 || node.ranks <= 0) return "-";
  return node.ranks == 1 ? fmt::format("{}", node.base_rank)
                         : fmt::format("{}-{}", node.base_rank, node.base_rank + node.ranks - 1);
}

bool works(const NodeState& node) {
  return node.state == NodeState::State::kMember || node.state == NodeState::State::kFinished;
}

std::string node_table(std::vector<NodeState> nodes, std::size_t most) {
  // By place in the world; who has none comes behind, in the order in which they came.
  const auto place = [](const NodeState& node) {
    return std::pair(node.group_rank < 0, node.group_rank < 0 ? node.number : std::uint64_t(node.group_rank));
  };
  std::sort(nodes.begin(), nodes.end(),
            [&](const NodeState& a, const NodeState& b) { return place(a) < place(b); });
  const std::size_t all = nodes.size();
  if (most > 0 && all > most) {
    std::stable_partition(nodes.begin(), nodes.end(), [](const NodeState& node) { return !works(node); });
    nodes.resize(most);
  }
  std::vector<Row> rows = {{"NODE", "HOST", "RANKS", "STATE", "HEARD", "ADDRESS", "WHY"}};
  for (const NodeState& node : nodes)
    rows.push_back({node.group_rank < 0 ? "-" : fmt::format("{}", node.group_rank), shown(node.host),
                    ranks_of(node), std::string(word_for(node.state)), age(node.heard_ms),
                    shown(node.address), shown(node.text)});
  std::string out = table(rows);
  if (all > nodes.size()) out += fmt::format("and {} more (--nodes=0 shows all)\n", all - nodes.size());
  return out;
}

std::string reached_text(const JobState& job) {
  if (job.epoch < 0) return fmt::format("step {}", job.step);
  return fmt::format("epoch {}{}", job.epoch, job.step < 0 ? "" : fmt::format(" step {}", job.step));
}

Json json_of(const JobState& job) {
  Json out{{"job", job.job},
           {"state", word_for(job.phase)},
           {"generation", job.generation},
           {"restarts_used", job.restarts_used},
           {"max_restarts", job.max_restarts},
           {"min_nodes", job.min_nodes},
           {"max_nodes", job.max_nodes},
           {"spares", job.spares},
           {"nodes_present", job.num_present},
           {"nodes_outside", job.num_outside},
           {"nodes_away", job.num_away},
           {"nodes_unfit", job.num_unfit},
           {"members", job.num_members},
           {"world_size", job.world_size},
           {"age_s", static_cast<double>(job.age_ms) / 1000},
           {"text", job.text},
           {"first_host", job.first_host},
           {"store_address", job.first_address},
           {"store_port", job.first_port}};
  if (job.phase == JobState::Phase::kEnded) out["exit_code"] = job.exit_code;
  if (job.forgotten_ms >= 0) out["forgotten_in_s"] = static_cast<double>(job.forgotten_ms) / 1000;
  if (job.epoch >= 0) out["epoch"] = job.epoch;
  if (job.step >= 0) out["step"] = job.step;
  return out;
}

Json json_of(const NodeState& node) {
  Json out{{"host", node.host},
           {"state", word_for(node.state)},
           {"group_rank", node.group_rank},
           {"base_rank", node.base_rank},
           {"ranks", node.ranks},
           {"role", node.role},
           {"address", node.address},
           {"text", node.text}};
  if (node.order >= 0) out["node_rank"] = node.order;
  if (node.heard_ms >= 0) out["heard_s_ago"] = static_cast<double>(node.heard_ms) / 1000;
  return out;
}

Json json_of(const StoreJobState& job) {
  return {{"job", job.job},       {"agents", job.num_agents}, {"clients", job.num_clients},
          {"keys", job.num_keys}, {"bytes", job.num_bytes},   {"waits", job.num_waits}};
}

}  // namespace

std::string jobs_text(const net::QueryAnswer& answer) {
  std::vector<Row> rows = {
      {"JOB", "STATE", "NODES", "SPARES", "RANKS", "RESTARTS", "AGE", "STORE", "REMARK"}};
  for (const JobState& job : answer.jobs) rows.push_back(row_of(job));
  std::string out = trouble_of(answer.over) + table(rows);
  out += left_out(answer.jobs.size(), answer.over.num_jobs, "jobs");
  if (answer.store_jobs.empty()) return out;
  return out + '\n' + store_table(answer.store_jobs) +
         left_out(answer.store_jobs.size(), answer.over.num_store_jobs, "jobs of torchrun");
}

std::string job_text(const net::QueryAnswer& answer, std::size_t most) {
  std::string out = trouble_of(answer.over);
  for (const JobState& job : answer.jobs) {
    out += fmt::format("{}: {}", shown(job.job), word_for(job.phase));
    if (job.generation >= 0)
      out +=
          fmt::format("{} generation {}, {} rank{} on {} node{}",
                      job.phase == JobState::Phase::kRunning ? "" : " after", job.generation, job.world_size,
                      job.world_size == 1 ? "" : "s", job.num_members, job.num_members == 1 ? "" : "s");
    out += fmt::format("\n  nodes     {} of {} present", inside(job), wanted(job));
    if (job.num_outside > 0 || job.spares > 0)
      out += fmt::format(", {} outside ({} spares wanted)", job.num_outside, job.spares);
    if (job.num_away > 0) out += fmt::format(", {} away", job.num_away);
    if (job.num_unfit > 0) out += fmt::format(", {} unfit", job.num_unfit);
    out += fmt::format("\n  restarts  {} of {} used\n  known     for {}", job.restarts_used, job.max_restarts,
                       age(job.age_ms));
    if (job.forgotten_ms >= 0) out += fmt::format(", forgotten in {}", age(job.forgotten_ms));
    if (job.generation >= 0)
      out += fmt::format("\n  store     {} of {}", store_of(job), shown(job.first_host));
    if (job.epoch >= 0 || job.step >= 0) out += "\n  reached   " + reached_text(job);
    if (!job.text.empty())
      out += fmt::format("\n  {}  {}", job.phase == JobState::Phase::kEnded ? "ended   " : "waits   ",
                         shown(job.text));
    out += '\n';
  }
  if (!answer.nodes.empty()) out += node_table(answer.nodes, most);
  if (!answer.store_jobs.empty()) out += store_table(answer.store_jobs);
  return out;
}

std::string jobs_json(const net::QueryAnswer& answer) {
  Json out{{"software", answer.over.software}};
  if (!answer.over.problem.empty()) out["trouble"] = answer.over.problem;
  out["num_jobs"] = answer.over.num_jobs;
  out["num_torchrun_jobs"] = answer.over.num_store_jobs;
  for (const char* list : {"jobs", "nodes", "torchrun_jobs"}) out[list] = Json::array();
  for (const JobState& job : answer.jobs) out["jobs"].push_back(json_of(job));
  for (const NodeState& node : answer.nodes) out["nodes"].push_back(json_of(node));
  for (const StoreJobState& job : answer.store_jobs) out["torchrun_jobs"].push_back(json_of(job));
  return out.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace muster::launcher
