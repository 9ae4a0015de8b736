// SPDX-License-Identifier: Apache-2.0
// What the coordinator tells its agents, and how they part.
#include <cerrno>
#include <sys/socket.h>

#include <fmt/format.h>

#include "rendezvous/net/link_room.h"
#include "rendezvous/server/control_server_impl.h"
#include "rendezvous/server/store_inquiry.h"

namespace muster::net {
namespace {

constexpr Millis kLingerTime{2000};  // for who is refused to read why

}  // namespace

// Before anything it has said is looked at.
void ControlServer::Impl::refuse_plain(ConnectionId id, Connection& connection, std::string why) {
  connection.peer.say(control::Preamble{});
  refuse(id, connection, {control::Refused::Reason::kAuthentication, std::move(why)});
}

void ControlServer::Impl::refuse(ConnectionId id, Connection& connection, control::Refused refused) {
  refusals_.write(kind_of(refused.reason),
                  fmt::format("closed {}: {}", connection.peer.name(), refused.text));
  if (connection.peer.stage != Stage::kOpen) {
    ++stats_.num_refused;
    const char* phase = kind_of(refused.reason) == Refusal::kAuthentication ? "authentication" : "handshake";
    if (!connection.peer.job().empty())
      jobs_.note_trouble(connection.peer.job(), {connection.peer.title(), phase, refused.text, {}, false},
                         now(), effects_);
  } else {
    jobs_.disconnected(id, refused.text, now(), effects_);
  }
  connection.peer.say(control::Message(std::move(refused)));
  linger(id, connection);
  apply();
}

// The rest of the output goes out, then the peer closes, or we do when it has had its time.
void ControlServer::Impl::linger(ConnectionId id, Connection& connection) {
  connection.peer.stage = Stage::kClosing;
  parked_.forget(id);
  agents_.set_deadline(id, connection, SteadyClock::now() + kLingerTime);
  flush(id, connection);
}

// Who has proven the secret of one job sees that job; who has proven the house's, or nothing where there is
// none, sees those that have no secret of their own, and the store's. Changes that are not on the disk yet
// may show: nothing follows from an answer.
void ControlServer::Impl::tell(const control::Inquire& question, Connection& connection) const {
  const ControlPeer& peer = connection.peer;
  const auto may_see = [&](std::string_view job) {
    if (peer.proved_own_secret()) return job == peer.job();
    return !options_.job_secrets || options_.job_secrets->find(job) == nullptr;
  };
  control::InquiryOver over;
  over.software = options_.software;
  if (stalled()) over.trouble = "its state log cannot be written; is the disk full?";
  for (const control::Message& each : jobs_.answer(question, may_see, now(), over)) connection.peer.say(each);
  if (const StoreCore* core = options_.store ? options_.store() : nullptr;
      core != nullptr && !peer.proved_own_secret() && question.after.empty() && question.from_number == 0)
    for (const control::StoreJobState& each : store_jobs(*core, question.job, over.num_store_jobs))
      connection.peer.say(control::Message(each));
  connection.peer.say(control::Message(std::move(over)));
}

// An agent's heartbeat is answered nevertheless: a full disk is no reason to be taken for dead.
void ControlServer::Impl::pass_heartbeats() {
  for (const ConnectionId id : std::exchange(effects_.heartbeats, {})) {
    const auto connection = agents_.find(id);
    if (!connection || connection->peer.stage == Stage::kClosing) continue;
    connection->peer.say(control::Message(control::Heartbeat{}));
    flush(id, *connection);
  }
}

void ControlServer::Impl::apply() {
  pass_heartbeats();
  if (held()) effects_.thin_log();
  // Deliveries can break connections, which gives further effects.
  while (!held() && !effects_.empty()) {
    const JobsEffects effects = std::exchange(effects_, {});
    for (const std::string& line : effects.log) log_.info(line);
    if (effects.num_unsaid > 0)
      log_.info(
          fmt::format("{} more lines were left out while nothing could be recorded", effects.num_unsaid));
    for (const std::string& job : effects.over) stores_.over(job);
    if (effects.formed && options_.on_generation) options_.on_generation();
    for (const Delivery& delivery : effects.deliveries) carry_out(delivery);
  }
}

void ControlServer::Impl::carry_out(const Delivery& delivery) {
  std::string bytes;
  control::encode(delivery.message, bytes);
  for (const ConnectionId id : delivery.to) {
    const auto connection = agents_.find(id);
    if (!connection || connection->peer.stage == Stage::kClosing) continue;
    connection->peer.send(bytes);
    if (delivery.close) {
      const auto& refused = std::get<control::Refused>(delivery.message);
      refusals_.write(kind_of(refused.reason),
                      fmt::format("closed {}: {}", connection->peer.title(), refused.text));
      jobs_.disconnected(id, "refused", now(), effects_);
      linger(id, *connection);
    } else {
      flush(id, *connection);
    }
  }
}

void ControlServer::Impl::flush(ConnectionId id, Connection& connection) {
  ControlPeer& peer = connection.peer;
  const std::size_t parked = parked_.num_bytes(id);
  if (const std::string error = peer.flush(); !error.empty()) {
    const bool reset = peer.send_error() == ECONNRESET || peer.send_error() == EPIPE;
    broken_.emplace_back(id, error, reset ? membership::Break::kReset : membership::Break::kOther);
  } else if (peer.unsent_bytes() > options_.max_unsent_bytes) {
    give_up(id, peer, Refusal::kSlowReader,
            fmt::format("it has not read {} bytes, the limit is {} (--max-unsent-bytes)", peer.unsent_bytes(),
                        options_.max_unsent_bytes));
  } else if (agents_.count_buffered(connection, parked) &&
             agents_.buffered_bytes() + parked_.num_bytes_of_ended() > options_.max_buffered_bytes) {
    give_up(
        id, peer, Refusal::kLimit,
        fmt::format("unfinished messages and unread ones of all agents are {} bytes, the limit is {} "
                    "(--max-buffered-bytes)",
                    agents_.buffered_bytes() + parked_.num_bytes_of_ended(), options_.max_buffered_bytes));
  } else if (peer.blocked()) {
    wait_writable(id, connection);
  } else if (!peer.blocked() && peer.stage == Stage::kClosing) {
    ::shutdown(connection.descriptor.native_handle(), SHUT_WR);
  }
}

void ControlServer::Impl::give_up(ConnectionId id, const ControlPeer& peer, Refusal kind,
                                  const std::string& reason) {
  refusals_.write(kind, fmt::format("closed {}: {}", peer.name(), reason));
  parked_.forget(id);
  broken_.emplace_back(id, reason, membership::Break::kEnd);
}

void ControlServer::Impl::wait_writable(ConnectionId id, Connection& connection) {
  if (std::exchange(connection.peer.waits_writable, true)) return;
  connection.descriptor.async_wait(Descriptor::wait_write, [weak = weak_from_this(), id](const auto& failed) {
    const auto self = weak.lock();
    if (self && !failed && !self->stopped_) self->on_writable(id);
  });
}

void ControlServer::Impl::on_writable(ConnectionId id) {
  const auto connection = agents_.find(id);
  if (!connection) return;
  connection->peer.waits_writable = false;
  flush(id, *connection);
  pump(id);
  finish_turn();
}

void ControlServer::Impl::drop(ConnectionId id, const std::string& reason, membership::Break how) {
  const auto connection = agents_.find(id);
  if (!connection) return;
  log_.debug(fmt::format("closed {}: {}", connection->peer.name(), reason));
  if (connection->peer.stage == Stage::kOpen && parked_.num_bytes(id) > 0 && jobs_.has_joined(id)) {
    parked_.park_end(id, reason, how);  // what it said last comes first
  } else if (connection->peer.stage == Stage::kOpen) {
    parked_.forget(id);  // it asked for a place and has not waited for it
    jobs_.disconnected(id, reason, now(), effects_, how);
  } else if (connection->peer.stage == Stage::kProof) {
    jobs_.note_trouble(
        connection->peer.job(),
        {connection->peer.title(), "authentication", "dropped while it authenticated: " + reason, {}, false},
        now(), effects_);
  }
  if (connection->peer.stage < Stage::kOpen) ++stats_.num_refused;
  agents_.remove(id);
  stores_.disconnected(id);
  if (stalled()) effects_.forget(id);
  apply();
  if (options_.on_close) options_.on_close();
}

void ControlServer::Impl::pump(ConnectionId id) {
  if (keeps_stores() && held()) return stores_.remember(id);  // until committed()
  const auto connection = agents_.pump(id, stores_);
  if (!connection) return;
  const bool more = connection->peer.unsent_bytes() >= kLinkRoomBytes;
  flush(id, *connection);
  if (more) wait_writable(id, *connection);
}

// That a generation is over is told when it is recorded.
void ControlServer::Impl::pass_refusals() {
  for (auto& [id, refused] : stores_.take_refused()) {
    const auto connection = agents_.find(id);
    if (!connection || connection->peer.stage != Stage::kOpen) continue;
    connection->peer.say(control::Message(std::move(refused)));
    flush(id, *connection);
  }
}

void ControlServer::Impl::finish_turn() {
  apply();
  if (!held()) pass_refusals();
  if (!keeps_stores() || !held())
    for (const ConnectionId id : stores_.take_ready()) pump(id);
  while (!broken_.empty()) {
    const auto [id, error, how] = std::move(broken_.back());
    broken_.pop_back();
    drop(id, error, how);
  }
  arm();
  last_turn_ = SteadyClock::now();
}

}  // namespace muster::net
