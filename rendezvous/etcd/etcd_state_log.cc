// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/etcd/etcd_state_log.h"

#include <utility>

namespace muster::net {

EtcdStateLog::EtcdStateLog(boost::asio::io_context& loop, std::string job, State record, Write write)
    : StateLog(loop, {}), name_(std::move(job)), write_(std::move(write)) {
  if (!record) return;
  recovered_.jobs.emplace(name_, *record);
  record_.emplace(name_, *std::move(record));
}

bool EtcdStateLog::add(const journal::LogRecord& record) {
  const auto* change = std::get_if<JobChange>(&record);
  // A job of another id has come to the wrong coordinator; nothing of it is kept.
  if (change == nullptr || std::visit([](const auto& each) { return each.job; }, *change) != name_)
    return false;
  const bool had = !record_.empty();
  apply(*change, record_);
  // A write for each agent of a job that is over would keep the others waiting.
  return (had || !record_.empty()) && !std::holds_alternative<NodeGone>(*change);
}

void EtcdStateLog::write() {
  write_(record_.empty() ? State() : State(record_.begin()->second),
         lifetime_.guard([this] { on_written(); }));
}

}  // namespace muster::net
