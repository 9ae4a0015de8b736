// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/net/control_server.h"

#include <algorithm>
#include <cerrno>
#include <sys/socket.h>
#include <utility>
#include <vector>

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <fmt/format.h>

#include "rendezvous/base/syscall.h"
#include "rendezvous/net/agent_table.h"
#include "rendezvous/net/control_peer.h"
#include "rendezvous/net/link_room.h"
#include "rendezvous/net/refusal_log.h"
#include "rendezvous/net/state_log.h"

namespace muster::net {
namespace {

using Connection = AgentConnection;
using Descriptor = boost::asio::posix::stream_descriptor;
using Stage = ControlPeer::Stage;

constexpr std::size_t kReadBytes = 65536;
constexpr Millis kLingerTime{2000};  // for who is refused to read why

}  // namespace

class ControlServer::Impl final : public StateKeeper, public std::enable_shared_from_this<Impl> {
 public:
  Impl(boost::asio::io_context& loop, const ControlServerOptions& options, const Log& log)
      : loop_(loop),
        options_(options),
        log_(log),
        refusals_(loop, log),
        jobs_(options.jobs),
        stores_(options.stores, auth::random_node_id().low | 1),
        timer_(loop),
        scratch_(kReadBytes, '\0') {}

  void start() {
    if (!options_.state) return;
    const Instant now = SteadyClock::now();
    for (const auto& [name, record] : options_.state->saved().jobs)
      jobs_.restore(name, record, now, options_.restart_grace, effects_);
    options_.state->saved().jobs.clear();
    jobs_.record_to(&options_.state->recorder());
    options_.state->attach(*this);
    finish_turn();
  }

  void describe(journal::Recorder& to) const override { jobs_.describe(to, SteadyClock::now()); }
  void committed() override { finish_turn(); }

  void accept(UniqueFd fd, std::string_view first_bytes, std::string name) {
    if (stopped_) return;
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
      refuse_plain(id, *connection);
    else
      on_bytes(id, *connection, first_bytes);
    finish_turn();
    if (agents_.find(id)) wait_readable(id, connection);
  }

  void stop() {
    if (stopped_) return;
    agents_.say_to_all(control::Refused{control::Refused::Reason::kStopping, "the coordinator is stopping"});
    stopped_ = true;
    if (options_.state) options_.state->detach(*this);
    agents_.clear();
    timer_.cancel();
    refusals_.stop();
  }

  void give_up(std::string_view job, const membership::NodeId& node, const std::string& why) {
    jobs_.give_up(job, node, why, SteadyClock::now(), effects_);
    finish_turn();
  }

  [[nodiscard]] ControlServerStats stats() const {
    ControlServerStats out = stats_;
    out.num_open = agents_.all().size();
    out.num_jobs = jobs_.num_jobs();
    out.num_stores = stores_.num_stores();
    out.num_channels = stores_.num_channels();
    return out;
  }
  [[nodiscard]] const Jobs& jobs() const { return jobs_; }

 private:
  void wait_readable(ConnectionId id, const std::shared_ptr<Connection>& connection) {
    connection->descriptor.async_wait(Descriptor::wait_read,
                                      [weak = weak_from_this(), id](const auto& error) {
                                        const auto self = weak.lock();
                                        if (self && !error && !self->stopped_) self->on_readable(id);
                                      });
  }

  // A timer that is due: where this process did not run, heartbeats wait in their sockets.
  void forgive_own_stall() {
    const Instant now = SteadyClock::now();
    if (armed_ == Instant::max() || now < armed_) return;
    agents_.hear_unread(jobs_, now);
    if (now < armed_ + std::chrono::seconds(2)) return;
    const auto stall = std::chrono::duration_cast<Millis>(now - armed_);
    log_.warning(fmt::format("this process did not run for {} ms; agents are not blamed", stall.count()));
    jobs_.forgive(stall, now);
    armed_ = now;
  }

  void on_readable(ConnectionId id) {
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
    if (agents_.find(id)) wait_readable(id, connection);
  }

  void refuse_plain(ConnectionId id, Connection& connection) {
    connection.peer.say(control::Preamble{});
    refuse(id, connection,
           {control::Refused::Reason::kAuthentication,
            "this coordinator speaks TLS and the agent does not; give the agent a certificate to trust"});
  }

  void on_bytes(ConnectionId id, Connection& connection, std::string_view received) {
    ControlPeer& peer = connection.peer;
    if (peer.stage == Stage::kClosing) return;
    std::string plain;
    const auto decrypted = peer.decrypt(received, plain);
    if (!decrypted)
      return refuse(id, connection, {control::Refused::Reason::kAuthentication, decrypted.error().message});
    std::string_view bytes = *decrypted;
    const ControlPeer::House house{
        options_.secret, static_cast<std::uint32_t>(options_.heartbeat_interval.count()), options_.software,
        options_.limits, options_.state ? static_cast<std::uint32_t>(options_.restart_grace.count()) : 0};
    while (peer.stage != Stage::kClosing) {
      ControlPeer::Step step = peer.next(bytes, house);
      if (step.need_more) break;
      if (step.message) ++stats_.num_messages;
      const bool about_store = step.message && control::is_about_store(*step.message);
      if (about_store) step.error = stores_.receive(id, jobs_.member(id), *step.message);
      if (!step.error.empty())
        return refuse(id, connection, {control::Refused::Reason::kProtocol, step.error});
      if (step.refused) return refuse(id, connection, *std::move(step.refused));
      if (step.opened) {
        agents_.set_deadline(id, connection, std::nullopt);
        jobs_.connected(id, peer.job(), peer.address());
      }
      if (!step.message || about_store) continue;
      jobs_.receive(id, *step.message, SteadyClock::now(), effects_);
      apply();
    }
    flush(id, connection);
  }

  void refuse(ConnectionId id, Connection& connection, control::Refused refused) {
    refusals_.write(kind_of(refused.reason),
                    fmt::format("closed {}: {}", connection.peer.name(), refused.text));
    if (connection.peer.stage != Stage::kOpen) {
      ++stats_.num_refused;
      const char* phase =
          kind_of(refused.reason) == Refusal::kAuthentication ? "authentication" : "handshake";
      if (!connection.peer.job().empty())
        jobs_.note_trouble(connection.peer.job(), {connection.peer.title(), phase, refused.text, {}},
                           SteadyClock::now(), effects_);
    } else {
      jobs_.disconnected(id, refused.text, SteadyClock::now(), effects_);
    }
    connection.peer.say(control::Message(std::move(refused)));
    linger(id, connection);
    apply();
  }

  // The rest of the output goes out, then the peer closes, or we do when it has had its time.
  void linger(ConnectionId id, Connection& connection) {
    connection.peer.stage = Stage::kClosing;
    agents_.set_deadline(id, connection, SteadyClock::now() + kLingerTime);
    flush(id, connection);
  }

  // What is not on the disk is told to nobody.
  [[nodiscard]] bool held() const { return options_.state && options_.state->dirty(); }

  // An agent's heartbeat is answered nevertheless: a full disk is no reason to be taken for dead.
  void pass_heartbeats() {
    for (const ConnectionId id : effects_.take_heartbeats()) {
      const auto connection = agents_.find(id);
      if (!connection || connection->peer.stage == Stage::kClosing) continue;
      connection->peer.say(control::Message(control::Heartbeat{}));
      flush(id, *connection);
    }
  }

  void apply() {
    if (held()) pass_heartbeats();
    // Deliveries can break connections, which gives further effects.
    while (!held() && (!effects_.deliveries.empty() || !effects_.log.empty())) {
      const JobsEffects effects = std::exchange(effects_, {});
      for (const std::string& line : effects.log) log_.info(line);
      for (const std::string& job : effects.over) stores_.over(job);
      for (const Delivery& delivery : effects.deliveries) {
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
            jobs_.disconnected(id, "refused", SteadyClock::now(), effects_);
            linger(id, *connection);
          } else {
            flush(id, *connection);
          }
        }
      }
    }
  }

  void flush(ConnectionId id, Connection& connection) {
    ControlPeer& peer = connection.peer;
    if (const std::string error = peer.flush(); !error.empty()) {
      broken_.push_back({id, error, membership::Break::kReset});
    } else if (peer.unsent_bytes() > options_.max_unsent_bytes) {
      give_up(id, peer, Refusal::kSlowReader,
              fmt::format("it has not read {} bytes, the limit is {} (--max-unsent-bytes)",
                          peer.unsent_bytes(), options_.max_unsent_bytes));
    } else if (agents_.count_buffered(connection) && agents_.buffered_bytes() > options_.max_buffered_bytes) {
      give_up(id, peer, Refusal::kLimit,
              fmt::format("unfinished messages and unread ones of all agents are {} bytes, the limit is {} "
                          "(--max-buffered-bytes)",
                          agents_.buffered_bytes(), options_.max_buffered_bytes));
    } else if (peer.blocked() && !peer.waits_writable) {
      peer.waits_writable = true;
      connection.descriptor.async_wait(Descriptor::wait_write,
                                       [weak = weak_from_this(), id](const auto& failed) {
                                         const auto self = weak.lock();
                                         if (self && !failed && !self->stopped_) self->on_writable(id);
                                       });
    } else if (!peer.blocked() && peer.stage == Stage::kClosing) {
      ::shutdown(connection.descriptor.native_handle(), SHUT_WR);
    }
  }

  void give_up(ConnectionId id, const ControlPeer& peer, Refusal kind, const std::string& reason) {
    refusals_.write(kind, fmt::format("closed {}: {}", peer.name(), reason));
    broken_.push_back({id, reason, membership::Break::kEnd});
  }

  void on_writable(ConnectionId id) {
    const auto connection = agents_.find(id);
    if (!connection) return;
    connection->peer.waits_writable = false;
    flush(id, *connection);
    pump(id);
    finish_turn();
  }

  void drop(ConnectionId id, const std::string& reason, membership::Break how = membership::Break::kEnd) {
    const auto connection = agents_.find(id);
    if (!connection) return;
    log_.debug(fmt::format("closed {}: {}", connection->peer.name(), reason));
    if (connection->peer.stage == Stage::kOpen) {
      jobs_.disconnected(id, reason, SteadyClock::now(), effects_, how);
    } else if (connection->peer.stage == Stage::kProof) {
      jobs_.note_trouble(
          connection->peer.job(),
          {connection->peer.title(), "authentication", "dropped while it authenticated: " + reason, {}},
          SteadyClock::now(), effects_);
    }
    if (connection->peer.stage < Stage::kOpen) ++stats_.num_refused;
    agents_.remove(id);
    stores_.disconnected(id);
    apply();
    if (options_.on_close) options_.on_close();
  }

  void pump(ConnectionId id) {
    if (const auto connection = agents_.pump(id, stores_)) flush(id, *connection);
  }

  void finish_turn() {
    apply();
    for (const ConnectionId id : stores_.take_ready()) pump(id);
    while (!broken_.empty()) {
      const auto [id, error, how] = std::move(broken_.back());
      broken_.pop_back();
      drop(id, error, how);
    }
    arm();
  }

  void arm() {
    Instant next = jobs_.next_deadline();
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

  void on_timer() {
    forgive_own_stall();
    armed_ = Instant::max();
    const Instant now = SteadyClock::now();
    while (!agents_.deadlines().empty() && agents_.deadlines().begin()->first <= now) {
      const ConnectionId id = agents_.deadlines().begin()->second;
      const auto connection = agents_.find(id);
      if (connection->peer.stage != Stage::kClosing)
        refusals_.write(Refusal::kAuthentication,
                        fmt::format("closed {}: it proved nothing within {} ms", connection->peer.name(),
                                    options_.handshake_timeout.count()));
      drop(id, "it took too long");
    }
    jobs_.advance(now, effects_);
    finish_turn();
  }

  boost::asio::io_context& loop_;
  ControlServerOptions options_;
  Log log_;
  RefusalLog refusals_;
  Jobs jobs_;
  HostedStores stores_;
  boost::asio::steady_timer timer_;
  Instant armed_ = Instant::max();
  AgentTable agents_;
  std::vector<std::tuple<ConnectionId, std::string, membership::Break>> broken_;
  JobsEffects effects_;
  std::string scratch_;
  ControlServerStats stats_;
  bool stopped_ = false;
};

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
