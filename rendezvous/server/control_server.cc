// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/server/control_server.h"

#include <algorithm>
#include <cerrno>
#include <sys/socket.h>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "rendezvous/base/syscall.h"
#include "rendezvous/net/link_room.h"
#include "rendezvous/net/peer_owner.h"
#include "rendezvous/server/control_server_impl.h"

namespace muster::net {
namespace {

constexpr std::size_t kReadBytes = 65536;
// An agent that is not read hears that this process lives, and counts as alive: several times in the shortest
// heartbeat time-out that makes sense.
constexpr Millis kVouchInterval{500};
// A timer is late by so much where the process was stopped, not merely busy.
constexpr Millis kFrozen{2000};

}  // namespace

ControlServer::Impl::Impl(boost::asio::io_context& loop, const ControlServerOptions& options, const Log& log)
    : loop_(loop),
      options_(options),
      log_(log),
      refusals_(loop, log),
      jobs_(options.jobs),
      stores_(options.stores, auth::random_node_id().low | 1),
      timer_(loop),
      scratch_(kReadBytes, '\0') {}

void ControlServer::Impl::start() {
  if (!options_.state) return;
  for (const auto& [name, record] : options_.state->saved().jobs)
    jobs_.restore(name, record, now(), options_.restart_grace, effects_);
  options_.state->saved().jobs.clear();
  jobs_.record_to(&options_.state->recorder());
  if (options_.state->keeps_hosted()) {
    stores_.record_to(&options_.state->recorder());
    for (auto& [instance, saved] : std::exchange(options_.state->saved().hosted, {})) {
      const membership::Round* round = jobs_.find_round(saved.job);
      if (round != nullptr && round->phase == membership::Phase::kRunning &&
          round->world.generation == saved.generation)
        stores_.restore(instance, std::move(saved));
      else
        options_.state->recorder().hosted_ended(instance);
    }
  }
  options_.state->attach(*this);
  if (stalled()) held_up();
  finish_turn();
}

void ControlServer::Impl::accept(UniqueFd fd, std::string_view first_bytes, std::string name) {
  if (stopped_) return;
  forgive_own_stall();
  ++stats_.num_accepted;
  const AgentTable::Room room = agents_.make_room(options_.max_connections, options_.max_handshakes, name);
  if (!room.words.empty()) refusals_.write(Refusal::kLimit, room.words);
  if (room.to_drop) drop(*room.to_drop, "it took too long");
  if (room.full) {
    ++stats_.num_refused;
    return;
  }
  // Who does not speak TLS is told so in plain words.
  const bool is_tls = !first_bytes.empty() && first_bytes[0] == tls::kFirstByte;
  auto connection = std::make_shared<Connection>(loop_, std::move(fd), std::move(name), options_.limits,
                                                 is_tls ? options_.tls : std::nullopt);
  bound_kernel_queue(connection->descriptor.native_handle());
  const ConnectionId id = agents_.add(connection);
  agents_.set_deadline(id, *connection, SteadyClock::now() + options_.handshake_timeout);
  if (options_.tls && !is_tls)
    refuse_plain(id, *connection,
                 "this coordinator speaks TLS and the agent does not; give the agent a certificate to trust "
                 "(--tls-ca)");
  else if (options_.this_host_only && !peer_is_on_this_host(connection->descriptor.native_handle()))
    refuse_plain(
        id, *connection,
        "this musterd serves its own host alone, since it has neither a secret nor TLS; start it with "
        "MUSTER_SECRET or --secret-file, and the agents with the same secret, or with --unprotected");
  else
    on_bytes(id, *connection, first_bytes);
  finish_turn();
  read_on(id);
}

void ControlServer::Impl::stop() {
  if (stopped_) return;
  agents_.say_to_all(control::Refused{control::Refused::Reason::kStopping, "the coordinator is stopping"});
  stopped_ = true;
  if (options_.state) options_.state->detach(*this);
  agents_.clear();
  timer_.cancel();
  refusals_.stop();
}

void ControlServer::Impl::give_up(std::string_view job, const membership::NodeId& node,
                                  const std::string& why) {
  jobs_.give_up(job, node, why, now(), effects_);
  finish_turn();
}

ControlServerStats ControlServer::Impl::stats() const {
  ControlServerStats out = stats_;
  out.num_open = agents_.all().size();
  out.num_jobs = jobs_.num_jobs();
  out.num_stores = stores_.num_stores();
  out.num_channels = stores_.num_channels();
  out.num_buffered_bytes = agents_.buffered_bytes();
  out.refusals = refusals_.counts();
  for (const auto& [id, agent] : parked_.agents()) out.num_parked_bytes += agent.num_bytes;
  return out;
}

void ControlServer::Impl::wait_readable(ConnectionId id, const std::shared_ptr<Connection>& connection) {
  connection->descriptor.async_wait(Descriptor::wait_read, [weak = weak_from_this(), id](const auto& error) {
    const auto self = weak.lock();
    if (self && !error && !self->stopped_) self->on_readable(id);
  });
}

// Unless it is gone, or has said enough for now.
void ControlServer::Impl::read_on(ConnectionId id) {
  const auto connection = agents_.find(id);
  if (!connection) return;
  connection->unread = connection->peer.stage == Stage::kOpen && parked_.is_full(id);
  if (!connection->unread) return wait_readable(id, connection);
  if (vouch_at_ == Instant::max()) vouch_at_ = SteadyClock::now();
  arm();
}

// A timer that is due: where this process did not run, heartbeats wait in their sockets.
void ControlServer::Impl::forgive_own_stall() {
  const Instant real = SteadyClock::now();
  if (armed_ == Instant::max() || real < armed_) return;
  if (real >= armed_ + kFrozen) {
    const auto frozen = std::chrono::duration_cast<Millis>(real - armed_);
    log_.warning(fmt::format("this process did not run for {} ms; agents are not blamed", frozen.count()));
    clock_.skip(JobClock::frozen(last_turn_, armed_, real));
    armed_ = real;
  }
  agents_.hear_unread(jobs_, now(), effects_);
}

void ControlServer::Impl::on_readable(ConnectionId id) {
  forgive_own_stall();
  const auto connection = agents_.find(id);  // survives its own removal
  if (!connection) return;
  const ssize_t n = retry_eintr([&] {
    return ::recv(connection->descriptor.native_handle(), scratch_.data(), scratch_.size(), MSG_DONTWAIT);
  });
  if (n > 0) {
    on_bytes(id, *connection, std::string_view(scratch_.data(), static_cast<std::size_t>(n)));
  } else if (n == 0) {
    drop(id, "it closed the connection");
  } else if (const int error = errno; error != EAGAIN && error != EWOULDBLOCK) {
    drop(id, errno_error("recv", error).message,
         error == ECONNRESET ? membership::Break::kReset : membership::Break::kOther);
  }
  finish_turn();
  read_on(id);
}

void ControlServer::Impl::on_bytes(ConnectionId id, Connection& connection, std::string_view received) {
  ControlPeer& peer = connection.peer;
  if (peer.stage == Stage::kClosing) return;
  // Over a slow line its heartbeats may be half a megabyte of the workers' store behind.
  if (peer.stage == Stage::kOpen) jobs_.heard(id, now(), effects_);
  std::string plain;
  const auto decrypted = peer.decrypt(received, plain);
  if (!decrypted)
    return refuse(id, connection, {control::Refused::Reason::kAuthentication, decrypted.error().message});
  std::string_view bytes = *decrypted;
  const ControlPeer::House house{
      options_.secret,
      static_cast<std::uint32_t>(options_.heartbeat_interval.count()),
      options_.software,
      options_.limits,
      options_.state ? static_cast<std::uint32_t>(options_.restart_grace.count()) : 0,
      options_.job_secrets.get(),
      options_.tls && options_.tls->asks_for_certificate()};
  bool asked = false;
  while (peer.stage != Stage::kClosing) {
    ControlPeer::Step step = peer.next(bytes, house);
    if (step.need_more) break;
    if (step.message) ++stats_.num_messages;
    if (const auto* question = step.message ? std::get_if<control::Inquire>(&*step.message) : nullptr) {
      if (std::exchange(asked, true) || peer.blocked())
        return refuse(id, connection,
                      {control::Refused::Reason::kProtocol, "a question before the answer to another"});
      tell(*question, connection);
      continue;
    }
    if (step.message && has_to_wait(id, *step.message)) {
      parked_.park(id, *std::move(step.message));
      continue;
    }
    if (step.message) step.error = take_up(id, *step.message);
    if (!step.error.empty()) return refuse(id, connection, {control::Refused::Reason::kProtocol, step.error});
    if (step.refused) return refuse(id, connection, *std::move(step.refused));
    if (!step.opened) continue;
    agents_.set_deadline(id, connection, std::nullopt);
    jobs_.connected(id, peer.job(), peer.address());
  }
  flush(id, connection);
}

// While nothing can be recorded: what may be to record, and whatever comes after it from the same agent. Not
// heartbeats, nor a member that takes its place again, whose workers need their store; but its former
// connection's words come first.
bool ControlServer::Impl::has_to_wait(ConnectionId id, const control::Message& message) const {
  if (std::holds_alternative<control::Heartbeat>(message)) return false;
  if (parked_.num_bytes(id) > 0) return true;
  if (!stalled()) return false;
  // What changes the workers' stores is recorded too, where they are kept.
  if (control::is_about_store(message)) return keeps_stores();
  const auto* join = std::get_if<control::Join>(&message);
  if (join == nullptr) return true;
  const auto former = jobs_.place_taken_back(id, *join);
  return !former || parked_.num_bytes(*former) > 0;
}

// Empty, or how it breaks the protocol.
std::string ControlServer::Impl::take_up(ConnectionId id, const control::Message& message) {
  std::string error;
  if (const auto* join = std::get_if<control::Join>(&message)) {
    // The jobs' clock left some time out, perhaps since the agent began: by that it is at least so old.
    control::Join told = *join;
    told.age = EndedJobs::bounded(told.age) - std::chrono::ceil<Millis>(clock_.skipped());
    jobs_.receive(id, told, now(), effects_);
  } else if (!control::is_about_store(message))
    jobs_.receive(id, message, now(), effects_);
  else if (error = stores_.receive(
               id, std::holds_alternative<control::StoreAttach>(message) ? jobs_.member(id) : std::nullopt,
               message);
           error.empty()) {
    const auto lost = stores_.take_lost();
    if (!lost) return error;
    jobs_.store_lost(*lost, now(), effects_);
  }
  apply();
  return error;
}

void ControlServer::Impl::held_up() {
  clock_.stop(SteadyClock::now());
  arm();
}

void ControlServer::Impl::committed() {
  clock_.go_on(SteadyClock::now());
  forgive_own_stall();  // it may have taken long to write
  finish_turn();
}

// What was parked while nothing could be recorded; also of those that have gone meanwhile.
void ControlServer::Impl::go_on() {
  std::vector<ConnectionId> waited;
  for (const auto& [id, agent] : parked_.agents()) waited.push_back(id);
  while (!stopped_ && !parked_.empty() && !stalled()) {
    ParkedMessages::Entry entry = parked_.take();
    const auto connection = agents_.find(entry.from);
    if (!entry.message) {
      jobs_.disconnected(entry.from, entry.end, now(), effects_, entry.how);
      apply();
    } else if (connection) {
      if (std::string error = take_up(entry.from, *entry.message); !error.empty())
        refuse(entry.from, *connection, {control::Refused::Reason::kProtocol, std::move(error)});
    } else if (!control::is_about_store(*entry.message)) {
      (void)take_up(entry.from, *entry.message);
    }
  }
  for (const ConnectionId id : waited)
    if (const auto connection = agents_.find(id)) {
      flush(id, *connection);  // counts it anew
      if (std::exchange(connection->unread, false)) read_on(id);
    }
  finish_turn();
}

// Their heartbeats wait in their sockets: each is taken for heard, and answered.
void ControlServer::Impl::vouch_for_unread() {
  vouch_at_ = Instant::max();
  for (const auto& [id, agent] : parked_.agents()) {
    const auto connection = agents_.find(id);
    if (!connection || !connection->unread) continue;
    jobs_.receive(id, control::Heartbeat{}, now(), effects_);
    vouch_at_ = SteadyClock::now() + std::min(kVouchInterval, options_.heartbeat_interval);
  }
}

void ControlServer::Impl::arm() {
  Instant next = std::min(clock_.real(jobs_.next_deadline()), vouch_at_);
  if (const auto& set = agents_.deadlines(); !set.empty()) next = std::min(next, set.begin()->first);
  if (next == armed_) return;
  armed_ = next;
  timer_.cancel();
  if (next == Instant::max()) return;
  timer_.expires_at(next);
  timer_.async_wait([weak = weak_from_this()](const boost::system::error_code& error) {
    const auto self = weak.lock();
    if (self && !error && !self->stopped_) self->on_timer();
  });
}

void ControlServer::Impl::on_timer() {
  forgive_own_stall();
  armed_ = Instant::max();
  const Instant real = SteadyClock::now();
  while (!agents_.deadlines().empty() && agents_.deadlines().begin()->first <= real) {
    const ConnectionId id = agents_.deadlines().begin()->second;
    const auto connection = agents_.find(id);
    if (connection->peer.stage != Stage::kClosing)
      refusals_.write(Refusal::kAuthentication,
                      fmt::format("closed {}: it proved nothing within {} ms (--handshake-timeout)",
                                  connection->peer.name(), options_.handshake_timeout.count()));
    drop(id, "it took too long");
  }
  if (vouch_at_ != Instant::max()) vouch_for_unread();
  jobs_.advance(now(), effects_);
  finish_turn();
}

ControlServer::ControlServer(boost::asio::io_context& loop, const ControlServerOptions& options,
                             const Log& log)
    : impl_(std::make_shared<Impl>(loop, options, log)) {
  impl_->start();
}

ControlServer::~ControlServer() {
  stop();
}

void ControlServer::accept(UniqueFd fd, std::string_view first_bytes, std::string peer) {
  impl_->accept(std::move(fd), first_bytes, std::move(peer));
}
void ControlServer::give_up(std::string_view job, const membership::NodeId& node, const std::string& why) {
  impl_->give_up(job, node, why);
}
void ControlServer::stop() {
  impl_->stop();
}
ControlServerStats ControlServer::stats() const {
  return impl_->stats();
}
const Jobs& ControlServer::jobs() const {
  return impl_->jobs();
}

}  // namespace muster::net
