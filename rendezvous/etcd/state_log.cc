// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/etcd/state_log.h"

#include <utility>

namespace muster::etcd {
namespace {

constexpr Backoff::Options kWriteBackoff{.first = Millis(50), .max = Millis(1000)};
// For a job all of whose agents are gone at once, which nobody clears away.
constexpr std::int64_t kTtlSeconds = 3600;
constexpr std::chrono::minutes kRenewalInterval{10};

}  // namespace

JobStateLog::JobStateLog(boost::asio::io_context& loop, Client& client, JobKeys keys, Revision term,
                         Revision state, std::string job, std::optional<JobRecord> record, Events events)
    : StateLog(loop, {}),
      client_(client),
      keys_(std::move(keys)),
      term_(term),
      state_(state),
      name_(std::move(job)),
      events_(std::move(events)),
      backoff_(kWriteBackoff, static_cast<std::uint64_t>(term)),
      retry_(loop) {
  if (!record) return;
  recovered_.jobs.emplace(name_, *record);
  record_.emplace(name_, *std::move(record));
}

void JobStateLog::rewrite() {
  lease_ = 0;
  if (!record_.empty()) write_soon();
}

void JobStateLog::remove() {
  record_.clear();
  write_soon();
}

void JobStateLog::keep_alive() {
  if (lease_ == 0 || SteadyClock::now() < renew_at_) return;
  renew_at_ = SteadyClock::now() + kRenewalInterval;
  // A failure is no matter: the lease lasts for several of these.
  client_.ask(etcd::keep_alive(lease_), lifetime_.guard([this, id = lease_](const Result<Millis>& left) {
    if (!closed_ && lease_ == id && left && *left == Millis(0)) rewrite();
  }));
}

void JobStateLog::when_idle(std::function<void()> idle) {
  if (closed_ || !dirty()) return idle();
  idle_ = std::move(idle);
}

bool JobStateLog::close() {
  closed_ = true;
  events_ = {};
  retry_.cancel();
  if (const auto call = std::exchange(idle_, {})) call();
  return true;
}

bool JobStateLog::add(const journal::LogRecord& record) {
  const auto* change = std::get_if<JobChange>(&record);
  // A job of another id has come to the wrong coordinator; nothing of it is kept.
  if (change == nullptr || std::visit([](const auto& each) { return each.job; }, *change) != name_)
    return false;
  const bool had = !record_.empty();
  apply(*change, record_);
  // A write for each agent of a job that is over would keep the others waiting.
  return (had || !record_.empty()) && !std::holds_alternative<NodeGone>(*change);
}

void JobStateLog::write() {
  if (closed_) return;
  if (!record_.empty() && lease_ == 0)
    return client_.ask(grant(kTtlSeconds), lifetime_.guard([this](const Result<Lease>& granted) {
      if (!granted) return on_failure(granted.error());
      lease_ = granted->id;
      renew_at_ = SteadyClock::now() + kRenewalInterval;
      write();
    }));
  const Operation operation = record_.empty()
                                  ? etcd::erase(keys_.state)
                                  : etcd::put(keys_.state, encode_state(record_.begin()->second), lease_);
  // The fence on the record: a write whose answer was lost and that etcd makes later, too, undoes no other.
  client_.ask(commit({operation}, {{keys_.coordinator, term_}, {keys_.state, state_}}),
              lifetime_.guard([this, removed = record_.empty()](const Result<TxnResponse>& response) {
                on_response(response, removed);
              }));
}

void JobStateLog::on_response(const Result<TxnResponse>& response, bool removed) {
  if (closed_) return;
  if (!response) return on_failure(response.error());
  if (!response->succeeded) return find_state();
  state_ = removed ? 0 : response->revision;
  backoff_ = Backoff(kWriteBackoff, static_cast<std::uint64_t>(term_));
  on_written();
  if (!dirty())
    if (const auto call = std::exchange(idle_, {})) call();
}

// Another agent has been elected, or the record is not what it was: its lease is over, or the answer to a
// write was lost.
void JobStateLog::find_state() {
  const auto call = commit({etcd::get(keys_.coordinator), etcd::get(keys_.state)});
  client_.ask(call, lifetime_.guard([this](const Result<TxnResponse>& response) {
    if (closed_) return;
    if (!response) return on_failure(response.error());
    const auto revision = [&](std::size_t i) {
      return i < response->found.size() && !response->found[i].empty() ? response->found[i][0].revision : 0;
    };
    if (revision(0) == term_) {
      state_ = revision(1);
      return write();
    }
    const auto over = events_.term_over;  // close() comes from within, as in on_failure()
    over();
  }));
}

void JobStateLog::on_failure(const Error& error) {
  if (closed_) return;
  if (error.code == ErrorCode::kNotFound) lease_ = 0;
  lifetime_.call_at(retry_, SteadyClock::now() + backoff_.next(), [this] { write(); });
  const auto call = events_.failed;
  call(error);
}

}  // namespace muster::etcd
