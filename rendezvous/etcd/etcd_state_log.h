// SPDX-License-Identifier: Apache-2.0
// EtcdStateLog: one job's state on its way to etcd instead of to a disk, for one term of its coordinator. The
// whole record is written each time, one write after another: what changed meanwhile goes with the next. As
// long as a change is not written nothing that follows from it is said (StateLog). Owned by EtcdSeat and the
// ControlServer; one loop, one thread. Failure: the writer's, who does not say `written` then, so that
// nothing is announced in a term that is over.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <boost/asio/io_context.hpp>

#include "rendezvous/wal/state_log.h"

namespace muster::net {

class EtcdStateLog final : public StateLog,
                           private journal::Recorder,
                           public std::enable_shared_from_this<EtcdStateLog> {
 public:
  /// Nothing: the job is forgotten.
  using State = std::optional<JobRecord>;
  using Write = std::function<void(const State&, std::function<void()> written)>;

  /// `record`: what the coordinator goes on with.
  EtcdStateLog(boost::asio::io_context& loop, std::string job, State record, Write write);

  /// Writes what there is, though nothing has changed.
  void renew() {
    if (record_) changed();
  }

  SavedState& saved() override { return saved_; }
  journal::Recorder& recorder() override { return *this; }
  void attach(StateKeeper& keeper) override { keepers_.push_back(&keeper); }
  void detach(StateKeeper& keeper) override { std::erase(keepers_, &keeper); }
  const bool& dirty() const override { return dirty_; }
  /// Nothing more is written.
  void close() override { closed_ = true; }
  bool stalled() const override { return writing_; }
  /// etcd is no place for what workers put into a store at every step.
  bool keeps_hosted() const override { return false; }

 private:
  void job(std::string_view name, const JobRecord& record) override;
  void job_finished(std::string_view name, const membership::NodeId& node) override;
  void job_progress(std::string_view name, const JobProgress& progress) override;
  void job_left(std::string_view name, const membership::NodeId& node) override;
  void job_forgotten(std::string_view name) override;
  // The store that shares the coordinator's port is not kept.
  void set(std::string_view, std::string_view) override {}
  void append(std::string_view, std::string_view) override {}
  void erase(std::string_view) override {}
  void push(std::string_view, std::string_view) override {}
  void pop(std::string_view) override {}
  void hosted_began(std::string_view, std::int64_t, std::uint64_t) override {}
  void hosted_ended(std::uint64_t) override {}
  void hosted_changed(std::uint64_t, const StoreChange&) override {}
  void hosted_done(std::uint64_t, const ChannelName&, const ChannelMark&) override {}
  void hosted_gone(std::uint64_t, const ChannelName&) override {}

  void changed();
  void write();
  void on_written();

  boost::asio::io_context& loop_;
  std::string name_;
  State record_;
  Write write_;
  SavedState saved_;
  std::vector<StateKeeper*> keepers_;
  bool dirty_ = false;
  bool writing_ = false;
  bool changed_ = false;  // since the write under way began
  bool closed_ = false;
};

}  // namespace muster::net
