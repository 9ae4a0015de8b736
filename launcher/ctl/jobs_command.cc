// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cstdio>
#include <vector>

#include <boost/asio/ip/host_name.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "launcher/ctl/commands.h"
#include "launcher/job/exit_status.h"
#include "launcher/plan/rendezvous_plan.h"
#include "launcher/text/seconds_text.h"
#include "launcher/text/text_table.h"
#include "launcher/text/usage_error.h"
#include "rendezvous/base/text.h"

namespace muster::launcher {

namespace {

using control::JobState;
using control::NodeState;
using OrderedJson = nlohmann::ordered_json;

constexpr std::size_t kMaxText = 80;  // of a text, where several jobs are shown

std::string wanted(const JobState& job) {
  return job.min_nodes == job.max_nodes ? fmt::format("{}", job.max_nodes)
                                        : fmt::format("{}:{}", job.min_nodes, job.max_nodes);
}

std::string_view state_name(JobState::Phase phase) {
  constexpr std::array<std::string_view, 4> kNames = {"gathering", "restarting", "running", "ended"};
  return kNames[static_cast<std::size_t>(phase)];
}

std::string_view state_name(NodeState::State state) {
  constexpr std::array<std::string_view, 7> kNames = {"runs", "finished",  "stopping", "waits",
                                                      "away", "unhealthy", "gone"};
  return kNames[static_cast<std::size_t>(state)];
}

std::string state_of(const JobState& job) {
  if (job.phase == JobState::Phase::kEnded) return fmt::format("ended {}", job.exit_code);
  if (job.phase == JobState::Phase::kRunning) return fmt::format("running {}", job.generation);
  return std::string(state_name(job.phase));
}

std::string age(std::int64_t ms) {
  return ms < 0 ? "-" : age_of(0, ms / 1000);
}

std::string store_of(const JobState& job) {
  if (job.generation < 0) return "-";
  if (job.first_port == 0) return "coordinator";
  return endpoint_text(one_line(job.first_address), job.first_port);
}

std::string reached_text(const JobState& job) {
  if (job.epoch < 0) return job.step < 0 ? "-" : fmt::format("step {}", job.step);
  return fmt::format("epoch {}{}", job.epoch, job.step < 0 ? "" : fmt::format(" step {}", job.step));
}

std::vector<std::string> row_of(const JobState& job, std::size_t most_text) {
  return {one_line(job.job),
          state_of(job),
          fmt::format("{}/{}", job.num_present - job.num_outside, wanted(job)),
          fmt::format("{}/{}", job.num_outside, job.spares),
          job.world_size > 0 ? fmt::format("{}", job.world_size) : "-",
          fmt::format("{}/{}", job.restarts_used, job.max_restarts),
          age(job.age_ms),
          store_of(job),
          reached_text(job),
          one_line(job.text, most_text)};
}

std::string ranks_of(const NodeState& node) {
  if (node.group_rank < 0 || node.ranks <= 0) return "-";
  return node.ranks == 1 ? fmt::format("{}", node.base_rank)
                         : fmt::format("{}-{}", node.base_rank, node.base_rank + node.ranks - 1);
}

std::string node_table(std::vector<NodeState> nodes) {
  // By place in the world; who has none comes behind, in the order in which they came.
  const auto place = [](const NodeState& node) {
    return std::pair(node.group_rank < 0, node.group_rank < 0 ? node.number : std::uint64_t(node.group_rank));
  };
  std::ranges::sort(nodes, {}, place);
  std::vector<std::vector<std::string>> rows = {
      {"NODE", "HOST", "RANKS", "STATE", "HEARD", "ADDRESS", "WHY"}};
  for (const NodeState& node : nodes)
    rows.push_back({node.group_rank < 0 ? "-" : fmt::format("{}", node.group_rank), one_line(node.host),
                    ranks_of(node), std::string(state_name(node.state)), age(node.heard_ms),
                    one_line(node.address), one_line(node.text)});
  return text_table(rows);
}

OrderedJson json_of(const JobState& job) {
  OrderedJson out{{"job", job.job},
                  {"state", state_name(job.phase)},
                  {"generation", job.generation},
                  {"restarts_used", job.restarts_used},
                  {"max_restarts", job.max_restarts},
                  {"min_nodes", job.min_nodes},
                  {"max_nodes", job.max_nodes},
                  {"spares", job.spares},
                  {"nodes_present", job.num_present},
                  {"nodes_outside", job.num_outside},
                  {"nodes_away", job.num_away},
                  {"nodes_unhealthy", job.num_unhealthy},
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

OrderedJson json_of(const NodeState& node) {
  OrderedJson out{{"host", node.host},
                  {"state", state_name(node.state)},
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

}  // namespace

std::string jobs_text(const net::QueryAnswer& answer) {
  std::vector<std::vector<std::string>> rows = {
      {"JOB", "STATE", "NODES", "SPARES", "RANKS", "RESTARTS", "AGE", "STORE", "REACHED", "REMARK"}};
  for (const JobState& job : answer.jobs)
    rows.push_back(row_of(job, answer.jobs.size() == 1 ? control::kMaxQueryText : kMaxText));
  std::string out;
  if (!answer.over.problem.empty())
    out = fmt::format("nothing is acknowledged: {}\n", one_line(answer.over.problem));
  out += text_table(rows);
  if (const auto shown = answer.jobs.size(); answer.over.num_jobs > shown)
    out += fmt::format("and {} more jobs\n", answer.over.num_jobs - shown);
  if (!answer.nodes.empty()) out += '\n' + node_table(answer.nodes);
  return out;
}

std::string jobs_json(const net::QueryAnswer& answer) {
  OrderedJson out{{"software", answer.over.software}};
  if (!answer.over.problem.empty()) out["trouble"] = answer.over.problem;
  out["num_jobs"] = answer.over.num_jobs;
  for (const char* list : {"jobs", "nodes"}) out[list] = OrderedJson::array();
  for (const JobState& job : answer.jobs) out["jobs"].push_back(json_of(job));
  for (const NodeState& node : answer.nodes) out["nodes"].push_back(json_of(node));
  return out.dump(1, ' ', false, OrderedJson::error_handler_t::replace) + "\n";
}

Result<net::QueryOptions> query_options(const JobsCommand& command, const Environment& environment) {
  auto endpoint = parse_endpoint(command.endpoint);
  if (!endpoint || endpoint->host.empty() || endpoint->port == 0)
    return usage("--endpoint={} is not HOST[:PORT]", command.endpoint);
  net::QueryOptions out;
  out.host = endpoint->host;
  out.port = static_cast<std::uint16_t>(endpoint->port < 0 ? kMusterPort : endpoint->port);
  out.job = command.job;
  out.own_host = boost::asio::ip::host_name();
  out.timeout = to_millis(command.timeout_s);
  MUSTER_TRY(out.secret, auth::find_secret(command.secret_file, environment));
  const tls::Files& files = command.tls;
  if (files.ca.empty() && !(files.cert.empty() && files.key.empty()))
    return usage("--tls-cert and --tls-key need --tls-ca, by which the coordinator is known");
  if (!files.ca.empty()) {
    MUSTER_TRY(out.tls, tls::Context::client(files));
  }
  return out;
}

int complain(std::string_view text, int status) {
  std::fprintf(stderr, "musterctl: %.*s\n", static_cast<int>(text.size()), text.data());
  return status;
}

int show_jobs(const JobsCommand& command, const Environment& environment) {
  const auto asked = query_options(command, environment);
  if (!asked) return complain(asked.error().message, kExitUsage);
  const auto answer = net::query(*asked);
  if (!answer)
    return complain(answer.error().message,
                    answer.error().code == ErrorCode::kMismatch ? kExitRefused : kExitRendezvous);
  const bool missing = !command.job.empty() && answer->jobs.empty();
  if (command.json)
    std::fputs(jobs_json(*answer).c_str(), stdout);
  else if (!missing)
    std::fputs(jobs_text(*answer).c_str(), stdout);
  return missing ? complain(fmt::format("{} has no job {}", command.endpoint, command.job), kExitNoSuchJob)
                 : kExitOk;
}

}  // namespace muster::launcher
