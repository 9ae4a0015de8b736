// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/server/server.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <set>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>
#include <utility>

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <fmt/format.h>

#include "rendezvous/base/fail.h"
#include "rendezvous/base/lifetime.h"
#include "rendezvous/base/syscall.h"
#include "rendezvous/net/acceptor.h"
#include "rendezvous/net/listener.h"
#include "rendezvous/net/peer_owner.h"
#include "rendezvous/wal/state_log.h"

namespace muster::net {
namespace {

constexpr std::uint64_t kListenerTag = ~std::uint64_t{0};
constexpr std::size_t kReadBytes = 65536;
// An output buffer that grew beyond this for one large answer is given back.
constexpr std::size_t kKeptOutputBytes = 65536;
constexpr std::size_t kEventsPerTurn = 256;  // bounds how long one turn keeps the loop from its other work

// One accepted socket, its Session, and the bytes on their way out. Non-blocking; knows no event loop: the
// server tells it when it may read or write.
class Connection {
 public:
  /// What the Server has to do about it next.
  enum class Status {
    kOpen,
    kEnded,   ///< the peer closed in an orderly way, between two requests
    kFailed,  ///< close and log: reason()
    kOther,   ///< its first byte is the other protocol's: release() it
  };

  /// Of all connections of a server; outlives them.
  struct Shared {
    StoreCore& core;
    const ServerOptions& options;
    TorchrunJobs* torchrun = nullptr;  ///< see Session
    /// Nothing is sent for now: see send_held().
    [[nodiscard]] bool hold() const { return options.state && options.state->dirty(); }
  };
  Connection(UniqueFd fd, ClientId id, const Shared& shared)
      : fd_(std::move(fd)),
        shared_(shared),
        session_(id, shared.core, shared.options.limits, shared.torchrun) {}

  /// Reads once into `scratch`, answers, writes.
  Status on_readable(std::string& scratch, Instant now) {
    // It became blocked by what another client did, after the event was fetched: the bytes come again later.
    if (blocked()) return Status::kOpen;
    const ssize_t n =
        retry_eintr([&] { return ::recv(fd_.get(), scratch.data(), scratch.size(), MSG_DONTWAIT); });
    if (n > 0 && is_other_protocol(scratch[0])) {
      unread_.assign(scratch, 0, static_cast<std::size_t>(n));
      return Status::kOther;
    }
    if (n > 0 && !served()) {
      rejection_ = Rejection::kAuthentication;
      return failed(not_served_);
    }
    if (n > 0) return process({scratch.data(), static_cast<std::size_t>(n)}, now);
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return Status::kOpen;
    const std::string cause = n == 0 ? "it closed the connection" : errno_error("recv", errno).message;
    if (!session_.between_requests())
      return failed(fmt::format("{} in the middle of {}", cause, session_.current_op()));
    reason_ = cause;
    return Status::kEnded;
  }
  /// Writes on, and takes up input that was left because of unread answers.
  Status on_writable(Instant now) {
    if (const Status status = flush(now); status != Status::kOpen || blocked()) return status;
    const std::string input = std::exchange(unread_, {});
    return process(input, now);
  }
  /// Treats an undecided request of an old client as complete.
  Status settle(Instant now) {
    undecided_ = false;
    const Session::State state = session_.settle(out_);
    const Status status = flush(now);
    return state == Session::State::kClose ? failed(session_.close_reason()) : status;
  }

  /// A byte string for the client that is not an answer to something just received; call flush() afterwards.
  [[nodiscard]] std::string& out() { return out_; }
  Status flush(Instant now) {
    if (shared_.hold()) [[unlikely]]
      return Status::kOpen;
    while (sent_ < out_.size()) {
      const ssize_t n = retry_eintr([&] {
        return ::send(fd_.get(), out_.data() + sent_, out_.size() - sent_, MSG_NOSIGNAL | MSG_DONTWAIT);
      });
      if (n > 0) {
        sent_ += static_cast<std::size_t>(n);
        last_progress_ = now;
        continue;
      }
      if (errno != EAGAIN && errno != EWOULDBLOCK) return failed(errno_error("send", errno).message);
      if (unsent_bytes() <= shared_.options.limits.max_output_bytes + kKeptOutputBytes) return Status::kOpen;
      rejection_ = Rejection::kSlowReader;
      return failed(fmt::format("it has not read {} bytes of answers", unsent_bytes()));
    }
    if (out_.capacity() > kKeptOutputBytes) out_ = std::string();
    out_.clear();
    sent_ = 0;
    return Status::kOpen;
  }
  /// There are answers that flush() did not send because of hold().
  [[nodiscard]] bool held() const { return shared_.hold() && sent_ < out_.size(); }
  /// Nothing is held any more: sends.
  Status send_held(Instant now) {
    last_progress_ = now;  // what was held is no fault of the peer's
    return flush(now);
  }
  /// There is input that on_writable() would take up now.
  [[nodiscard]] bool left_input() const { return !unread_.empty() && !blocked(); }
  /// After kOther: the socket and what was read from it.
  [[nodiscard]] UniqueFd release(std::string& first_bytes) {
    first_bytes = std::move(unread_);
    return std::move(fd_);
  }
  /// Sets reason(), before the Server closes it for one of its own.
  void give_up(Rejection kind, std::string reason) {
    rejection_ = kind;
    reason_ = std::move(reason);
  }
  /// True, and a reason is given, if it had to do something by now.
  bool time_is_up() {
    if (blocked())
      give_up(Rejection::kSlowReader,
              fmt::format("it has not read its answers for {} ms, {} bytes are waiting",
                          shared_.options.slow_reader_timeout.count(), unsent_bytes()));
    else if (!served())
      give_up(Rejection::kAuthentication,
              fmt::format("it said nothing for {} ms, and {}", shared_.options.first_byte_timeout.count(),
                          not_served_));
    else
      return false;
    return true;
  }
  /// The peer may not use the store: bytes that are not the other protocol's end the connection, for this
  /// reason.
  void do_not_serve(std::string reason) { not_served_ = std::move(reason); }
  [[nodiscard]] bool served() const { return not_served_.empty(); }
  /// What has come, which is left alone, is no request to execute: nothing, the end, or for somebody else.
  [[nodiscard]] bool asks_nothing() const {
    if (blocked()) return false;
    char first = 0;
    const ssize_t n = retry_eintr([&] { return ::recv(fd_.get(), &first, 1, MSG_PEEK | MSG_DONTWAIT); });
    return n == 0 || (n < 0 && errno != EAGAIN) || !served() || is_other_protocol(first);
  }

  [[nodiscard]] int fd() const { return fd_.get(); }
  [[nodiscard]] const Session& session() const { return session_; }
  [[nodiscard]] const std::string& reason() const { return reason_; }
  [[nodiscard]] Rejection rejection() const {
    return session_.exceeded_limit() ? Rejection::kLimit : rejection_;
  }
  [[nodiscard]] bool undecided() const { return undecided_; }
  /// The socket takes no more; wait until it is writable, and do not read before.
  [[nodiscard]] bool blocked() const { return sent_ < out_.size(); }
  /// When the socket last took a byte of what is still waiting.
  [[nodiscard]] Instant last_progress() const { return last_progress_; }
  [[nodiscard]] std::size_t unsent_bytes() const { return out_.size() - sent_; }
  /// What is kept for the peer until it sends or reads more.
  [[nodiscard]] std::size_t buffered_bytes() const {
    return out_.size() + unread_.size() + session_.num_pending_bytes();
  }

 private:
  Status process(std::string_view input, Instant now) {
    while (true) {
      const Session::State state = session_.receive(input, out_);
      const Status status = flush(now);
      if (state == Session::State::kClose) return failed(session_.close_reason());
      if (status != Status::kOpen) return status;
      undecided_ = state == Session::State::kUndecided;
      if (state != Session::State::kOutputFull) return Status::kOpen;
      if (blocked()) {
        unread_.assign(input);
        return Status::kOpen;
      }
    }
  }

  Status failed(std::string reason) {
    reason_ = std::move(reason);
    return Status::kFailed;
  }

  [[nodiscard]] bool is_other_protocol(char first) const {
    return session_.generation() == wire::Generation::kUndetected && session_.between_requests() &&
           shared_.options.other_first_bytes.find(first) != std::string_view::npos;
  }

  UniqueFd fd_;
  const Shared& shared_;
  Session session_;
  std::string out_;
  std::size_t sent_ = 0;  // of out_
  std::string unread_;    // input left alone until out_ is sent
  bool undecided_ = false;
  std::string not_served_;  // why; empty: it is served
  Rejection rejection_ = Rejection::kProtocol;
  Instant last_progress_{};
  std::string reason_;
};

// The connections of a store server by ClientId, with their deadlines and with what they buffer. Ids are used
// again; a tag tells a client from a former one of the same id.
class ClientTable {
 public:
  struct Client {
    std::unique_ptr<Connection> connection;  ///< nullptr: nobody has this id
    std::string peer;
    std::uint32_t turn = 0;      ///< counts the use of this id
    std::uint32_t interest = 0;  ///< of epoll
    bool held = false;           ///< its answers wait for the disk
    std::optional<Instant> deadline;
    std::size_t buffered_bytes = 0;  ///< as counted last
  };

  /// The id of a new client, whose connection is the caller's to set.
  [[nodiscard]] ClientId take() {
    if (free_ids_.empty()) {
      clients_.emplace_back();
      return static_cast<ClientId>(clients_.size() - 1);
    }
    const ClientId id = free_ids_.back();
    free_ids_.pop_back();
    return id;
  }
  /// The client is gone.
  void release(ClientId id) {
    Client& client = clients_[id];
    set_deadline(id, std::nullopt);
    if (client.connection) past_requests_ += client.connection->session().num_requests();
    client.connection.reset();
    client.held = false;
    buffered_bytes_ -= std::exchange(client.buffered_bytes, 0);
    ++client.turn;
    free_ids_.push_back(id);
  }
  /// All are.
  void clear() {
    for (ClientId id = 0; id < clients_.size(); ++id)
      if (clients_[id].connection) release(id);
  }
  [[nodiscard]] Client& operator[](ClientId id) { return clients_[id]; }
  [[nodiscard]] const std::vector<Client>& all() const { return clients_; }

  [[nodiscard]] std::uint64_t tag(ClientId id) const { return std::uint64_t{clients_[id].turn} << 32 | id; }
  /// nullptr: that client is gone.
  [[nodiscard]] Client* find(std::uint64_t tag) {
    Client& client = clients_[static_cast<ClientId>(tag)];
    return client.connection && client.turn == tag >> 32 ? &client : nullptr;
  }

  /// True if it is the earliest of all now.
  bool set_deadline(ClientId id, std::optional<Instant> deadline) {
    Client& client = clients_[id];
    if (client.deadline == deadline) return false;
    if (client.deadline) deadlines_.erase({*client.deadline, id});
    client.deadline = deadline;
    if (!deadline) return false;
    const auto added = deadlines_.emplace(*deadline, id).first;
    return added == deadlines_.begin();
  }
  /// Few clients have one: those that are blocked or undecided.
  [[nodiscard]] bool has_deadlines() const { return !deadlines_.empty(); }
  [[nodiscard]] const std::pair<Instant, ClientId>& earliest() const { return *deadlines_.begin(); }

  /// Of all clients there ever were.
  [[nodiscard]] std::uint64_t num_requests() const {
    std::uint64_t out = past_requests_;
    for (const Client& client : clients_)
      if (client.connection) out += client.connection->session().num_requests();
    return out;
  }

  /// Counts what this client buffers now.
  void count_buffered(Client& client) {
    buffered_bytes_ += client.connection->buffered_bytes() - client.buffered_bytes;  // modulo 2^64
    client.buffered_bytes = client.connection->buffered_bytes();
  }
  /// Of all clients.
  [[nodiscard]] std::size_t buffered_bytes() const { return buffered_bytes_; }
  /// Who buffers most. O(clients).
  [[nodiscard]] ClientId largest() const {
    const auto found = std::ranges::max_element(clients_, {}, &Client::buffered_bytes);
    return static_cast<ClientId>(found - clients_.begin());
  }

 private:
  std::vector<Client> clients_;
  std::vector<ClientId> free_ids_;
  std::set<std::pair<Instant, ClientId>> deadlines_;
  std::size_t buffered_bytes_ = 0;
  std::uint64_t past_requests_ = 0;  // of those that are gone
};

// Deletes the keys of a torchrun job some time after its last agent has gone, else a job of the same
// --rdzv-id would find itself closed (torchrun_jobs.h). Cost: the keys of the jobs that are due, whatever
// else there is.
class TorchrunCleanup {
 public:
  /// `core`: what is in it comes from a former process, whose clients are gone and do not come back:
  /// PyTorch's have no way to. Whoever comes is new, and must not wait for the dead until their heartbeats
  /// are missed.
  TorchrunCleanup(boost::asio::io_context& loop, const Log& log, Millis keep, StoreCore& core)
      : timer_(loop), log_(log), core_(core), jobs_(keep) {
    core_.group_keys(TorchrunJobs::state_of);
    const Instant now = SteadyClock::now();
    for (const auto& [key, value] : core_.keys()) jobs_.found(key, now);
    arm();
  }

  /// For the sessions of the core.
  [[nodiscard]] TorchrunJobs* jobs() { return &jobs_; }
  void client_left(ClientId client) {
    jobs_.left(client, SteadyClock::now());
    arm();
  }
  void stop() { timer_.cancel(); }
  /// While it is paused nothing is deleted.
  void set_paused(bool paused) {
    paused_ = paused;
    arm();
  }

 private:
  void arm() {
    const Instant next = paused_ ? Instant::max() : jobs_.next_deadline();
    if (next == armed_) return;
    armed_ = next;
    timer_.cancel();
    if (next == Instant::max()) return;
    lifetime_.call_at(timer_, next, [this] {
      if (paused_) return;
      armed_ = Instant::max();
      for (const std::string& state : jobs_.take_due(SteadyClock::now()))
        log_.info(fmt::format("torchrun job {}: its last agent has gone, {} keys deleted",
                              state.substr(TorchrunJobs::kPrefix.size()), core_.delete_group(state)));
      arm();
    });
  }

  LoopTimer timer_;
  const Log& log_;
  StoreCore& core_;
  TorchrunJobs jobs_;
  Instant armed_ = Instant::max();
  bool paused_ = false;
  Lifetime lifetime_;
};

// All sockets are in one level-triggered epoll set, whose descriptor is the one thing Asio waits for. Per
// request this costs one recv and one send; Asio's own operations would add an epoll_ctl or a second recv to
// each, and a heap of handlers and shared pointers to each connection.
class EpollServer final : public Server, public StateKeeper {
 public:
  EpollServer(boost::asio::io_context& loop, const ServerOptions& options, const Log& log, Listener listener,
              UniqueFd ready)
      : loop_(loop),
        options_(options),
        log_(log),
        rejections_(loop, log),
        acceptor_(std::move(listener)),
        ready_(loop, ready.release()),
        timer_(loop),
        shared_{core_, options_} {}

  ~EpollServer() override { stop(); }

  Result<void> start() {
    for (const UniqueFd& fd : listener().fds)
      if (!poll(EPOLL_CTL_ADD, fd.get(), EPOLLIN, kListenerTag))
        return fail(errno_error("epoll_ctl for " + listener().address, errno));
    if (options_.state) {
      core_ = std::exchange(options_.state->recovered().store, StoreCore());
      core_.record_to(options_.state->sink());
      options_.state->attach(*this);
    }
    if (options_.keep_torchrun_jobs)
      shared_.torchrun = torchrun_.emplace(loop_, log_, *options_.keep_torchrun_jobs, core_).jobs();
    log_.info("listening on " + listener().address);
    wait_ready();
    return {};
  }

  void stop() override {
    if (std::exchange(stopped_, true)) return;
    if (options_.state) options_.state->detach(*this);
    const Instant now = SteadyClock::now();
    for (const Client& client : clients_.all())
      if (client.connection) (void)client.connection->flush(now);
    clients_.clear();
    stats_.num_open = 0;
    acceptor_.close();
    timer_.cancel();
    if (torchrun_) torchrun_->stop();
    rejections_.stop();
    boost::system::error_code ignored;
    ready_.close(ignored);
    log_.info("stopped listening on " + listener().address);
  }

  void begin_anew() override {
    for (ClientId id = 0; id < clients_.all().size(); ++id)
      if (clients_[id].connection) forget(id);
    core_ = StoreCore();
  }
  void describe(const journal::LogSink& to) const override { core_.describe(to); }

  void on_stall() override {
    if (torchrun_) torchrun_->set_paused(true);
  }
  // Answers that waited for the disk go out, all before anything is taken up that waits for it again.
  void on_committed() override {
    const Instant now = SteadyClock::now();
    resumed_ = std::exchange(held_, {});
    for (const std::uint64_t tag : resumed_)
      if (Client* client = clients_.find(tag); client != nullptr) {
        client->held = false;
        after(static_cast<ClientId>(tag), client->connection->send_held(now), now);
      }
  }
  void on_resume() override {
    for (const std::uint64_t tag : std::exchange(left_, {}))
      if (const Client* client = clients_.find(tag); client != nullptr)
        poll(EPOLL_CTL_ADD, client->connection->fd(), client->interest, tag);
    for (const std::uint64_t tag : std::exchange(resumed_, {})) take_left_input(tag, SteadyClock::now());
    if (torchrun_) torchrun_->set_paused(false);
  }

  [[nodiscard]] const Listener& listener() const override { return acceptor_.listener(); }

  [[nodiscard]] ServerStats stats() const override {
    ServerStats out = stats_;
    out.num_requests = clients_.num_requests();
    out.num_keys = stopped_ ? 0 : core_.keys().size();
    out.num_waiting = core_.num_waiting();
    out.num_bytes = core_.num_bytes();
    out.num_buffered_bytes = clients_.buffered_bytes();
    out.rejections = rejections_.counts();
    return out;
  }

 private:
  using Client = ClientTable::Client;

  bool poll(int operation, int fd, std::uint32_t events, std::uint64_t tag) {
    epoll_event event{events, {.u64 = tag}};
    return ::epoll_ctl(ready_.native_handle(), operation, fd, &event) == 0;
  }

  void wait_ready() {
    lifetime_.when_readable(ready_, [this] {
      if (!stopped_) on_ready();
    });
  }

  void on_ready() {
    std::array<epoll_event, kEventsPerTurn> events;
    const int n = ::epoll_wait(ready_.native_handle(), events.data(), static_cast<int>(events.size()), 0);
    const Instant now = SteadyClock::now();
    for (int i = 0; i < n; ++i) {
      const epoll_event& event = events[static_cast<std::size_t>(i)];
      const std::uint64_t tag = event.data.u64;
      if (tag == kListenerTag)
        acceptor_.accept_some(
            [this](UniqueFd fd) { admit(std::move(fd)); },
            [this](const std::string& reason) { rejections_.write(Rejection::kSystem, reason); });
      else if (Client* client = clients_.find(tag); client != nullptr && !postpone(tag, *client))
        on_event(static_cast<ClientId>(tag), *client, event.events, now);
    }
    wait_ready();
  }

  [[nodiscard]] bool stalled() const { return options_.state && options_.state->stalled(); }

  // Until on_resume(), where nothing can be recorded and it may ask for something: what is not read costs no
  // memory. Whoever is an agent's is let through.
  bool postpone(std::uint64_t tag, const Client& client) {
    if (!stalled() || client.connection->asks_nothing()) return false;
    poll(EPOLL_CTL_DEL, client.connection->fd(), 0, 0);
    left_.push_back(tag);
    return true;
  }

  void on_event(ClientId id, Client& client, std::uint32_t events, Instant now) {
    Connection& connection = *client.connection;
    const bool gone = (events & (EPOLLHUP | EPOLLERR)) != 0;  // in both directions
    if (gone && connection.blocked()) {
      connection.give_up(Rejection::kSlowReader, fmt::format("it went away with {} bytes of answers unread",
                                                             connection.unsent_bytes()));
      return close(id, false);
    }
    // Where it is gone, reading tells why, after what it sent last.
    const Connection::Status status = (events & EPOLLOUT) != 0 && !gone
                                          ? connection.on_writable(now)
                                          : connection.on_readable(scratch_, now);
    after(id, status, now);
    deliver(now);
  }

  // What a connection has read already, part by part: in between the others get its effects, and are counted.
  void take_left_input(std::uint64_t tag, Instant now) {
    for (Client* client = clients_.find(tag); client != nullptr && client->connection->left_input();
         client = clients_.find(tag)) {
      after(static_cast<ClientId>(tag), client->connection->on_writable(now), now);
      deliver(now);
    }
  }

  // Does what a connection's status asks for.
  void after(ClientId id, Connection::Status status, Instant now) {
    Client& client = clients_[id];
    if (status == Connection::Status::kOther) return hand_over(id);
    if (status != Connection::Status::kOpen) return close(id, status != Connection::Status::kEnded);
    Connection& connection = *client.connection;
    clients_.count_buffered(client);
    if (clients_.buffered_bytes() > options_.max_buffered_bytes) [[unlikely]]
      close_largest();
    if (!client.connection) return;
    if (connection.held()) [[unlikely]] {
      if (!std::exchange(client.held, true)) held_.push_back(clients_.tag(id));
      return;
    }
    const std::uint32_t interest = connection.blocked() ? EPOLLOUT : EPOLLIN;
    if (interest != client.interest) {
      poll(EPOLL_CTL_MOD, connection.fd(), interest, clients_.tag(id));
      client.interest = interest;
    }
    std::optional<Instant> deadline;
    if (connection.blocked()) deadline = connection.last_progress() + options_.slow_reader_timeout;
    if (connection.undecided()) deadline = now + options_.legacy_quiet_time;
    if (!connection.served()) deadline = client.deadline;  // nothing came
    if (deadline || client.deadline) [[unlikely]]
      set_deadline(id, deadline);
  }

  // Not who came last. A look at every client is paid for with megabytes.
  void close_largest() {
    const ClientId largest = clients_.largest();
    Client& client = clients_[largest];
    client.connection->give_up(
        Rejection::kLimit,
        fmt::format(
            "unfinished requests and unread answers of all clients are {} bytes, {} of them its own; the "
            "limit is {} (--max-buffered-bytes)",
            clients_.buffered_bytes(), client.buffered_bytes, options_.max_buffered_bytes));
    close(largest, true);
  }

  // Brings the effects of what was just executed to the clients concerned.
  void deliver(Instant now) {
    if (core_.woken().empty()) return;
    for (const ClientId id : core_.woken())
      if (clients_[id].connection) clients_[id].connection->out().push_back(wire::kStopWaiting);
    for (const ClientId id : core_.woken()) flush(id, now);
    core_.woken().clear();
  }

  // One that is blocked already is told when its socket takes more; trying costs a call, and counts it.
  void flush(ClientId id, Instant now) {
    if (const auto& connection = clients_[id].connection) after(id, connection->flush(now), now);
  }

  void close(ClientId id, bool refused) {
    Client& client = clients_[id];
    const std::string text = fmt::format("closed {}: {}", client.peer, client.connection->reason());
    if (refused)
      rejections_.write(client.connection->rejection(), text);
    else
      log_.debug(text);
    forget(id);
  }

  void forget(ClientId id) {
    clients_.release(id);
    --stats_.num_open;
    if (torchrun_) torchrun_->client_left(id);
  }

  void hand_over(ClientId id) {
    std::string first_bytes;
    poll(EPOLL_CTL_DEL, clients_[id].connection->fd(), 0, 0);
    UniqueFd fd = clients_[id].connection->release(first_bytes);
    std::string peer = clients_[id].peer;
    forget(id);
    options_.hand_over(std::move(fd), first_bytes, std::move(peer));
  }

  void set_deadline(ClientId id, std::optional<Instant> deadline) {
    if (clients_.set_deadline(id, deadline)) wait_deadline();
  }

  void wait_deadline() {
    lifetime_.call_at(timer_, clients_.earliest().first, [this] {
      if (!stopped_) on_deadline();
    });
  }

  void on_deadline() {
    const Instant now = SteadyClock::now();
    while (clients_.has_deadlines() && clients_.earliest().first <= now) {
      const ClientId id = clients_.earliest().second;
      set_deadline(id, std::nullopt);
      Connection& connection = *clients_[id].connection;
      if (connection.undecided() && stalled()) {
        set_deadline(id, now + options_.legacy_quiet_time);
      } else if (connection.undecided()) {
        after(id, connection.settle(now), now);
        deliver(now);
      } else if (connection.held()) {
        set_deadline(id, now + options_.slow_reader_timeout);  // the time that the disk takes is not its own
      } else if (connection.time_is_up()) {
        close(id, true);
      }
    }
    if (clients_.has_deadlines()) wait_deadline();
  }

  void admit(UniqueFd fd) {
    if (stats_.num_open >= options_.max_connections) [[unlikely]]
      return rejections_.write(
          Rejection::kLimit, fmt::format("closed {}: {} clients are connected, the limit (--max-connections)",
                                         peer_name(fd.get()), stats_.num_open));
    const ClientId id = clients_.take();
    Client& client = clients_[id];
    client.peer = peer_name(fd.get());
    client.interest = EPOLLIN;
    if (!poll(EPOLL_CTL_ADD, fd.get(), client.interest, clients_.tag(id))) {
      rejections_.write(Rejection::kSystem, errno_error("epoll_ctl for " + client.peer, errno).message);
      return clients_.release(id);
    }
    std::string not_served = why_not_served(fd.get());
    client.connection = std::make_unique<Connection>(std::move(fd), id, shared_);
    ++stats_.num_accepted;
    ++stats_.num_open;
    if (not_served.empty()) [[likely]]
      return;
    client.connection->do_not_serve(std::move(not_served));
    set_deadline(id, SteadyClock::now() + options_.first_byte_timeout);
  }

  // Empty: the peer may use the store.
  [[nodiscard]] std::string why_not_served(int fd) const {
    using Clients = ServerOptions::Clients;
    if (options_.clients == Clients::kAll) return {};
    if (!peer_is_on_this_host(fd))
      return options_.clients == Clients::kThisHost
                 ? "the store is served to this host alone, since there is neither a secret nor TLS "
                   "(--unprotected serves everybody)"
                 : "the store is served to this host alone; other hosts are served as agents";
    if (options_.clients == Clients::kThisHost) return {};
    const std::string defect = untrusted_user(fd, options_.allowed_users);
    return defect.empty() ? defect
                          : fmt::format("the store is served to root and user {} (--allow-uid), and {}",
                                        ::geteuid(), defect);
  }

  boost::asio::io_context& loop_;
  ServerOptions options_;
  Log log_;
  RejectionLog rejections_;
  Acceptor acceptor_;
  boost::asio::posix::stream_descriptor ready_;  // the epoll set
  LoopTimer timer_;
  StoreCore core_;  // outlives the connections' sessions
  ClientTable clients_;
  std::optional<TorchrunCleanup> torchrun_;
  std::string scratch_ = std::string(kReadBytes, '\0');
  Connection::Shared shared_;
  std::vector<std::uint64_t> held_;     // connections with answers that wait for the disk
  std::vector<std::uint64_t> resumed_;  // those whose answers have gone out, and whose input comes next
  std::vector<std::uint64_t> left_;     // not in the epoll set, because the disk is full
  bool stopped_ = false;
  ServerStats stats_;  // those that are counted as they change
  Lifetime lifetime_;
};

}  // namespace

Result<std::unique_ptr<Server>> Server::listen(boost::asio::io_context& loop, const ServerOptions& options,
                                               const Log& log) {
  const auto open = [&]() -> Result<Listener> {
    if (options.listener) return std::move(*options.listener);
    if (options.listen_fd >= 0) return adopt_listener(UniqueFd(options.listen_fd), options.port);
    return open_listener(options.host, options.port, options.name_port_owner);
  };
  MUSTER_TRY(Listener listener, open());
  UniqueFd ready(::epoll_create1(EPOLL_CLOEXEC));
  if (!ready) return fail(errno_error("epoll_create1", errno));
  try {
    auto out = std::make_unique<EpollServer>(loop, options, log, std::move(listener), std::move(ready));
    MUSTER_OK(out->start());
    return out;
  } catch (const boost::system::system_error& error) {
    return fail(ErrorCode::kIo, "event loop of the store server: {}", error.what());
  }
}

}  // namespace muster::net
