// SPDX-License-Identifier: Apache-2.0
#include "launcher/join/node_entries.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>

#include "launcher/job/exit_status.h"
#include "launcher/job/outcome_text.h"
#include "launcher/plan/program.h"
#include "launcher/text/rank_ranges.h"
#include "rendezvous/base/env.h"
#include "rendezvous/protocol/control.h"

namespace muster::launcher {
namespace {

constexpr std::string_view kNoReport = "-";

/// An entry that says why there will be none.
std::string why_not(FailureNotice notice) {
  std::string out(1, '!');
  return out.append(to_json(AttemptOutcome(std::move(notice))));
}

}  // namespace

FailureNotice loss_of(const RoleInfo& node) {
  FailureNotice out;
  out.node_rank = node.node_rank;
  out.lost_node = node.node_rank;
  out.host = node.host;
  out.exit_code = kExitPeerLost;
  out.text = fmt::format("lost node {} ({}): its launcher is gone", node.node_rank, node.host);
  return out;
}

std::string NodeEntries::key(std::string_view name) const {
  return fmt::format("/{}/{}", job_.run_id, name);
}

std::string NodeEntries::of_attempt(int attempt) const {
  return key(fmt::format("attempt_{}/", attempt));
}

std::string NodeEntries::role_info(int attempt, int node) const {
  return fmt::format("{}torchelastic/role_info/{}", of_attempt(attempt), node);
}

std::string NodeEntries::ranks(int attempt, int node) const {
  return fmt::format("{}torchelastic/assigned_ranks/{}", of_attempt(attempt), node);
}

std::string NodeEntries::claim(int node) const {
  return key(fmt::format("node/{}", node));
}

std::string NodeEntries::program() const {
  return job_.run_id == control::kDefaultJob ? short_name(job_.command) : std::string();
}

std::string NodeEntries::report(int attempt, int node) const {
  return fmt::format("{}report/{}", of_attempt(attempt), node);
}

std::string NodeEntries::left(std::string_view connection) const {
  return key(fmt::format("left/{}", connection));
}

/// The node rank of the agent that the connection stands for.
std::string NodeEntries::agent(std::string_view connection) const {
  return key(fmt::format("agent/{}", connection));
}

Awaitable<Result<std::string>> NodeEntries::claim_node_rank(AgentLink& waiting, Instant deadline) {
  const std::string nodes_key = key("nnodes");
  if (job_.node_rank == 0) {
    const std::string own_nodes = std::to_string(job_.nodes);
    if (auto ok = co_await link_.set(nodes_key, own_nodes); !ok) co_return fail(ok.error());
  } else {
    if (auto ok = co_await waiting.wait(nodes_key, deadline); !ok) co_return fail(ok.error());
    auto text = co_await waiting.get(nodes_key);
    if (!text) co_return fail(text.error());
    if (text->starts_with('!')) co_return fail(ErrorCode::kMismatch, text->substr(1));
    auto nodes = parse_integer("nnodes", *text, 1, std::numeric_limits<int>::max());
    if (!nodes) co_return fail(nodes.error());
    // Node 0 will never look for it. Other differences are found, and told to all, when ranks are assigned.
    if (job_.node_rank >= *nodes)
      co_return fail(ErrorCode::kMismatch,
                     fmt::format("node {} ({}) was started with --nnodes={}, node 0 with --nnodes={}",
                                 job_.node_rank, job_.host, job_.nodes, *nodes));
  }
  const std::string connection = waiting.local_name();
  const std::string mine = fmt::format("{} (pid {})\n{}", job_.host, ::getpid(), connection);
  const std::string own_mark = agent(connection);
  if (auto ok = co_await link_.set(own_mark, std::to_string(job_.node_rank)); !ok) co_return fail(ok.error());
  const std::string own_claim = claim(job_.node_rank);
  auto owner = co_await link_.set_if_absent(own_claim, mine);
  if (!owner) co_return fail(owner.error());
  if (*owner == mine) co_return connection;
  co_return fail(
      ErrorCode::kMismatch,
      fmt::format("--node-rank={} was given twice: {} has it already; every node needs its own, 0 to {}",
                  job_.node_rank, owner->substr(0, owner->find('\n')), job_.nodes - 1));
}

Awaitable<Result<void>> NodeEntries::publish_ranks(int attempt, std::uint16_t port,
                                                   const Result<std::vector<RankRange>>& assigned) {
  const std::string port_key = of_attempt(attempt) + "MASTER_PORT";
  if (auto ok = co_await link_.set(port_key, std::to_string(port)); !ok) co_return ok;
  for (int node = job_.nodes - 1; node >= 0; --node) {
    std::string text;
    if (assigned) {
      text = to_json((*assigned)[static_cast<std::size_t>(node)]);
    } else {
      text = "!" + assigned.error().message;
    }
    const std::string ranks_key = ranks(attempt, node);
    if (auto ok = co_await link_.set(ranks_key, text); !ok) co_return ok;
  }
  co_return Result<void>{};
}

Awaitable<Result<void>> NodeEntries::turn_away_late_nodes(AgentLink& link) {
  const std::string nodes_key = key("nnodes");
  const std::string text = fmt::format(
      "!{} runs a job with this --rdzv-id, --master-addr and --master-port already, and has started its "
      "workers again; no node can join it now",
      job_.host);
  co_return co_await link.set(nodes_key, text);
}

Awaitable<std::vector<int>> NodeEntries::missing_nodes(int attempt) {
  std::vector<int> missing;
  for (int node = 0; node < job_.nodes; ++node) {
    const std::string info = role_info(attempt, node);
    auto here = co_await link_.exists(info);
    if (!here) break;
    if (!*here) missing.push_back(node);
  }
  co_return missing;
}

std::string NodeEntries::describe(const std::vector<int>& missing) const {
  std::vector<int> gone;
  std::copy_if(missing.begin(), missing.end(), std::back_inserter(gone),
               [this](int node) { return forgotten_.contains(node); });
  return gone.empty() ? to_ranges(missing)
                      : fmt::format("{} ({} {} here and {} gone)", to_ranges(missing), to_ranges(gone),
                                    gone.size() == 1 ? "was" : "were", gone.size() == 1 ? "is" : "are");
}

Awaitable<Result<Rendezvous::Membership>> NodeEntries::read_place(int attempt, std::string master_addr) {
  const std::string own_ranks = ranks(attempt, job_.node_rank);
  auto range_text = co_await link_.get(own_ranks);
  if (!range_text) co_return fail(range_text.error());
  if (range_text->starts_with("!{")) {
    auto ended = outcome_from_json(std::string_view(*range_text).substr(1));
    if (!ended) co_return fail(ended.error());
    if (const auto* notice = std::get_if<FailureNotice>(&*ended)) co_return Rendezvous::Membership(*notice);
  }
  if (range_text->starts_with("!")) co_return fail(ErrorCode::kMismatch, range_text->substr(1));
  auto range = rank_range_from_json(*range_text);
  if (!range) co_return fail(range.error());
  const std::string port_key = of_attempt(attempt) + "MASTER_PORT";
  auto port = co_await link_.get(port_key);
  if (!port) co_return fail(port.error());
  auto number = parse_integer("MASTER_PORT", *port, 1, 65535);
  if (!number) co_return fail(number.error());
  Assignment out;
  out.attempt = attempt;
  out.generation = attempt;
  out.group_rank = job_.node_rank;
  out.group_world_size = job_.nodes;
  out.base_rank = range->base_rank;
  out.world_size = range->world_size;
  out.role_base_rank = range->role_base_rank;
  out.role_world_size = range->role_world_size;
  out.master_addr = std::move(master_addr);
  out.master_port = static_cast<std::uint16_t>(*number);
  co_return out;
}

Awaitable<Result<void>> NodeEntries::send_report(int attempt, std::string part) {
  const std::string own = report(attempt, job_.node_rank);
  co_return co_await link_.set(own, std::move(part));
}

Awaitable<Result<void>> NodeEntries::give_up_report(int attempt, int node) {
  const std::string theirs = report(attempt, node);
  const std::string none(kNoReport);
  auto written = co_await link_.set_if_absent(theirs, none);
  if (!written) co_return fail(written.error());
  co_return Result<void>{};
}

Awaitable<Result<void>> NodeEntries::gather_reports(AgentLink& link, int attempt, Instant deadline,
                                                    Rendezvous::PartCame came) {
  for (int node = 1; node < job_.nodes; ++node) {
    const std::string theirs = report(attempt, node);
    if (auto ok = co_await link.wait(theirs, deadline); !ok) co_return ok;
    auto part = co_await link.get(theirs);
    if (!part) co_return fail(part.error());
    came(node, *part == kNoReport ? std::string() : *std::move(part));
  }
  co_return Result<void>{};
}

Awaitable<Result<void>> NodeEntries::mark_left(std::string connection) {
  const std::string own = left(connection);
  co_return co_await link_.set(own, "1");
}

Awaitable<Result<void>> NodeEntries::call_off(FailureNotice notice) {
  const std::string text = why_not(std::move(notice));
  for (int node = 0; node < job_.nodes; ++node) {
    const std::string info = role_info(0, node);
    auto written = co_await link_.set_if_absent(info, text);
    if (!written) co_return fail(written.error());
  }
  co_return Result<void>{};
}

Awaitable<Result<void>> NodeEntries::decline(int attempt, FailureNotice notice) {
  const std::string text = why_not(std::move(notice));
  if (job_.node_rank == 0) co_return co_await refuse(attempt, text);
  const std::string own_info = role_info(attempt, job_.node_rank);
  co_return co_await link_.set(own_info, text);
}

Awaitable<Result<void>> NodeEntries::refuse(int attempt, std::string text) {
  for (int node = job_.nodes - 1; node >= 0; --node) {
    const std::string ranks_key = ranks(attempt, node);
    if (auto ok = co_await link_.set(ranks_key, text); !ok) co_return ok;
  }
  co_return Result<void>{};
}

Awaitable<Result<void>> NodeEntries::give_up_on(int attempt, FailureNotice notice) {
  const std::string info = role_info(attempt, notice.node_rank);
  const std::string text = why_not(std::move(notice));
  auto written = co_await link_.set_if_absent(info, text);
  if (!written) co_return fail(written.error());
  co_return Result<void>{};
}

Awaitable<Result<void>> NodeEntries::forget(std::string connection) {
  const std::string mark = agent(connection);
  auto marked = co_await link_.get(mark);
  if (!marked) co_return fail(marked.error());
  if (marked->empty()) co_return Result<void>{};
  const auto node = parse_integer("node rank", *marked, 0, job_.nodes - 1);
  if (!node || *node == 0) co_return Result<void>{};
  const int rank = static_cast<int>(*node);
  const std::string role_key = role_info(0, rank);
  auto text = co_await link_.get(role_key);
  if (!text) co_return fail(text.error());
  if (const auto info = role_info_from_json(*text); info && info->connection == connection)
    if (auto ok = co_await link_.remove(role_key); !ok) co_return ok;
  const std::string claim_key = claim(rank);
  auto owner = co_await link_.get(claim_key);
  if (!owner) co_return fail(owner.error());
  if (!owner->ends_with("\n" + connection)) co_return Result<void>{};
  forgotten_.insert(rank);
  co_return co_await link_.remove(claim_key);
}

Awaitable<std::vector<int>> NodeEntries::unclaimed() {
  std::vector<int> out;
  for (int node = 1; node < job_.nodes; ++node) {
    const std::string claim_key = claim(node);
    auto claimed = co_await link_.exists(claim_key);
    if (!claimed) break;
    if (!*claimed && !forgotten_.contains(node)) out.push_back(node);
  }
  co_return out;
}

Awaitable<Result<void>> NodeEntries::wait_until_claimed(AgentLink& waiting, std::vector<int> nodes,
                                                        Instant deadline) {
  for (const int node : nodes) {
    const std::string claim_key = claim(node);
    if (auto ok = co_await waiting.wait(claim_key, deadline); !ok) co_return ok;
  }
  co_return Result<void>{};
}

Awaitable<Result<void>> NodeEntries::wait_until_left(AgentLink& farewell, Instant deadline) {
  for (int node = 1; node < job_.nodes; ++node) {
    const std::string claim_key = claim(node);
    auto owner = co_await link_.get(claim_key);
    if (!owner) co_return fail(owner.error());
    if (owner->empty()) continue;
    const std::string own = left(owner->substr(owner->find('\n') + 1));
    if (auto ok = co_await farewell.wait(own, deadline); !ok) co_return ok;
  }
  co_return Result<void>{};
}

}  // namespace muster::launcher
