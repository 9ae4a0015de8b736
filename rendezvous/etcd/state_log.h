// SPDX-License-Identifier: Apache-2.0
// etcd::JobStateLog: the StateLog of a coordinator whose state is in etcd, for one job and one term. Each
// write is the whole record, in a transaction that fails when another coordinator has been elected; one write
// at a time, and what changes meanwhile goes with the next. Nothing that follows from a change is sent before
// the change is written. The record has a lease of its own, longer than an agent's: it survives its writer,
// and yet does not stay for ever. Owned by Coordinator and by the server; one loop, one thread. Failure: told
// through Events; a write that failed is repeated, until the term ends.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include <boost/asio/io_context.hpp>

#include "rendezvous/base/backoff.h"
#include "rendezvous/base/lifetime.h"
#include "rendezvous/etcd/client.h"
#include "rendezvous/etcd/election.h"
#include "rendezvous/wal/state_log.h"

namespace muster::etcd {

class JobStateLog final : public net::StateLog {
 public:
  struct Events {
    std::function<void()> term_over;
    std::function<void(const Error&)> failed;  ///< the write is repeated, until close()
  };
  /// `term`: the revision of the coordinator's key; `state`: of the record in etcd, 0 for none. `record`:
  /// what the coordinator starts from, nothing for a new job. The `client` outlives close().
  JobStateLog(boost::asio::io_context& loop, Client& client, JobKeys keys, Revision term, Revision state,
              std::string job, std::optional<JobRecord> record, Events events);

  /// Writes the record again, with a new lease: it is another term's, or it is gone from etcd.
  void rewrite();
  /// Removes the record from etcd: the job is over.
  void remove();
  /// Renews the record's lease when it is time. To be called at least once in 10 minutes.
  void keep_alive();
  /// `idle` comes once, at once or later, when nothing is left to be written.
  void when_idle(std::function<void()> idle);

  /// The term is over: nothing more is written, and no event comes.
  bool close() override;
  /// etcd is no place for what workers put into a store at every step.
  bool keeps_hosted() const override { return false; }

 private:
  bool add(const journal::LogRecord& record) override;
  void write() override;
  void on_response(const Result<TxnResponse>& response, bool removed);
  void find_state();
  void on_failure(const Error& error);

  Client& client_;
  const JobKeys keys_;
  const Revision term_;
  Revision state_;  // of the record in etcd, as far as it is known
  const std::string name_;
  JobRecords record_;  // of the job, if there is one
  Events events_;
  LeaseId lease_ = 0;  // of the record
  Instant renew_at_ = Instant::max();
  Backoff backoff_;
  LoopTimer retry_;
  std::function<void()> idle_;
  Lifetime lifetime_;
};

}  // namespace muster::etcd
