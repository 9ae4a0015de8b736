// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/etcd/etcd_client.h"

#include <algorithm>
#include <utility>

#include <boost/asio/use_awaitable.hpp>
#include <fmt/format.h>

#include "rendezvous/net/dial.h"
#include "rendezvous/net/http_line.h"

namespace muster::net {
namespace {

namespace asio = boost::asio;
using LinePtr = std::shared_ptr<HttpLine>;

constexpr std::size_t kMaxIdle = 4;
// gRPC's metadata as etcd's gateway takes it (clientv3.WithRequireLeader): a member that is cut off from its
// cluster ends the watch after three election time-outs. Without it a watch there is silent for ever.
constexpr std::string_view kRequireLeader = "Grpc-Metadata-hasleader: true\r\n";

tl::unexpected<Error> closed() {
  return fail(ErrorCode::kCancelled, "closed");
}

// An answer that is none may be a proxy's or another server's; which one it was belongs into the text.
tl::unexpected<Error> at(const HttpLine& line, Error error) {
  error.message = fmt::format("{}: {}", line.endpoint(), error.message);
  return fail(std::move(error));
}

// dial() says kNotFound of a name, which of etcd would be a lease.
tl::unexpected<Error> not_open(Error error) {
  if (error.code == ErrorCode::kNotFound) error.code = ErrorCode::kPeerGone;
  return fail(std::move(error));
}

}  // namespace

class EtcdClient::Impl : public std::enable_shared_from_this<Impl> {
 public:
  Impl(asio::io_context& loop, EtcdClientOptions options) : loop_(loop), options_(std::move(options)) {
    for (const auto& member : options_.members)
      title_ += fmt::format("{}{}", title_.empty() ? "" : ",", endpoint_text(member.host, member.port));
  }

  // The body of an answer with status 200.
  asio::awaitable<Result<std::string>> call(std::string_view path, std::string body) {
    const auto self = shared_from_this();
    Result<std::string> out = closed();
    for (std::size_t i = 0; i < options_.members.size() && !closed_; ++i) {
      const std::size_t turn = current_;
      out = co_await call_member(std::string(path), body);
      if (out || !elsewhere(out.error().code)) co_return out;
      if (closed_ || current_ != turn) continue;
      ++current_;
      if (const auto line = watching_.lock(); line && options_.members.size() > 1) line->close();
    }
    if (closed_) co_return closed();
    co_return out;
  }

  asio::awaitable<Error> watch(Watch watch) {
    const auto self = shared_from_this();
    interrupted_ = false;
    const std::size_t turn = current_;
    const auto line = std::make_shared<HttpLine>(loop_, member().host, member().port);
    watching_ = line;
    Error error = co_await watch_over(line, std::move(watch));
    line->close();
    watching_.reset();
    if (closed_ || interrupted_) error = {ErrorCode::kCancelled, "interrupted"};
    if (error.code != ErrorCode::kCancelled && current_ == turn) ++current_;
    co_return error;
  }

  void interrupt_watch() {
    interrupted_ = true;
    if (const auto line = watching_.lock()) line->close();
  }

  void close() {
    closed_ = true;
    interrupt_watch();
    for (const auto& weak : busy_)
      if (const auto line = weak.lock()) line->close();
    idle_.clear();
  }

  [[nodiscard]] const std::string& title() const { return title_; }

 private:
  [[nodiscard]] const EtcdClientOptions::Member& member() const {
    return options_.members[current_ % options_.members.size()];
  }

  // What another member may answer better. A refusal is the cluster's.
  static bool elsewhere(ErrorCode code) {
    return code == ErrorCode::kPeerGone || code == ErrorCode::kTimeout || code == ErrorCode::kIo ||
           code == ErrorCode::kProtocol;
  }

  asio::awaitable<Result<std::string>> call_member(std::string path, std::string body) {
    const Instant deadline = SteadyClock::now() + options_.call_timeout;
    const std::size_t turn = current_;
    if (!idle_.empty()) {
      const LinePtr kept = std::exchange(idle_.back(), {});
      idle_.pop_back();
      if (kept->endpoint() == endpoint_text(member().host, member().port)) {
        auto answer = co_await exchange(kept, path, body, deadline);
        // It may have been closed while nobody looked.
        if (answer || answer.error().code != ErrorCode::kPeerGone || closed_) co_return answer;
      }
    }
    const auto line = std::make_shared<HttpLine>(loop_, member().host, member().port);
    track(line);
    const auto open = co_await line->open(options_.tls, turn / options_.members.size(), deadline);
    if (!open) co_return not_open(open.error());
    auto answer = co_await exchange(line, std::move(path), std::move(body), deadline);
    co_return answer;
  }

  asio::awaitable<Result<std::string>> exchange(LinePtr line, std::string path, std::string body,
                                                Instant deadline) {
    track(line);
    const auto sent = co_await line->post(std::move(path), std::move(body), deadline);
    if (!sent) co_return fail(sent.error());
    HttpAnswer answer(options_.max_answer_bytes);
    while (!answer.done()) {
      const auto read = co_await line->read(answer, deadline);
      if (!read) co_return fail(read.error());
    }
    if (answer.keeps_connection() && !closed_ && idle_.size() < kMaxIdle) idle_.push_back(line);
    if (answer.status() != 200) co_return at(*line, etcd::refusal(answer.status(), answer.take_body()));
    co_return answer.take_body();
  }

  asio::awaitable<Error> watch_over(LinePtr line, Watch watch) {
    const Instant deadline = SteadyClock::now() + options_.call_timeout;
    const auto open = co_await line->open(options_.tls, current_ / options_.members.size(), deadline);
    if (!open) co_return not_open(open.error()).value();
    line->probe(watch.probe);
    const auto sent =
        co_await line->post(std::string(etcd::kWatchPath),
                            etcd::watch_request(watch.key, watch.end, watch.from), deadline, kRequireLeader);
    if (!sent) co_return sent.error();
    HttpAnswer answer(options_.max_answer_bytes);
    etcd::WatchStream stream(options_.max_answer_bytes);
    bool created = false;
    while (!answer.done()) {
      // A watch of nothing says so at once, and then nothing as long as nothing changes.
      const auto read = co_await line->read(answer, created ? Instant::max() : deadline);
      if (!read) co_return read.error();
      if (!answer.head_done() || answer.status() != 200) continue;
      const auto updates = stream.receive(answer.take_body());
      if (!updates) co_return at(*line, updates.error()).value();
      for (const etcd::WatchUpdate& update : *updates) {
        created |= update.created;
        if (interrupted_ || !watch.heard(update)) co_return Error{ErrorCode::kCancelled, "it was enough"};
      }
    }
    if (answer.status() != 200)
      co_return at(*line, etcd::refusal(answer.status(), answer.take_body())).value();
    co_return Error{ErrorCode::kPeerGone, fmt::format("{} has ended the watch", line->endpoint())};
  }

  void track(const LinePtr& line) {
    std::erase_if(busy_, [](const auto& weak) { return weak.expired(); });
    busy_.push_back(line);
  }

  asio::io_context& loop_;
  EtcdClientOptions options_;
  std::string title_;
  std::size_t current_ = 0;  // the member to ask, modulo their number
  std::vector<LinePtr> idle_;
  std::vector<std::weak_ptr<HttpLine>> busy_;
  std::weak_ptr<HttpLine> watching_;
  bool interrupted_ = false;
  bool closed_ = false;
};

EtcdClient::EtcdClient(asio::io_context& loop, EtcdClientOptions options)
    : impl_(std::make_shared<Impl>(loop, std::move(options))) {}

EtcdClient::~EtcdClient() {
  close();
}

EtcdClient::Answer<etcd::Lease> EtcdClient::grant(std::int64_t ttl_seconds) {
  const auto impl = impl_;
  const auto body = co_await impl->call(etcd::kGrantPath, etcd::grant_request(ttl_seconds));
  if (!body) co_return fail(body.error());
  co_return etcd::parse_grant(*body);
}

EtcdClient::Answer<std::int64_t> EtcdClient::keep_alive(etcd::LeaseId lease) {
  const auto impl = impl_;
  const auto body = co_await impl->call(etcd::kKeepAlivePath, etcd::lease_request(lease));
  if (!body) co_return fail(body.error());
  co_return etcd::parse_keep_alive(*body);
}

EtcdClient::Answer<void> EtcdClient::revoke(etcd::LeaseId lease) {
  const auto impl = impl_;
  const auto body = co_await impl->call(etcd::kRevokePath, etcd::lease_request(lease));
  if (!body && body.error().code != ErrorCode::kNotFound) co_return fail(body.error());
  co_return Result<void>{};
}

EtcdClient::Answer<etcd::TxnAnswer> EtcdClient::txn(etcd::Txn txn) {
  const auto impl = impl_;
  const auto body = co_await impl->call(etcd::kTxnPath, etcd::txn_request(txn));
  if (!body) co_return fail(body.error());
  co_return etcd::parse_txn(*body);
}

asio::awaitable<Error> EtcdClient::watch(Watch watch) {
  return impl_->watch(std::move(watch));
}
void EtcdClient::interrupt_watch() {
  impl_->interrupt_watch();
}
void EtcdClient::close() {
  impl_->close();
}
const std::string& EtcdClient::title() const {
  return impl_->title();
}

}  // namespace muster::net
