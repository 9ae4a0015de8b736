// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/proxy/hosted_stores.h"

#include <algorithm>
#include <deque>

#include <fmt/format.h>

namespace muster {
namespace {

using wire::Op;

// While a connection has so many bytes of answers its requests are not run.
constexpr std::size_t kMaxAnswerBytes = std::size_t{1} << 20;
// Of a connection: requests that are not run. An agent has no more under way.
constexpr std::size_t kMaxQueued = 256;
// An agent hears at once that so much was done which has no answer, else with the next answer.
constexpr std::uint64_t kMaxUntold = 64;
constexpr std::size_t kMaxUntoldBytes = 65536;
// Of memory, for a connection that has nothing: 2,064 bytes each of 20,000 (mallinfo2), half of it two empty
// std::deque.
constexpr std::size_t kConnectionBytes = 2048;

bool is_change(Op op) {
  if (static_cast<std::size_t>(op) >= wire::kNumOps) return false;  // the session closes for it
  const wire::OpKind kind = op_info(op).kind;
  return kind == wire::OpKind::kSilentChange || kind == wire::OpKind::kChange;
}

}  // namespace

/// A connection of a worker.
struct HostedStores::Connection {
  Connection(AgentSession& whose, std::uint32_t its_number, ClientId id)
      : agent(whose), number(its_number), client(id) {}

  struct Answer {
    std::uint64_t number;
    std::string bytes;
    std::size_t num_sent = 0;
  };

  AgentSession& agent;
  std::uint32_t number;
  ClientId client;
  std::optional<Session> session;  // none: closed, and the agent does not know it yet
  std::string reason;              // of that

  std::uint64_t applied = 0;  // requests up to here were run, ever
  LastApplied last;           // the last change of these
  bool recorded = false;      // the log has one

  // Of the agent's present connection.
  bool confirmed = true;           // it has named this one
  std::uint64_t handled = 0;       // requests up to here were run, or were found to be done
  std::uint64_t told = 0;          // the agent knows that these are done
  std::size_t untold_bytes = 0;    // of requests since
  std::uint64_t waiting = 0;       // number of a WAIT or BARRIER without an answer yet; 0: none
  std::string partial;             // of the request after those in `queued`
  std::deque<std::string> queued;  // requests from handled + 1, not run yet
  std::deque<Answer> answers;
  std::size_t queued_bytes = 0;
  std::size_t answer_bytes = 0;
  bool close_told = false;
  bool in_turns = false;
  std::size_t buffered_bytes = 0;

  /// What has no answer is done up to here.
  [[nodiscard]] std::uint64_t done() const { return waiting > 0 ? waiting - 1 : handled; }
  [[nodiscard]] bool must_tell() const {
    return done() - told >= kMaxUntold || (done() > told && untold_bytes >= kMaxUntoldBytes);
  }
  [[nodiscard]] bool has_output() const {
    return !answers.empty() || must_tell() || (!session && !close_told);
  }
};

/// What one agent has of a store.
struct HostedStores::AgentSession {
  AgentSession(Store& of, const membership::NodeId& whose) : store(of), node(whose) {}

  Store& store;
  membership::NodeId node;
  std::optional<ConnectionId> link;
  bool attached_told = false;
  std::uint32_t num_awaited = 0;  // connections of workers that are still to be named
  std::unordered_map<std::uint32_t, std::unique_ptr<Connection>> connections;
  std::size_t num_open = 0;
  std::deque<std::uint32_t> turns;  // connections with something to send
};

struct HostedStores::Store {
  std::string job;
  std::int64_t generation = 0;
  std::uint64_t instance = 0;
  StoreCore core;        // outlives the sessions
  bool changed = false;  // by the request that is run
  std::unordered_map<ClientId, Connection*> clients;
  ClientId next_client = 0;
  std::unordered_map<membership::NodeId, std::unique_ptr<AgentSession>, membership::NodeIdHash> agents;

  [[nodiscard]] AgentSession& agent(const membership::NodeId& node) {
    auto& found = agents[node];
    if (!found) found = std::make_unique<AgentSession>(*this, node);
    return *found;
  }
};

HostedStores::HostedStores(const HostedStoresOptions& options, std::uint64_t first_instance)
    : options_(options), next_instance_(first_instance) {
  options_.limits.legacy = wire::Generation::kRelayed;
}

HostedStores::~HostedStores() = default;

const StoreCore* HostedStores::find(std::string_view job) const {
  const auto found = stores_.find(job);
  return found == stores_.end() ? nullptr : &found->second->core;
}

std::string HostedStores::receive(ConnectionId from, const std::optional<NodeAssignment>& member,
                                  const control::Message& message) {
  const auto found = agents_.find(from);
  AgentSession* agent = found == agents_.end() ? nullptr : found->second;
  // Without one: sent before the agent heard that the generation is over.
  if (const auto* m = std::get_if<control::StoreRequest>(&message))
    return agent == nullptr ? std::string() : request(*agent, *m);
  if (const auto* m = std::get_if<control::StoreOpen>(&message))
    return agent == nullptr ? std::string() : open(*agent, *m);
  if (const auto* m = std::get_if<control::StoreClose>(&message)) {
    if (agent != nullptr) remove(*agent, m->connection);
    return {};
  }
  if (const auto* m = std::get_if<control::StoreAttach>(&message)) {
    if (m->num_connections > 4 * options_.max_connections)
      return fmt::format("it has {} connections of workers, the limit is {}", m->num_connections,
                         options_.max_connections);
    attach(from, member, *m);
    return {};
  }
  return fmt::format("an agent does not send {}", control::name_of(message));
}

// Agents.

void HostedStores::attach(ConnectionId from, const std::optional<NodeAssignment>& member,
                          const control::StoreAttach& attach) {
  if (!member || member->generation != attach.generation) {
    refused_.insert_or_assign(
        from,
        control::StoreRefused{attach.generation, fmt::format("generation {} is over", attach.generation)});
    return;
  }
  auto found = stores_.find(member->job);
  if (found != stores_.end() && found->second->generation != member->generation) {
    over(member->job);
    found = stores_.end();
  }
  Store* store = found == stores_.end() ? nullptr : found->second.get();
  if (attach.instance != 0 && (store == nullptr || store->instance != attach.instance)) {
    lost_ = member;
    return;
  }
  disconnected(from);
  if (store == nullptr) {
    auto fresh = std::make_unique<Store>();
    fresh->job = member->job;
    fresh->generation = attach.generation;
    fresh->instance = next_instance_++;
    store = stores_.emplace(member->job, std::move(fresh)).first->second.get();
    if (record_) record_(HostedBegan{store->instance, store->job, store->generation});
    begin_recording(*store);
  }
  AgentSession& agent = store->agent(member->node);
  detach(agent);
  agent.link = from;
  agents_[from] = &agent;
  agent.attached_told = false;
  agent.num_awaited = attach.num_connections;
  if (agent.num_awaited == 0) remove_unconfirmed(agent);
  ready_.push_back(from);
}

std::string HostedStores::open(AgentSession& agent, const control::StoreOpen& open) {
  const bool again = agent.num_awaited > 0;
  const auto found = agent.connections.find(open.connection);
  if (found != agent.connections.end() && found->second->confirmed)
    return fmt::format("connection {} is opened twice", open.connection);
  if (found == agent.connections.end() && agent.connections.size() >= 2 * options_.max_connections)
    return "it opens connections, and does not confirm that others are closed";
  if (agent.turns.size() > 4 * options_.max_connections) return "it sends and reads nothing";
  Connection& connection = found != agent.connections.end() ? *found->second : create(agent, open.connection);
  connection.confirmed = true;
  connection.applied = std::max(connection.applied, open.acked);
  connection.handled = connection.told = open.acked;
  connection.waiting = 0;
  acknowledge(connection, open.acked);
  if (connection.session && agent.num_open > options_.max_connections)
    close(connection, fmt::format("this node has {} connections to the store, the limit is {}",
                                  agent.num_open - 1, options_.max_connections));
  count(connection);
  make_ready(connection);
  if (again && --agent.num_awaited == 0) remove_unconfirmed(agent);
  keep_limit();
  return {};
}

// The connection of a worker stays, but for what belongs to the agent's connection.
void HostedStores::detach(AgentSession& agent) {
  if (agent.link) agents_.erase(*agent.link);
  agent.link.reset();
  agent.turns.clear();
  for (auto& [number, connection] : agent.connections) {
    // Who waits at a barrier is counted there. Another wait is asked for again.
    if (connection->waiting > 0 && !connection->last.barrier) {
      agent.store.core.cancel_wait(connection->client);
      connection->waiting = 0;
    }
    connection->confirmed = connection->in_turns = connection->close_told = false;
    connection->partial = std::string();
    connection->queued = {};
    connection->answers = {};
    connection->queued_bytes = connection->answer_bytes = connection->untold_bytes = 0;
    count(*connection);
  }
}

void HostedStores::disconnected(ConnectionId id) {
  const auto found = agents_.find(id);
  if (found != agents_.end()) detach(*found->second);
  refused_.erase(id);
}

void HostedStores::over(std::string_view job) {
  const auto found = stores_.find(job);
  if (found == stores_.end()) return;
  if (record_) record_(HostedEnded{found->second->instance});
  for (auto& [node, agent] : found->second->agents) {
    if (agent->link) agents_.erase(*agent->link);
    for (const auto& [number, connection] : agent->connections) num_buffered_ -= connection->buffered_bytes;
    num_open_ -= agent->num_open;
  }
  stores_.erase(found);
}

// Connections of workers.

HostedStores::Connection& HostedStores::create(AgentSession& agent, std::uint32_t number) {
  Store& store = agent.store;
  const ClientId client = store.next_client++;
  auto made = std::make_unique<Connection>(agent, number, client);
  Connection& out = *made;
  out.session.emplace(client, store.core, options_.limits);
  store.clients.emplace(client, made.get());
  agent.connections.emplace(number, std::move(made));
  ++agent.num_open;
  ++num_open_;
  return out;
}

void HostedStores::end_session(Connection& connection) {
  if (!connection.session) return;
  connection.session.reset();
  connection.agent.store.clients.erase(connection.client);
  --connection.agent.num_open;
  --num_open_;
}

void HostedStores::close(Connection& connection, std::string reason) {
  end_session(connection);
  connection.reason = std::move(reason);
  connection.partial = std::string();
  connection.queued = {};
  connection.queued_bytes = 0;
  connection.waiting = 0;
  count(connection);
  make_ready(connection);
}

// The agent has no such connection any more.
void HostedStores::remove(AgentSession& agent, std::uint32_t number) {
  const auto found = agent.connections.find(number);
  if (found == agent.connections.end()) return;
  Connection& connection = *found->second;
  end_session(connection);
  num_buffered_ -= connection.buffered_bytes;
  if (connection.recorded && record_) record_(HostedGone{agent.store.instance, {agent.node, number}});
  agent.connections.erase(found);
}

void HostedStores::remove_unconfirmed(AgentSession& agent) {
  std::vector<std::uint32_t> gone;
  for (const auto& [number, connection] : agent.connections)
    if (!connection->confirmed) gone.push_back(number);
  for (const std::uint32_t number : gone) remove(agent, number);
}

// Requests.

std::string HostedStores::request(AgentSession& agent, const control::StoreRequest& request) {
  const auto found = agent.connections.find(request.connection);
  if (found == agent.connections.end()) return {};
  Connection& connection = *found->second;
  if (!connection.session) return {};  // it was closed while this was on its way
  if (!connection.confirmed)
    return fmt::format("connection {} is used and was not opened", request.connection);
  const std::uint64_t expected = connection.handled + connection.queued.size() + 1;
  if (request.number != expected)
    return fmt::format("connection {} sends request {}, where {} is to come", request.connection,
                       request.number, expected);
  if (connection.queued.size() >= kMaxQueued)
    return fmt::format("connection {} has {} requests under way, the limit", request.connection,
                       connection.queued.size());
  acknowledge(connection, request.acked);
  const std::size_t max_bytes = options_.limits.wire.max_request_bytes;
  if (connection.partial.size() + request.bytes.size() > max_bytes) {
    close(connection, fmt::format("a request is longer than {} bytes", max_bytes));
  } else if (request.more) {
    connection.partial += request.bytes;
    count(connection);
  } else if (connection.partial.empty() && connection.queued.empty() &&
             connection.answer_bytes < kMaxAnswerBytes) {
    run(connection, request.bytes);
  } else {
    connection.partial += request.bytes;
    connection.queued_bytes += connection.partial.size();
    connection.queued.push_back(std::exchange(connection.partial, {}));
    run_queued(connection);
    count(connection);
  }
  keep_limit();
  return {};
}

void HostedStores::run_queued(Connection& connection) {
  while (!connection.queued.empty() && connection.answer_bytes < kMaxAnswerBytes) {
    const std::string bytes = std::move(connection.queued.front());
    connection.queued.pop_front();
    connection.queued_bytes -= bytes.size();
    run(connection, bytes);
  }
}

// One request, which is the next of the agent's present connection.
void HostedStores::run(Connection& connection, std::string_view bytes) {
  const std::uint64_t number = ++connection.handled;
  connection.untold_bytes += bytes.size();
  const auto op = bytes.empty() ? Op::kPing : static_cast<Op>(bytes.front());
  if (number <= connection.applied && is_change(op)) {
    // It was made before. A change that has an answer is the last one until the agent has that.
    if (number == connection.last.number && connection.last.barrier)
      connection.waiting = number;
    else if (number == connection.last.number && !connection.last.answer.empty())
      answer(connection, number, connection.last.answer);
  } else {
    connection.applied = std::max(connection.applied, number);
    Store& store = connection.agent.store;
    std::string out;
    std::string_view rest = bytes;
    const std::uint64_t before = connection.session->num_requests();
    const Session::State state = connection.session->receive(rest, out);
    if (state == Session::State::kClose) {
      close(connection, connection.session->close_reason());
    } else if (!connection.session->between_requests() || connection.session->num_requests() != before + 1) {
      close(connection, fmt::format("a message of {} bytes is not one request", bytes.size()));
    } else {
      connection.waiting =
          (op == Op::kWait || op == Op::kBarrier) && store.core.waiting(connection.client) ? number : 0;
      if (op == Op::kCancelWait) connection.last.barrier.reset();
      if (is_change(op)) keep(connection, bytes, out);
      if (!out.empty()) answer(connection, number, std::move(out));
    }
    deliver(store);
  }
  count(connection);
  make_ready(connection);
}

// Beside the changes it made, which the core has told, so that both are in one frame of the log.
void HostedStores::keep(Connection& connection, std::string_view request, std::string_view answer) {
  LastApplied& last = connection.last;
  last.number = connection.handled;
  last.answer = answer;
  last.barrier.reset();
  if (connection.waiting > 0) last.barrier = request.substr(9, wire::load_u64(request.data() + 1));
  if (!std::exchange(connection.agent.store.changed, false)) return;
  connection.recorded = true;
  record_last(connection);
}

void HostedStores::answer(Connection& connection, std::uint64_t number, std::string bytes) {
  connection.answer_bytes += bytes.size();
  connection.answers.push_back({number, std::move(bytes)});
}

// Brings what was just run to the other clients concerned.
void HostedStores::deliver(Store& store) {
  for (const ClientId id : store.core.woken()) {
    const auto found = store.clients.find(id);
    if (found == store.clients.end()) continue;
    Connection& connection = *found->second;
    if (connection.last.barrier) {
      connection.last.barrier.reset();
      connection.last.answer.assign(1, wire::kStopWaiting);
      if (connection.recorded) record_last(connection);
    }
    if (connection.waiting > 0 && connection.confirmed)
      answer(connection, connection.waiting, std::string(1, wire::kStopWaiting));
    connection.waiting = 0;
    count(connection);
    make_ready(connection);
  }
  store.core.woken().clear();
}

// The agent has the answers up to here.
void HostedStores::acknowledge(Connection& connection, std::uint64_t acked) {
  if (acked < connection.last.number) return;
  connection.last.answer.clear();
  // It was given up before the process that knew of that ended.
  if (connection.last.barrier && connection.waiting != connection.last.number) {
    connection.last.barrier.reset();
    connection.agent.store.core.cancel_wait(connection.client);
  }
}

// Memory.

void HostedStores::count(Connection& connection) {
  const std::size_t now = kConnectionBytes + connection.partial.size() + connection.queued_bytes +
                          connection.answer_bytes + connection.last.answer.size() + connection.reason.size();
  num_buffered_ += now - std::exchange(connection.buffered_bytes, now);  // modulo 2^64: it may be less
}

// Not who came last is closed, but who has the most.
void HostedStores::keep_limit() {
  while (num_buffered_ > options_.max_buffered_bytes) {
    Connection* largest = nullptr;
    for (const auto& [job, store] : stores_)
      for (const auto& [id, connection] : store->clients)
        if (largest == nullptr || connection->buffered_bytes > largest->buffered_bytes) largest = connection;
    if (largest == nullptr) return;
    largest->answers = {};
    largest->answer_bytes = 0;
    close(*largest, fmt::format("requests and answers of all workers that are under way are {} bytes, the "
                                "limit is {} (--max-buffered-bytes), and this one has the most",
                                num_buffered_, options_.max_buffered_bytes));
  }
}

// Output.

void HostedStores::make_ready(Connection& connection) {
  AgentSession& agent = connection.agent;
  if (!connection.confirmed || !agent.link || connection.in_turns || !connection.has_output()) return;
  connection.in_turns = true;
  agent.turns.push_back(connection.number);
  ready_.push_back(*agent.link);
}

std::vector<ConnectionId> HostedStores::take_ready() {
  std::ranges::sort(ready_);
  ready_.erase(std::unique(ready_.begin(), ready_.end()), ready_.end());
  return std::exchange(ready_, {});
}

bool HostedStores::next(ConnectionId to, control::Message& message) {
  const auto agent_found = agents_.find(to);
  if (agent_found == agents_.end()) return false;
  AgentSession& agent = *agent_found->second;
  if (!std::exchange(agent.attached_told, true)) {
    message = control::StoreAttached{agent.store.generation, agent.store.instance};
    return true;
  }
  while (!agent.turns.empty()) {
    const auto found = agent.connections.find(agent.turns.front());
    agent.turns.pop_front();
    if (found == agent.connections.end()) continue;
    Connection& connection = *found->second;
    connection.in_turns = false;
    if (connection.answers.empty() && !connection.session) {
      if (std::exchange(connection.close_told, true)) continue;
      message = control::StoreClose{connection.number, connection.reason};
      return true;
    }
    if (connection.answers.empty() && !connection.must_tell()) continue;
    // A message that is used again keeps its buffer.
    if (!std::holds_alternative<control::StoreAnswer>(message)) message = control::StoreAnswer();
    auto& out = std::get<control::StoreAnswer>(message);
    out.connection = connection.number;
    out.more = false;
    out.bytes.clear();
    if (connection.answers.empty()) {
      out.number = connection.done();
    } else {
      Connection::Answer& answer = connection.answers.front();
      out.number = answer.number;
      const std::string_view piece = std::string_view(answer.bytes).substr(answer.num_sent, kStorePieceBytes);
      out.bytes = piece;
      answer.num_sent += piece.size();
      out.more = answer.num_sent < answer.bytes.size();
      if (!out.more) {
        connection.answer_bytes -= answer.bytes.size();
        connection.answers.pop_front();
      }
    }
    if (!out.more) {
      connection.told = out.number;
      connection.untold_bytes = 0;
      run_queued(connection);
      count(connection);
    }
    make_ready(connection);
    return true;
  }
  return false;
}

// Across processes.

void HostedStores::restore(std::uint64_t instance, SavedStore saved) {
  over(saved.job);
  auto fresh = std::make_unique<Store>();
  Store& store = *fresh;
  store.job = std::move(saved.job);
  store.generation = saved.generation;
  store.instance = instance;
  store.core = std::move(saved.core);
  stores_.emplace(store.job, std::move(fresh));
  begin_recording(store);
  for (auto& [name, last] : saved.connections) {
    Connection& connection = create(store.agent(name.node), name.number);
    connection.confirmed = false;
    connection.recorded = true;
    connection.applied = last.number;
    connection.last = std::move(last);
    // It may be let out before its agent is back, and is not counted a second time.
    if (connection.last.barrier) store.core.stay_at_barrier(connection.client, *connection.last.barrier);
    count(connection);
  }
}

void HostedStores::begin_recording(Store& store) {
  if (!record_) return;
  store.core.record_to([this, &store](const StoreChange& change) {
    store.changed = true;
    record_(HostedChanged{store.instance, change});
  });
}

void HostedStores::record_last(const Connection& connection) {
  const AgentSession& agent = connection.agent;
  record_(HostedDone{agent.store.instance, {agent.node, connection.number}, connection.last});
}

void HostedStores::describe(const HostedSink& to) const {
  for (const auto& [job, store] : stores_) {
    const std::uint64_t instance = store->instance;
    to(HostedBegan{instance, job, store->generation});
    store->core.describe([&](const StoreChange& change) { to(HostedChanged{instance, change}); });
    for (const auto& [node, agent] : store->agents)
      for (const auto& [number, connection] : agent->connections)
        if (connection->recorded) to(HostedDone{instance, {node, number}, connection->last});
  }
}

}  // namespace muster
