// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/server/control_server.h"

#include <algorithm>
#include <cerrno>
#include <deque>
#include <set>
#include <sys/socket.h>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/post.hpp>
#include <fmt/format.h>

#include "rendezvous/base/lifetime.h"
#include "rendezvous/base/syscall.h"
#include "rendezvous/base/text.h"
#include "rendezvous/coordinator/job_clock.h"
#include "rendezvous/net/helper_thread.h"
#include "rendezvous/net/peer_owner.h"
#include "rendezvous/net/send_limit.h"
#include "rendezvous/protocol/clock_offset.h"
#include "rendezvous/wal/state_log.h"

namespace muster::net {
namespace {

using control::Refused;
using Descriptor = boost::asio::posix::stream_descriptor;

constexpr std::size_t kReadBytes = 65536;
// What waits for the thread of TLS handshakes is in no account.
constexpr std::size_t kHandshakeReadBytes = 4096;
// While agents are not read each gets a heartbeat so often: several times in the shortest heartbeat time-out
// that makes sense.
constexpr Millis kStallHeartbeat{500};
// A timer is late by so much where the process was stopped, not merely busy.
constexpr Millis kFrozen{2000};
constexpr Millis kLingerTime{2000};  // for who is refused to read why
// Between two looks at a connection whose time is up while its handshake waits for this process.
constexpr Millis kHandshakeCheck{1000};

Rejection kind_of(Refused::Reason reason) {
  if (reason == Refused::Reason::kAuthentication) return Rejection::kAuthentication;
  return reason == Refused::Reason::kLimit ? Rejection::kLimit : Rejection::kProtocol;
}

// One agent's connection: its socket, decoder, handshake and the bytes on their way out, under TLS where the
// coordinator has it. Non-blocking: the server says when to read and write.
class AgentConnection {
 public:
  enum class Stage {
    kPreamble,
    kStart,
    kProof,
    kOpen,     ///< messages are for Jobs
    kClosing,  ///< what it still sends is not read; it closes, or is closed
  };

  /// `tls`: it has to speak TLS.
  AgentConnection(boost::asio::io_context& loop, UniqueFd fd, std::string name,
                  const std::optional<tls::Context>& tls)
      : descriptor(loop, fd.release()),
        name_(std::move(name)),
        decoder_(control::kMaxHandshakeFrameBytes),
        handshake_(auth::random_nonce()) {
    if (tls) tls_ = std::make_shared<tls::Stream>(*tls);
  }

  /// What the peer sent, as it meant it: `plain` may be used for it, and holds what is returned. Fails where
  /// TLS does.
  [[nodiscard]] Result<std::string_view> decrypt(std::string_view bytes, std::string& plain) {
    if (!tls_) return bytes;
    plain.clear();
    MUSTER_OK(tls_->receive(bytes, plain, out_));
    return std::string_view(plain);
  }

  /// What next() finds: a message for Jobs, while kOpen, or what the peer's messages before that led to.
  struct NeedMore {};  ///< all input is used
  struct Answered {};
  struct Opened {};  ///< it has proven what it has to
  using Step = std::variant<NeedMore, Answered, Opened, control::Message, Refused>;
  [[nodiscard]] Step next(std::string_view& input, const ControlServerOptions& options) {
    control::Message message;
    switch (decoder_.next(input, message)) {
      case control::Decoder::Step::kNeedMore:
        return NeedMore{};
      case control::Decoder::Step::kError:
        return Refused{Refused::Reason::kProtocol, decoder_.error()};
      case control::Decoder::Step::kPreamble: {
        const control::Preamble& theirs = decoder_.preamble();
        const std::uint8_t version = control::choose_version(theirs);
        const control::Preamble mine{version, version};
        send(mine);
        handshake_.preamble(theirs, mine, tls_ ? tls_->channel_binding() : std::string());
        stage = Stage::kStart;
        if (version != 0) return Answered{};
        return Refused{Refused::Reason::kVersion,
                       fmt::format("the agent speaks versions {} to {} of the control protocol, the "
                                   "coordinator {}; use the same release on all nodes",
                                   theirs.lowest, theirs.highest, control::kProtocolVersion)};
      }
      case control::Decoder::Step::kMessage:
        break;
    }

    if (stage == Stage::kOpen) {
      if (const auto* clock = std::get_if<control::Clock>(&message)) {
        const std::int64_t received = wall_nanoseconds();
        send(control::Clock{clock->asked, received, wall_nanoseconds()});
        return Answered{};
      }
      if (job_.empty() && !std::holds_alternative<control::Query>(message))
        return Refused{Refused::Reason::kSettings, control::defect_of_job(job_)};
      return Step(std::move(message));
    }
    if (const auto* start = std::get_if<control::Start>(&message); start != nullptr && stage == Stage::kStart)
      return take_start(*start, options);
    if (const auto* proof = std::get_if<control::Proof>(&message);
        proof != nullptr && stage == Stage::kProof) {
      const auto mac = handshake_.proof(*proof);
      if (!mac)
        return Refused{
            Refused::Reason::kAuthentication,
            mac.error().message + (own_secret_ ? fmt::format(" (job {} has one of its own)", job_) : "")};
      const Millis reconnect = options.state ? options.restart_grace : Millis(0);
      send(control::Welcome{*mac, static_cast<std::uint32_t>(options.heartbeat_interval.count()),
                            options.software, static_cast<std::uint32_t>(reconnect.count())});
      decoder_.set_max_frame_bytes(control::kMaxFrameBytes);
      stage = Stage::kOpen;
      return Opened{};
    }
    return Refused{Refused::Reason::kProtocol,
                   fmt::format("{} where it is not expected", control::name_of(message))};
  }

  /// What it sends belongs to a TLS handshake, which is for another thread: lent until take_back().
  [[nodiscard]] bool is_in_tls_handshake() const { return tls_ && !lent_ && !tls_->established(); }
  [[nodiscard]] std::shared_ptr<tls::Stream> lend_tls() {
    lent_ = true;
    ++num_lent_;
    return tls_;
  }
  /// `out`: what that stream has to send.
  void take_back_tls(std::string_view out) {
    lent_ = false;
    out_ += out;
  }
  /// It is to be asked and told nothing now.
  [[nodiscard]] bool tls_is_lent() const { return lent_; }
  [[nodiscard]] int num_lent() const { return num_lent_; }

  void send_bytes(std::string_view bytes) {
    if (lent_) return;  // nobody is known yet who could be told
    if (!tls_)
      out_ += bytes;
    else
      (void)tls_->send(bytes, out_);  // where TLS has failed nothing is sent, and the next decrypt() says why
  }
  /// A message, or the preamble.
  template <class T>
  void send(const T& what) {
    std::string bytes;
    control::encode(what, bytes);
    send_bytes(bytes);
  }
  /// Sends what the socket takes. 0, or the number of the error by which it is broken.
  [[nodiscard]] int flush() {
    while (sent_ < out_.size()) {
      const ssize_t n = retry_eintr([&] {
        return ::send(fd(), out_.data() + sent_, out_.size() - sent_, MSG_NOSIGNAL | MSG_DONTWAIT);
      });
      if (n > 0) {
        sent_ += static_cast<std::size_t>(n);
        continue;
      }
      return errno == EAGAIN || errno == EWOULDBLOCK ? 0 : errno;
    }
    constexpr std::size_t kKeptBytes = 32768;
    if (out_.capacity() > kKeptBytes) out_ = std::string();
    out_.clear();
    sent_ = 0;
    return 0;
  }
  [[nodiscard]] bool blocked() const { return sent_ < out_.size(); }
  [[nodiscard]] std::size_t unsent_bytes() const { return out_.size() - sent_; }
  /// What is kept for the peer until it sends or reads more.
  [[nodiscard]] std::size_t buffered_bytes() const {
    return out_.size() + decoder_.num_pending_bytes() + unread.size();
  }

  Descriptor descriptor;
  ConnectionId id = 0;  ///< by which AgentTable knows it
  Stage stage = Stage::kPreamble;
  bool waits_writable = false;
  std::optional<Instant> deadline;
  std::size_t counted_bytes = 0;  ///< of buffered_bytes(), as AgentTable knows it
  std::string unread;             ///< decrypted bytes that were left alone while nothing can be recorded
  bool paused = false;            ///< no more is read until then
  /// Parts of reports on their way to it: in the socket's time, so that however many there are it is not
  /// taken for one that does not read.
  std::deque<std::string> reports;
  std::size_t report_bytes = 0;

  [[nodiscard]] int fd() { return descriptor.native_handle(); }

  [[nodiscard]] const std::string& name() const { return name_; }
  /// Its address without the port.
  [[nodiscard]] std::string address() const {
    const std::string_view host = std::string_view(name_).substr(0, name_.rfind(':'));
    return std::string(host.starts_with('[') ? host.substr(1, host.size() - 2) : host);
  }
  /// Empty: it takes part in none, and may only look in.
  [[nodiscard]] const std::string& job() const { return job_; }
  /// What it has proven counts for its job and no other.
  [[nodiscard]] bool proved_own_secret() const { return own_secret_; }
  /// "n3 (10.0.0.4)" once it has said so, for people.
  [[nodiscard]] std::string title() const {
    return host_.empty() ? address() : fmt::format("{} ({})", host_, address());
  }

 private:
  // It names its job in the clear, and proves that it knows the secret of that job: the proof covers the
  // name.
  [[nodiscard]] Step take_start(const control::Start& start, const ControlServerOptions& options) {
    host_ = printable(start.host, 64);
    if (std::string text = control::defect_of_job(start.job); !text.empty() && !start.job.empty())
      return Refused{Refused::Reason::kSettings, std::move(text)};
    std::optional<auth::Secret> secret = options.secret;
    if (options.job_secrets) {
      const auth::Secret* own = options.job_secrets->find(start.job);
      own_secret_ = own != nullptr;
      if (own_secret_) secret = *own;
      if (!secret && !(options.tls && options.tls->asks_for_certificate()))
        return Refused{Refused::Reason::kAuthentication,
                       start.job.empty()
                           ? "each job has a secret of its own here: name the job"
                           : fmt::format("job {} has no secret here, as every job needs one (musterd "
                                         "--job-secret, --secrets-dir, or --secret-file for all others)",
                                         start.job)};
    }
    job_ = start.job;
    send(handshake_.start(start, std::move(secret)));
    stage = Stage::kProof;
    return Answered{};
  }

  std::string name_;
  std::shared_ptr<tls::Stream> tls_;  // nullptr: it speaks none
  int num_lent_ = 0;
  bool lent_ = false;
  control::Decoder decoder_;
  auth::ServerHandshake handshake_;
  std::string job_;
  bool own_secret_ = false;  // the job's, not the one of all jobs
  std::string host_;
  std::string out_;
  std::size_t sent_ = 0;
};

using Stage = AgentConnection::Stage;

// The connections of a coordinator by ConnectionId, with their deadlines and with what they buffer.
class AgentTable {
 public:
  using Map = std::unordered_map<ConnectionId, std::shared_ptr<AgentConnection>>;

  ConnectionId add(std::shared_ptr<AgentConnection> connection) {
    connection->id = next_id_;
    agents_.emplace(next_id_, std::move(connection));
    return next_id_++;
  }
  /// nullptr: it is gone.
  [[nodiscard]] std::shared_ptr<AgentConnection> find(ConnectionId id) const {
    const auto found = agents_.find(id);
    return found == agents_.end() ? nullptr : found->second;
  }
  void remove(ConnectionId id) {
    const auto found = agents_.find(id);
    set_deadline(*found->second, std::nullopt);
    buffered_bytes_ -= found->second->counted_bytes;
    report_bytes_ -= found->second->report_bytes;
    agents_.erase(found);
  }
  [[nodiscard]] const Map& all() const { return agents_; }

  void set_deadline(AgentConnection& connection, std::optional<Instant> deadline) {
    if (connection.deadline) deadlines_.erase({*connection.deadline, connection.id});
    connection.deadline = deadline;
    if (deadline) deadlines_.emplace(*deadline, connection.id);
  }
  /// Earliest first: of those that have something to prove or are being closed.
  [[nodiscard]] const std::set<std::pair<Instant, ConnectionId>>& deadlines() const { return deadlines_; }

  /// Counts what this agent buffers now; true if that became more.
  bool count_buffered(AgentConnection& connection) {
    const std::size_t before = std::exchange(connection.counted_bytes, connection.buffered_bytes());
    buffered_bytes_ += connection.counted_bytes - before;  // modulo 2^64: it may be less
    return connection.counted_bytes > before;
  }
  /// Of all agents.
  [[nodiscard]] std::size_t buffered_bytes() const { return buffered_bytes_; }

  /// A part of a report for this agent, to be sent in the socket's time. Beyond kMaxReportBytes an empty part
  /// goes instead: who gathers the report need not wait, and the report says less.
  void queue_report(AgentConnection& connection, const control::Message& part) {
    std::string bytes;
    control::encode(part, bytes);
    if (connection.report_bytes + bytes.size() > kMaxReportBytes ||
        report_bytes_ + bytes.size() > kMaxAllReportBytes) {
      control::Message empty = part;
      if (auto* report = std::get_if<control::Report>(&empty)) report->payload.clear();
      if (auto* hang = std::get_if<control::Hang>(&empty)) hang->payload.clear();
      if (auto* status = std::get_if<control::Status>(&empty)) status->payload.clear();
      bytes.clear();
      control::encode(empty, bytes);
    }
    connection.report_bytes += bytes.size();
    report_bytes_ += bytes.size();
    connection.reports.push_back(std::move(bytes));
  }
  /// Empty: there is none.
  std::string take_report(AgentConnection& connection) {
    if (connection.reports.empty()) return {};
    std::string bytes = std::move(connection.reports.front());
    connection.reports.pop_front();
    connection.report_bytes -= bytes.size();
    report_bytes_ -= bytes.size();
    return bytes;
  }

 private:
  static constexpr std::size_t kMaxReportBytes = std::size_t{64} << 20;  // of an agent
  static constexpr std::size_t kMaxAllReportBytes = 4 * kMaxReportBytes;

  Map agents_;
  std::set<std::pair<Instant, ConnectionId>> deadlines_;
  std::size_t buffered_bytes_ = 0;
  std::size_t report_bytes_ = 0;  // of all agents
  ConnectionId next_id_ = 1;
};

class AgentServer final : public ControlServer, public StateKeeper {
 public:
  AgentServer(boost::asio::io_context& loop, const ControlServerOptions& options, const Log& log)
      : loop_(loop),
        options_(options),
        log_(log),
        rejections_(loop, log),
        jobs_(options.jobs),
        stores_(options.stores, auth::random_node_id().low | 1),
        timer_(loop),
        tls_handshakes_(loop),
        scratch_(kReadBytes, '\0') {
    if (options_.state) recover(*options_.state);
  }
  ~AgentServer() override { stop(); }

  void accept(UniqueFd fd, std::string_view first_bytes, std::string name) override {
    if (stopped_) return;
    compensate_pause();
    ++stats_.num_accepted;
    if (!make_room(name)) return;
    // Who does not speak TLS is told so in plain text.
    const bool is_tls = !first_bytes.empty() && first_bytes[0] == tls::kFirstByte;
    auto connection = std::make_shared<AgentConnection>(loop_, std::move(fd), std::move(name),
                                                        is_tls ? options_.tls : std::nullopt);
    bound_kernel_queue(connection->fd());
    const ConnectionId id = agents_.add(connection);
    agents_.set_deadline(*connection, SteadyClock::now() + options_.handshake_timeout);
    if (options_.tls && !is_tls)
      refuse_plain(
          *connection,
          "this coordinator speaks TLS and the agent does not; give the agent a certificate to trust "
          "(--tls-ca)");
    else if (options_.this_host_only && !peer_is_on_this_host(connection->fd()))
      refuse_plain(
          *connection,
          "this musterd serves its own host alone, since it has neither a secret nor TLS; start it with "
          "MUSTER_SECRET or --secret-file, and the agents with the same secret, or with --unprotected");
    else
      on_bytes(*connection, first_bytes);
    finish_turn();
    read_on(id);
  }

  void set_credentials(const ControlServerOptions& from) override {
    options_.secret = from.secret;
    options_.job_secrets = from.job_secrets;
    options_.tls = from.tls;
  }

  void stop() override {
    if (std::exchange(stopped_, true)) return;
    const control::Message stopping = Refused{Refused::Reason::kStopping, "the coordinator is stopping"};
    for (const auto& [id, connection] : agents_.all()) {
      if (connection->stage != Stage::kOpen) continue;
      connection->send(stopping);
      (void)connection->flush();
    }
    if (options_.state) options_.state->detach(*this);
    agents_ = {};
    timer_.cancel();
    rejections_.stop();
  }

  void evict_node(std::string_view job, const membership::NodeId& node, const std::string& why) override {
    if (stalled()) return evictions_.emplace_back(job, node, why), void();
    jobs_.evict_node(job, node, why, now());
    finish_turn();
  }

  [[nodiscard]] ControlServerStats stats() const override {
    ControlServerStats out = stats_;
    out.num_open = agents_.all().size();
    out.num_jobs = jobs_.num_jobs();
    out.num_stores = stores_.num_stores();
    out.num_connections = stores_.num_connections();
    out.num_buffered_bytes = agents_.buffered_bytes();
    out.rejections = rejections_.counts();
    return out;
  }
  [[nodiscard]] const Jobs& jobs() const override { return jobs_; }

  void describe(const journal::LogSink& to) const override {
    jobs_.describe(to, now());
    stores_.describe(to);
  }
  void on_stall() override {
    clock_.pause(SteadyClock::now());
    heartbeat_at_ = SteadyClock::now() + std::min(kStallHeartbeat, options_.heartbeat_interval);
    arm();
  }
  void on_committed() override { finish_turn(); }
  void on_resume() override {
    clock_.resume(SteadyClock::now());
    heartbeat_at_ = Instant::max();
    compensate_pause();  // it may have taken long to write
    for (const auto& [job, node, why] : std::exchange(evictions_, {}))
      jobs_.evict_node(job, node, why, now());
    finish_turn();
    for (const ConnectionId id : std::exchange(paused_, {})) {
      const auto connection = agents_.find(id);
      if (!connection) continue;
      connection->paused = false;
      take_unread(*connection);
      read_on(id);
    }
    finish_turn();
  }

 private:
  // As the jobs have it.
  [[nodiscard]] Instant now() const { return clock_.now(SteadyClock::now()); }
  [[nodiscard]] bool stalled() const { return options_.state && options_.state->stalled(); }
  // What is not kept is told to nobody.
  [[nodiscard]] bool held() const { return options_.state && options_.state->dirty(); }
  // To give an agent what its workers asked for changes what is kept of them.
  [[nodiscard]] bool stores_wait() const {
    return options_.state && options_.state->keeps_hosted() && (held() || stalled());
  }

  void recover(StateLog& state) {
    for (const auto& [name, record] : std::exchange(state.recovered().jobs, {}))
      jobs_.restore(name, record, now(), options_.restart_grace);
    jobs_.record_to(state.sink());
    if (state.keeps_hosted()) {
      stores_.record_to(state.sink());
      for (auto& [instance, saved] : std::exchange(state.recovered().hosted, {})) {
        const membership::Round* round = jobs_.find_round(saved.job);
        if (round != nullptr && round->phase == membership::Phase::kRunning &&
            round->world.generation == saved.generation)
          stores_.restore(instance, std::move(saved));
        else
          state.record(HostedChange(HostedEnded{instance}));
      }
    }
    state.attach(*this);
    if (stalled()) on_stall();
    finish_turn();
  }

  // Those that have proven something are not kept out by those that have not.
  bool make_room(const std::string& name) {
    const bool full = agents_.all().size() >= options_.max_connections;
    const auto& unproven = agents_.deadlines();
    if (!unproven.empty() && (full || unproven.size() >= options_.max_handshakes)) {
      const ConnectionId oldest = unproven.begin()->second;
      rejections_.write(
          Rejection::kLimit,
          fmt::format("closed {}: the oldest of {} that have proven nothing yet, the limit{}",
                      agents_.find(oldest)->name(), unproven.size(), full ? " (--max-agents)" : ""));
      drop(oldest, "it took too long");
    } else if (full) {
      rejections_.write(Rejection::kLimit,
                        fmt::format("closed {}: {} agents are connected, the limit (--max-agents)", name,
                                    agents_.all().size()));
      return false;
    }
    return true;
  }

  // Input.

  // Unless it is gone, left alone until on_resume(), or in a TLS handshake.
  void read_on(ConnectionId id) {
    const auto connection = agents_.find(id);
    if (!connection || connection->paused || connection->tls_is_lent()) return;
    lifetime_.when_readable(connection->descriptor, [this, id] {
      if (!stopped_) on_readable(id);
    });
  }

  void pause_reading(AgentConnection& connection) {
    if (!std::exchange(connection.paused, true)) paused_.push_back(connection.id);
  }

  // A timer that is due: where this process did not run, heartbeats wait in their sockets.
  void compensate_pause() {
    const Instant real = SteadyClock::now();
    if (stalled() || armed_ == Instant::max() || real < armed_) return;
    if (real >= armed_ + kFrozen) {
      const auto frozen = std::chrono::duration_cast<Millis>(real - armed_);
      log_.warning(fmt::format("this process did not run for {} ms; agents are not blamed", frozen.count()));
      clock_.skip(JobClock::frozen(last_turn_, armed_, real));
      armed_ = real;
    }
    // Those about to be lost for their silence whose messages were received and only not read yet are heard.
    for (const ConnectionId id : jobs_.overdue(now())) {
      const auto connection = agents_.find(id);
      char byte = 0;
      if (connection && ::recv(connection->fd(), &byte, 1, MSG_PEEK | MSG_DONTWAIT) > 0)
        jobs_.heard(id, now());
    }
  }

  void on_readable(ConnectionId id) {
    compensate_pause();
    const auto connection = agents_.find(id);  // survives its own removal
    if (!connection) return;
    if (stalled() && (jobs_.has_joined(id) || !connection->unread.empty())) return pause_reading(*connection);
    const std::size_t size = connection->is_in_tls_handshake() ? kHandshakeReadBytes : scratch_.size();
    const ssize_t n =
        retry_eintr([&] { return ::recv(connection->fd(), scratch_.data(), size, MSG_DONTWAIT); });
    if (n > 0) {
      on_bytes(*connection, std::string_view(scratch_.data(), static_cast<std::size_t>(n)));
    } else if (n == 0) {
      drop(id, "it closed the connection");
    } else if (const int error = errno; error != EAGAIN && error != EWOULDBLOCK) {
      drop(id, errno_error("recv", error).message,
           error == ECONNRESET ? membership::Break::kReset : membership::Break::kOther);
    }
    finish_turn();
    read_on(id);
  }

  void on_bytes(AgentConnection& connection, std::string_view received) {
    if (connection.stage == Stage::kClosing) return;
    // Over a slow line its heartbeats may be half a megabyte of the workers' store behind.
    if (connection.stage == Stage::kOpen) jobs_.heard(connection.id, now());
    if (connection.is_in_tls_handshake()) return handshake_tls(connection, std::string(received));
    std::string plain;
    const auto decrypted = connection.decrypt(received, plain);
    if (!decrypted) return refuse(connection, {Refused::Reason::kAuthentication, decrypted.error().message});
    take(connection, *decrypted);
  }

  // A signature takes up to a millisecond: it is made on a thread of its own, so that unknown peers, or
  // agents that come back by the thousand, keep nobody's heartbeat waiting. Until it is done the connection
  // is not read.
  void handshake_tls(AgentConnection& connection, std::string received) {
    struct Handshake {
      Result<void> result;
      std::string plain, out;
    };
    tls_handshakes_.run(
        [peer = std::weak_ptr(connection.lend_tls()), bytes = std::move(received),
         hook = options_.before_tls_handshake] {
          Handshake out;
          if (const auto stream = peer.lock()) {
            if (hook) hook();
            out.result = stream->receive(bytes, out.plain, out.out);
          }
          return out;
        },
        lifetime_.guard([this, id = connection.id](const Handshake& done) {
          const auto found = agents_.find(id);
          if (stopped_ || !found) return;
          found->take_back_tls(done.out);
          // Its time begins when it has been served first: others may have been before it.
          if (found->num_lent() == 1)
            agents_.set_deadline(*found, SteadyClock::now() + options_.handshake_timeout);
          if (done.result)
            take(*found, done.plain);
          else
            refuse(*found, {Refused::Reason::kAuthentication, done.result.error().message});
          finish_turn();
          read_on(id);
        }));
  }

  void take(AgentConnection& connection, std::string_view bytes) {
    bool asked = false;
    while (connection.stage != Stage::kClosing) {
      AgentConnection::Step step = connection.next(bytes, options_);
      if (std::holds_alternative<AgentConnection::NeedMore>(step)) break;
      if (auto* refused = std::get_if<Refused>(&step)) return refuse(connection, std::move(*refused));
      if (std::holds_alternative<AgentConnection::Opened>(step)) {
        agents_.set_deadline(connection, std::nullopt);
        jobs_.connected(connection.id, connection.job(), connection.address());
      }
      const auto* message = std::get_if<control::Message>(&step);
      if (message == nullptr) continue;
      ++stats_.num_messages;
      if (const auto* question = std::get_if<control::Query>(message)) {
        if (std::exchange(asked, true) || connection.blocked())
          return refuse(connection, {Refused::Reason::kProtocol, "a question before the answer to another"});
        answer(*question, connection);
        continue;
      }
      if (stalled()) return postpone(connection, *message, bytes);
      if (std::string error = receive(connection.id, *message); !error.empty())
        return refuse(connection, {Refused::Reason::kProtocol, std::move(error)});
    }
    flush(connection);
  }

  // While nothing can be recorded: an agent that comes new is refused where that may last; all else waits,
  // with what comes after it from the same agent.
  void postpone(AgentConnection& connection, const control::Message& message, std::string_view bytes) {
    const auto* join = std::get_if<control::Join>(&message);
    if (join != nullptr && !join->resume && !options_.state->problem().empty())
      return refuse(connection, {Refused::Reason::kBusy, "this coordinator takes no new agents for now, " +
                                                             options_.state->problem()});
    connection.unread.clear();
    control::encode(message, connection.unread);
    connection.unread += bytes;
    pause_reading(connection);
    flush(connection);
  }

  void take_unread(AgentConnection& connection) {
    if (connection.unread.empty() || connection.stage == Stage::kClosing) return;
    const std::string bytes = std::exchange(connection.unread, {});
    take(connection, bytes);
  }

  // Empty, or how it breaks the protocol.
  std::string receive(ConnectionId id, const control::Message& message) {
    std::string error;
    if (const auto* join = std::get_if<control::Join>(&message)) {
      // The jobs' clock left some time out, perhaps since the agent began: by that it is at least so old.
      control::Join told = *join;
      told.age = EndedJobs::bounded(told.age) - std::chrono::ceil<Millis>(clock_.skipped());
      jobs_.receive(id, told, now());
    } else if (!control::is_about_store(message)) {
      jobs_.receive(id, message, now());
    } else if (error = stores_.receive(
                   id,
                   std::holds_alternative<control::StoreAttach>(message) ? jobs_.member(id) : std::nullopt,
                   message);
               error.empty()) {
      const auto lost = stores_.take_lost();
      if (!lost) return error;
      jobs_.store_lost(*lost, now());
    }
    apply();
    return error;
  }

  // Who has proven the secret of one job sees that job; who has proven the secret of all jobs, or nothing
  // where there is none, sees those that have no secret of their own. Changes that are not
  // on the disk yet may show: nothing follows from an answer.
  void answer(const control::Query& question, AgentConnection& connection) const {
    const auto may_see = [&](std::string_view job) {
      if (connection.proved_own_secret()) return job == connection.job();
      return !options_.job_secrets || options_.job_secrets->find(job) == nullptr;
    };
    control::QueryEnd over;
    over.software = options_.software;
    if (options_.state) over.problem = options_.state->problem();
    for (const control::Message& each : jobs_.answer(question, may_see, now(), over)) connection.send(each);
    connection.send(over);
  }

  // Time.

  void arm() {
    Instant next = std::min(clock_.real(jobs_.next_deadline()), heartbeat_at_);
    if (const auto& set = agents_.deadlines(); !set.empty()) next = std::min(next, set.begin()->first);
    if (next == armed_) return;
    armed_ = next;
    timer_.cancel();
    if (next == Instant::max()) return;
    lifetime_.call_at(timer_, next, [this] {
      if (!stopped_) on_timer();
    });
  }

  void on_timer() {
    compensate_pause();
    armed_ = Instant::max();
    const Instant real = SteadyClock::now();
    while (!agents_.deadlines().empty() && agents_.deadlines().begin()->first <= real) {
      const ConnectionId id = agents_.deadlines().begin()->second;
      const auto connection = agents_.find(id);
      if (connection->tls_is_lent()) {
        agents_.set_deadline(*connection, real + kHandshakeCheck);
        continue;
      }
      if (connection->stage != Stage::kClosing)
        rejections_.write(Rejection::kAuthentication,
                          fmt::format("closed {}: it did not authenticate within {} ms", connection->name(),
                                      options_.handshake_timeout.count()));
      drop(id, "it took too long");
    }
    if (heartbeat_at_ <= real) {
      heartbeat_at_ = real + std::min(kStallHeartbeat, options_.heartbeat_interval);
      send_stall_heartbeats();
    }
    if (!stalled()) jobs_.advance(now());
    finish_turn();
  }

  // The agents' own heartbeats wait in their sockets. One that does not read needs no other.
  void send_stall_heartbeats() {
    std::vector<std::shared_ptr<AgentConnection>> open;
    for (const auto& [id, connection] : agents_.all())
      if (connection->stage == Stage::kOpen && !connection->blocked()) open.push_back(connection);
    for (const auto& connection : open) {
      connection->send(control::Heartbeat{});
      flush(*connection);
      // It came when nobody knew that this would last.
      if (!connection->unread.empty() && !options_.state->problem().empty()) take_unread(*connection);
    }
  }

  // Output.

  // Before anything it has said is looked at.
  void refuse_plain(AgentConnection& connection, std::string why) {
    connection.send(control::Preamble{});
    refuse(connection, {Refused::Reason::kAuthentication, std::move(why)});
  }

  void refuse(AgentConnection& connection, Refused refused) {
    rejections_.write(kind_of(refused.reason), fmt::format("closed {}: {}", connection.name(), refused.text));
    if (connection.stage != Stage::kOpen) {
      const bool proof = kind_of(refused.reason) == Rejection::kAuthentication;
      note_failure(connection, proof ? "authentication" : "handshake", refused.text);
    } else {
      jobs_.disconnected(connection.id, refused.text, now());
    }
    connection.send(refused);
    linger(connection);
    apply();
  }

  // For those who wait for this job's nodes. By its address: whoever has proven nothing chooses no text that
  // they read.
  void note_failure(const AgentConnection& peer, std::string phase, std::string text) {
    if (peer.job().empty() || stalled()) return;
    jobs_.note_join_failure(peer.job(), {peer.address(), std::move(phase), std::move(text), {}, true}, now());
  }

  // The rest of the output goes out, then the peer closes, or we do when it has had its time.
  void linger(AgentConnection& connection) {
    connection.stage = Stage::kClosing;
    connection.unread.clear();
    agents_.set_deadline(connection, SteadyClock::now() + kLingerTime);
    flush(connection);
  }

  // To an agent that has proven what it has to, and is still here.
  void send(ConnectionId id, const control::Message& message) {
    const auto connection = agents_.find(id);
    if (!connection || connection->stage != Stage::kOpen) return;
    connection->send(message);
    flush(*connection);
  }

  void apply() {
    // Heartbeats are answered at once, whatever is held back.
    for (const ConnectionId id : std::exchange(jobs_.effects().heartbeats, {}))
      send(id, control::Heartbeat{});
    // Deliveries can break connections, which gives further effects.
    while (!held() && !jobs_.effects().empty()) {
      const JobsEffects effects = std::exchange(jobs_.effects(), {});
      for (const std::string& line : effects.log) log_.info(line);
      for (const std::string& job : effects.over) stores_.over(job);
      if (effects.formed && options_.on_generation) options_.on_generation();
      for (const Delivery& delivery : effects.deliveries) deliver(delivery);
    }
  }

  void deliver(const Delivery& delivery) {
    if (is_report(delivery.message)) return deliver_report(delivery);
    std::string bytes;
    control::encode(delivery.message, bytes);
    for (const ConnectionId id : delivery.to) {
      const auto connection = agents_.find(id);
      if (!connection || connection->stage == Stage::kClosing) continue;
      connection->send_bytes(bytes);
      if (!delivery.close) {
        flush(*connection);
        continue;
      }
      const auto& refused = std::get<Refused>(delivery.message);
      rejections_.write(kind_of(refused.reason),
                        fmt::format("refused {}: {}", connection->title(), refused.text));
      jobs_.disconnected(id, "refused", now());
      linger(*connection);
    }
  }

  // Half a megabyte of each node, all to one.
  [[nodiscard]] static bool is_report(const control::Message& message) {
    const auto* hang = std::get_if<control::Hang>(&message);
    const auto* status = std::get_if<control::Status>(&message);
    return std::holds_alternative<control::Report>(message) ||
           (hang != nullptr && hang->kind == control::Hang::Kind::kSnapshot) ||
           (status != nullptr && !status->to_all());
  }
  void deliver_report(const Delivery& delivery) {
    for (const ConnectionId id : delivery.to) {
      const auto connection = agents_.find(id);
      if (!connection || connection->stage != Stage::kOpen) continue;
      agents_.queue_report(*connection, delivery.message);
      drain(id);
    }
  }

  void flush(AgentConnection& connection) {
    if (const int error = connection.flush(); error != 0) {
      const bool reset = error == ECONNRESET || error == EPIPE;
      broken_.emplace_back(connection.id, errno_error("send", error).message,
                           reset ? membership::Break::kReset : membership::Break::kOther);
    } else if (connection.unsent_bytes() > options_.max_unsent_bytes) {
      give_up(connection, Rejection::kSlowReader,
              fmt::format("it has not read {} bytes, the limit is {}", connection.unsent_bytes(),
                          options_.max_unsent_bytes));
    } else if (agents_.count_buffered(connection) && agents_.buffered_bytes() > options_.max_buffered_bytes) {
      give_up(connection, Rejection::kLimit,
              fmt::format("unfinished messages and unread ones of all agents are {} bytes, the limit is {} "
                          "(--max-buffered-bytes)",
                          agents_.buffered_bytes(), options_.max_buffered_bytes));
    } else if (connection.blocked()) {
      wait_writable(connection);
    } else if (connection.stage == Stage::kClosing) {
      ::shutdown(connection.fd(), SHUT_WR);
    }
  }

  void give_up(const AgentConnection& peer, Rejection kind, const std::string& reason) {
    rejections_.write(kind, fmt::format("closed {}: {}", peer.name(), reason));
    broken_.emplace_back(peer.id, reason, membership::Break::kEnd);
  }

  void wait_writable(AgentConnection& connection) {
    if (std::exchange(connection.waits_writable, true)) return;
    connection.descriptor.async_wait(Descriptor::wait_write,
                                     lifetime_.guard([this, id = connection.id](const auto& failed) {
                                       if (!failed && !stopped_) on_writable(id);
                                     }));
  }

  void on_writable(ConnectionId id) {
    const auto connection = agents_.find(id);
    if (!connection) return;
    connection->waits_writable = false;
    flush(*connection);
    drain(id);
    finish_turn();
  }

  void drop(ConnectionId id, const std::string& reason, membership::Break how = membership::Break::kEnd) {
    const auto connection = agents_.find(id);
    if (!connection) return;
    log_.debug(fmt::format("closed {}: {}", connection->name(), reason));
    if (connection->stage == Stage::kOpen)
      jobs_.disconnected(id, reason, now(), how);
    else if (connection->stage == Stage::kProof)
      note_failure(*connection, "authentication", "dropped while it authenticated: " + reason);
    agents_.remove(id);
    stores_.disconnected(id);
    apply();
    // Later, so that it may do with this server what it likes.
    if (options_.on_close) boost::asio::post(loop_, lifetime_.guard(options_.on_close));
  }

  // Gives the agent as much of its workers' store and of its reports as its connection takes now.
  void drain(ConnectionId id) {
    const auto connection = agents_.find(id);
    if (!connection || connection->stage != Stage::kOpen) return;
    control::Message message;
    std::string bytes;
    while (connection->unsent_bytes() < kSendLimitBytes) {
      if (!stores_wait() && stores_.next(id, message)) {
        bytes.clear();
        control::encode(message, bytes);
      } else if (bytes = agents_.take_report(*connection); bytes.empty()) {
        break;
      }
      connection->send_bytes(bytes);
    }
    if (stores_wait()) stores_.remember(id);  // until on_resume(); next() may have run a change
    const bool more = connection->unsent_bytes() >= kSendLimitBytes;
    flush(*connection);
    if (more) wait_writable(*connection);
  }

  void finish_turn() {
    apply();
    // That a generation is over is told when it is recorded.
    if (!held())
      for (auto& [id, refused] : stores_.take_refused()) send(id, std::move(refused));
    if (!stores_wait())
      for (const ConnectionId id : stores_.take_ready()) drain(id);
    // The end of an agent may have to be recorded.
    while (!stalled() && !broken_.empty()) {
      const auto [id, error, how] = std::move(broken_.back());
      broken_.pop_back();
      drop(id, error, how);
    }
    arm();
    last_turn_ = SteadyClock::now();
  }

  boost::asio::io_context& loop_;
  ControlServerOptions options_;
  Log log_;
  RejectionLog rejections_;
  Jobs jobs_;
  HostedStores stores_;
  LoopTimer timer_;
  JobClock clock_;
  HelperThread tls_handshakes_;
  Instant last_turn_ = SteadyClock::now();
  Instant armed_ = Instant::max();
  Instant heartbeat_at_ = Instant::max();  // while stalled
  AgentTable agents_;
  std::vector<ConnectionId> paused_;  // not read until on_resume()
  std::vector<std::tuple<std::string, membership::NodeId, std::string>> evictions_;  // likewise
  std::vector<std::tuple<ConnectionId, std::string, membership::Break>> broken_;
  std::string scratch_;
  ControlServerStats stats_;
  bool stopped_ = false;
  Lifetime lifetime_;
};

}  // namespace

std::unique_ptr<ControlServer> ControlServer::make(boost::asio::io_context& loop,
                                                   const ControlServerOptions& options, const Log& log) {
  return std::make_unique<AgentServer>(loop, options, log);
}

}  // namespace muster::net
