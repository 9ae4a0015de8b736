// SPDX-License-Identifier: Apache-2.0
#include "launcher/join/etcd_lease.h"

#include <algorithm>
#include <utility>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/use_awaitable.hpp>

#include "rendezvous/base/backoff.h"

namespace muster::launcher {
namespace {

namespace asio = boost::asio;
constexpr auto kTuple = asio::as_tuple(asio::use_awaitable);
constexpr Backoff::Options kBackoff{.first = Millis(100), .max = Millis(1000), .factor = 1.6, .jitter = 0.5};

}  // namespace

net::EtcdClientOptions client_options(const EtcdSettings& settings) {
  net::EtcdClientOptions out;
  for (const auto& member : settings.members) out.members.push_back({member.host, member.port});
  out.tls = settings.tls;
  // So that a silent member leaves time for another within the lease.
  out.call_timeout =
      std::clamp(Millis(settings.lease_ttl_seconds * 1000 / 4), Millis(1000), out.call_timeout);
  return out;
}

EtcdLease::EtcdLease(asio::io_context& io, net::EtcdClient& client, std::int64_t ttl_seconds,
                     Callbacks callbacks)
    : client_(client), ttl_seconds_(ttl_seconds), callbacks_(std::move(callbacks)), renewal_(io), end_(io) {}

asio::awaitable<Result<void>> EtcdLease::grant() {
  const auto self = shared_from_this();
  const Instant asked = SteadyClock::now();
  const auto granted = co_await client_.grant(ttl_seconds_);
  if (!granted) co_return fail(granted.error());
  id_ = granted->id;
  clock_ = etcd::LeaseClock(asked, granted->ttl_seconds);
  doubtful_ = false;
  arm();
  co_return Result<void>{};
}

asio::awaitable<void> EtcdLease::keep() {
  const auto self = shared_from_this();
  const etcd::LeaseId id = id_;
  Backoff backoff(kBackoff, static_cast<std::uint64_t>(id));
  Instant next = clock_.renew_at();
  while (id_ == id) {
    renewal_.expires_at(next);
    co_await renewal_.async_wait(kTuple);
    if (id_ != id) co_return;
    const Instant asked = SteadyClock::now();
    const auto left = co_await client_.keep_alive(id);
    if (id_ != id) co_return;
    if (!left) {
      next = SteadyClock::now() + backoff.next();
      if (const auto call = callbacks_.failed) call(left.error());
      continue;
    }
    if (*left == 0) {
      forget();
      if (const auto call = callbacks_.ended) call();
      co_return;
    }
    clock_.renewed(asked, *left);
    arm();
    backoff = Backoff(kBackoff, static_cast<std::uint64_t>(id));
    next = clock_.renew_at();
    if (const auto call = callbacks_.renewed) call();
    if (const auto call = callbacks_.trusted; call && std::exchange(doubtful_, false)) call();
  }
}

void EtcdLease::arm() {
  end_.expires_at(clock_.over_at());
  end_.async_wait([weak = weak_from_this()](const auto& error) {
    const auto self = weak.lock();
    if (error || !self) return;
    self->doubtful_ = true;
    if (const auto call = self->callbacks_.doubtful) call();
  });
}

void EtcdLease::forget() {
  id_ = 0;
  renewal_.cancel();
  end_.cancel();
}

void EtcdLease::close() {
  callbacks_ = {};
  forget();
}

}  // namespace muster::launcher
