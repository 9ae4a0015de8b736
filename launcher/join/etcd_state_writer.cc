// SPDX-License-Identifier: Apache-2.0
#include "launcher/join/etcd_state_writer.h"

#include <utility>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/use_awaitable.hpp>

#include "rendezvous/base/backoff.h"

namespace muster::launcher {
namespace {

namespace asio = boost::asio;
constexpr auto kTuple = asio::as_tuple(asio::use_awaitable);
constexpr Backoff::Options kBackoff{.first = Millis(50), .max = Millis(1000), .factor = 1.6, .jitter = 0.5};
// For a job all of whose agents are gone at once, which nobody clears away.
constexpr std::int64_t kTtlSeconds = 3600;
constexpr std::chrono::minutes kRenewal{10};

}  // namespace

EtcdStateWriter::EtcdStateWriter(asio::io_context& io, net::EtcdClient& client, etcd::JobKeys keys,
                                 Callbacks callbacks)
    : client_(client), keys_(std::move(keys)), callbacks_(std::move(callbacks)), pause_(io) {}

void EtcdStateWriter::begin(etcd::Revision term) {
  term_ = term;
  lease_ = 0;  // what the former coordinator wrote is written anew
  latest_.reset();
}

void EtcdStateWriter::end() {
  term_.reset();
  due_ = false;
  waiting_.clear();
  pause_.cancel();
}

void EtcdStateWriter::close() {
  end();
  callbacks_ = {};
  idle_ = {};
}

void EtcdStateWriter::when_idle(std::function<void()> idle) {
  if (!running_) return idle();
  idle_ = std::move(idle);
}

asio::awaitable<void> EtcdStateWriter::write(State state, std::function<void()> written) {
  const auto self = shared_from_this();
  if (!term_) co_return;
  latest_ = std::move(state);
  waiting_.push_back(std::move(written));
  due_ = true;
  co_await run();
}

// The only one who writes, so that no state comes after a newer one.
asio::awaitable<void> EtcdStateWriter::run() {
  if (std::exchange(running_, true)) co_return;
  const auto self = shared_from_this();
  const Backoff fresh(kBackoff, static_cast<std::uint64_t>(term_.value_or(0)));
  Backoff backoff = fresh;
  while (term_ && due_) {
    const etcd::Revision term = *term_;
    due_ = false;
    const auto done = co_await write_once(term);
    if (term_ != term) continue;  // what is due now is another term's
    if (done && *done) {
      backoff = fresh;
      if (due_) continue;
      for (const auto& written : std::exchange(waiting_, {})) written();
      continue;
    }
    const bool hopeless =
        !done && (done.error().code == ErrorCode::kExhausted || done.error().code == ErrorCode::kMismatch);
    if (done || hopeless) {
      due_ = false;
      waiting_.clear();
      if (const auto call = callbacks_.overtaken; call && done) call();
      if (const auto call = callbacks_.hopeless; call && !done) call(done.error());
      continue;
    }
    if (done.error().code == ErrorCode::kNotFound) lease_ = 0;
    due_ = true;
    if (const auto call = callbacks_.failed) call(done.error());
    pause_.expires_after(backoff.next());
    co_await pause_.async_wait(kTuple);
  }
  running_ = false;
  if (const auto call = std::exchange(idle_, {})) call();
}

// False: the term is over.
asio::awaitable<Result<bool>> EtcdStateWriter::write_once(etcd::Revision term) {
  if (lease_ == 0 && latest_) {
    const Instant asked = SteadyClock::now();
    const auto granted = co_await client_.grant(kTtlSeconds);
    if (!granted) co_return fail(granted.error());
    if (term_ != term) co_return false;
    lease_ = granted->id;
    renewal_ = asked + kRenewal;
  }
  etcd::Txn txn;
  txn.fence = {keys_.coordinator, term};
  if (latest_)
    txn.then.push_back(etcd::put(keys_.state, etcd::encode_state(*latest_), lease_));
  else
    txn.then.push_back(etcd::erase(keys_.state));
  const auto answer = co_await client_.txn(std::move(txn));
  if (!answer) co_return fail(answer.error());
  co_return answer->succeeded;
}

asio::awaitable<void> EtcdStateWriter::keep_alive() {
  const auto self = shared_from_this();
  const Instant now = SteadyClock::now();
  if (lease_ == 0 || now < renewal_) co_return;
  const etcd::LeaseId lease = lease_;
  const auto left = co_await client_.keep_alive(lease);
  if (left) renewal_ = now + kRenewal;
  if (left && *left == 0 && lease_ == lease) co_await restore();
}

asio::awaitable<void> EtcdStateWriter::restore() {
  const auto self = shared_from_this();
  lease_ = 0;
  if (!term_ || !latest_) co_return;
  due_ = true;  // also where a write is under way, which may have come before
  co_await run();
}

}  // namespace muster::launcher
