// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/etcd/election.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "rendezvous/base/fail.h"

namespace muster::etcd {

using membership::NodeId;
using membership::Phase;
using nlohmann::json;

namespace {

constexpr std::string_view kStateMark = "muster job 3\n";
// Somebody else may write these keys, and etcd takes values of 1.5 MiB.
constexpr std::size_t kMaxEndpointBytes = 16384;
constexpr std::size_t kMaxAddresses = 64;

// What is not a letter, a digit or one of -._ becomes %XX; a job called ".." is no danger to etcd.
std::string escaped(std::string_view text) {
  std::string out;
  for (const unsigned char c : text)
    out += std::isalnum(c) != 0 || c == '-' || c == '.' || c == '_' ? std::string(1, static_cast<char>(c))
                                                                    : fmt::format("%{:02X}", c);
  return out;
}

}  // namespace

JobKeys::JobKeys(std::string_view prefix, std::string_view job_id) {
  const std::string base = fmt::format("{}/{}/", prefix, escaped(job_id));
  coordinator = base + "coordinator";
  nodes = base + "nodes/";
  nodes_end = base + "nodes0";  // '/' + 1
  state = base + "state";
}

std::string JobKeys::node(const NodeId& id) const {
  return nodes + membership::to_text(id);
}

std::optional<NodeId> JobKeys::node_of(std::string_view key) const {
  if (!key.starts_with(nodes) || key.size() != nodes.size() + 32) return std::nullopt;
  key.remove_prefix(nodes.size());
  NodeId out;
  const auto read = [](std::string_view digits, std::uint64_t& to) {
    const auto [at, error] = std::from_chars(digits.data(), digits.data() + digits.size(), to, 16);
    return error == std::errc() && at == digits.data() + digits.size();
  };
  if (!read(key.substr(0, 16), out.high) || !read(key.substr(16), out.low)) return std::nullopt;
  return out;
}

std::string encode(const Endpoint& endpoint) {
  json out{{"host", endpoint.host}, {"addresses", endpoint.addresses}};
  if (endpoint.port != 0) out["port"] = endpoint.port;
  if (endpoint.has_joined) out["has_joined"] = true;
  // A host's name may be no UTF-8.
  return out.dump(-1, ' ', false, json::error_handler_t::replace);
}

std::optional<Endpoint> decode_endpoint(std::string_view text) {
  if (text.size() > kMaxEndpointBytes) return std::nullopt;
  try {
    const json object = json::parse(text);
    const auto port = object.value("port", std::int64_t{0});
    Endpoint out{object.value("host", ""), object.at("addresses").get<std::vector<std::string>>(),
                 static_cast<std::uint16_t>(port), object.value("has_joined", false)};
    if (std::in_range<std::uint16_t>(port) && out.addresses.size() <= kMaxAddresses) return out;
  } catch (const json::exception&) {  // as below
  }
  return std::nullopt;
}

Result<Endpoint> coordinator_endpoint(const KeyValue& coordinator) {
  auto endpoint = decode_endpoint(coordinator.value);
  if (endpoint && endpoint->port != 0 && !endpoint->addresses.empty()) return *std::move(endpoint);
  return fail(ErrorCode::kCorrupt,
              "what etcd has under {} is no coordinator's endpoint; does something else use these keys? Give "
              "another --rdzv-id, or etcd_prefix in --rdzv-conf",
              coordinator.key);
}

std::string encode_state(const JobRecord& record) {
  std::string out(kStateMark);
  muster::encode(record, out);
  return out;
}

std::optional<JobRecord> decode_state(std::string_view bytes) {
  if (!bytes.starts_with(kStateMark)) return std::nullopt;
  return decode_job(bytes.substr(kStateMark.size()));
}

Role role_of(const std::optional<KeyValue>& coordinator, LeaseId own_lease, std::optional<Revision> served) {
  if (!coordinator) return Role::kCampaign;
  if (own_lease == 0 || coordinator->lease != own_lease) return Role::kFollow;
  return served == coordinator->revision ? Role::kStay : Role::kCampaign;
}

Result<RecoveredJob> recover(const std::vector<KeyValue>& state, const JobKeys& keys,
                             const std::vector<KeyValue>& nodes) {
  RecoveredJob out;
  if (state.empty()) return out;
  std::optional<JobRecord> saved = decode_state(state.front().value);
  if (!saved)
    return fail(ErrorCode::kCorrupt,
                "what etcd has under {} is no job of this version of muster; give another --rdzv-id, or "
                "remove it with etcdctl del",
                keys.state);
  std::set<NodeId> here;
  std::set<NodeId> joined;
  for (const KeyValue& entry : nodes) {
    const auto id = keys.node_of(entry.key);
    const auto endpoint = decode_endpoint(entry.value);
    if (!id || !endpoint) continue;
    here.insert(*id);
    if (endpoint->has_joined) joined.insert(*id);
  }
  bool member_here = false;
  for (const membership::Slot& slot : saved->world.slots) {
    joined.erase(slot.node);
    if (here.contains(slot.node))
      member_here = true;
    else if (saved->phase == Phase::kRunning)
      out.absent.push_back(slot.node);
  }
  out.doubtful = member_here && joined.empty() && !out.absent.empty();
  if (!member_here && joined.empty() && saved->phase != Phase::kClosed) {
    saved->phase = Phase::kClosed;
    saved->ending = {.kind = membership::Cause::Kind::kNodeLost, .text = "all of its agents are gone"};
    out.absent.clear();
  }
  // Who has no lease any more is not expected to hear how the job ended.
  if (saved->phase == Phase::kClosed) {
    const auto note = [&](const NodeId& id) {
      if (!here.contains(id)) saved->has_gone(id);
    };
    for (const membership::Slot& slot : saved->world.slots) note(slot.node);
    for (const NodeId& id : saved->known) note(id);
  }
  out.record = std::move(saved);
  return out;
}

void Presence::set(const JobKeys& keys, const std::vector<KeyValue>& nodes, Instant now) {
  std::set<NodeId> here;
  for (const KeyValue& entry : nodes)
    if (const auto id = keys.node_of(entry.key)) here.insert(*id);
  for (const NodeId& id : present_)
    if (!here.contains(id)) expected_.emplace(id, now + grace_);
  for (const NodeId& id : here) expected_.erase(id);
  present_ = std::move(here);
}

void Presence::on_event(const JobKeys& keys, const WatchUpdate::Event& event, Instant now) {
  const auto id = keys.node_of(event.entry.key);
  if (!id) return;
  if (!event.deleted) {
    present_.insert(*id);
    expected_.erase(*id);
  } else if (present_.erase(*id) > 0) {
    expected_.emplace(*id, now + grace_);
  }
}

void Presence::expect(const NodeId& node, Instant until) {
  if (!present_.contains(node)) expected_.insert_or_assign(node, until);
}

Instant Presence::next_deadline() const {
  Instant out = Instant::max();
  for (const auto& [node, until] : expected_) out = std::min(out, until);
  return out;
}

std::vector<NodeId> Presence::take_absent(Instant now) {
  std::vector<NodeId> out;
  std::erase_if(expected_, [&](const auto& entry) {
    if (entry.second > now) return false;
    out.push_back(entry.first);
    return true;
  });
  return out;
}

}  // namespace muster::etcd
