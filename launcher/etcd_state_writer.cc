// SPDX-License-Identifier: Apache-2.0
#include "launcher/etcd_state_writer.h"

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
  written_.reset();
  gone_ = false;
}

void EtcdStateWriter::end() {
  term_.reset();
  pause_.cancel();
}

void EtcdStateWriter::close() {
  end();
  callbacks_ = {};
  idle_ = {};
}

void EtcdStateWriter::when_idle(std::function<void()> idle) {
  if (num_writes_ == 0) return idle();
  idle_ = std::move(idle);
}

asio::awaitable<void> EtcdStateWriter::write(State state, std::function<void()> written) {
  const auto self = shared_from_this();
  const auto term = term_;
  Backoff backoff(kBackoff, static_cast<std::uint64_t>(term.value_or(0)));
  ++num_writes_;
  while (term && term_ == term) {
    const auto done = co_await write_once(*term, state);
    if (term_ != term) break;
    if (done && *done && std::exchange(gone_, false)) continue;
    if (done && *done) {
      written_ = std::move(state);
      written();
      break;
    }
    if (done) {
      if (const auto call = callbacks_.overtaken) call();
      break;
    }
    if (done.error().code == ErrorCode::kExhausted || done.error().code == ErrorCode::kMismatch) {
      if (const auto call = callbacks_.hopeless) call(done.error());
      break;
    }
    if (done.error().code == ErrorCode::kNotFound) lease_ = 0;
    if (const auto call = callbacks_.failed) call(done.error());
    pause_.expires_after(backoff.next());
    co_await pause_.async_wait(kTuple);
  }
  if (--num_writes_ > 0) co_return;
  if (const auto call = std::exchange(idle_, {})) call();
}

// False: the term is over.
asio::awaitable<Result<bool>> EtcdStateWriter::write_once(etcd::Revision term, State state) {
  if (lease_ == 0 && state) {
    const Instant asked = SteadyClock::now();
    const auto granted = co_await client_.grant(kTtlSeconds);
    if (!granted) co_return fail(granted.error());
    lease_ = granted->id;
    renewal_ = asked + kRenewal;
  }
  etcd::Txn txn;
  txn.fence = {keys_.coordinator, term};
  if (state)
    txn.then.push_back(etcd::put(keys_.state, etcd::encode_state(*state), lease_));
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
  gone_ = num_writes_ > 0;
  if (gone_ || !term_ || !written_) co_return;
  co_await write(written_, [] {});
}

}  // namespace muster::launcher
