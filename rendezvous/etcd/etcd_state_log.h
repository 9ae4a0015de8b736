// SPDX-License-Identifier: Apache-2.0
// EtcdStateLog: one job's state on its way to etcd instead of to a disk, for one term of its coordinator. The
// whole record is written each time, one write after another: what changed meanwhile goes with the next. As
// long as a change is not written nothing that follows from it is said (StateLog). Owned by EtcdSeat and the
// ControlServer; one loop, one thread. Failure: the writer's, who does not say `written` then, so that
// nothing is announced in a term that is over.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "rendezvous/base/lifetime.h"
#include "rendezvous/wal/state_log.h"

namespace muster::net {

class EtcdStateLog final : public StateLog {
 public:
  /// Nothing: the job is forgotten.
  using State = std::optional<JobRecord>;
  using Write = std::function<void(const State&, std::function<void()> written)>;

  /// `record`: what the coordinator goes on with.
  EtcdStateLog(boost::asio::io_context& loop, std::string job, State record, Write write);

  /// Writes what there is, though nothing has changed.
  void renew() {
    if (!record_.empty()) write_soon();
  }
  /// etcd is no place for what workers put into a store at every step.
  bool keeps_hosted() const override { return false; }

 private:
  bool add(const journal::LogRecord& record) override;
  void write() override;

  std::string name_;
  JobRecords record_;  // of the job, if there is one
  Write write_;
  Lifetime lifetime_;
};

}  // namespace muster::net
