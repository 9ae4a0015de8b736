// SPDX-License-Identifier: Apache-2.0
// HeldLog: a state log whose disk is the test. For one keeper.
#pragma once

#include "rendezvous/wal/state_log.h"

namespace muster::test {

class HeldLog final : public net::StateLog, public journal::Recorder {
 public:
  SavedState& saved() override { return saved_; }
  journal::Recorder& recorder() override { return *this; }
  void attach(net::StateKeeper& keeper) override { keeper_ = &keeper; }
  void detach(net::StateKeeper&) override { keeper_ = nullptr; }
  const bool& dirty() const override { return dirty_; }
  void close() override {}
  bool stalled() const override { return full_; }
  bool keeps_hosted() const override { return true; }
  void sync() {
    full_ = false;
    dirty_ = false;
    keeper_->committed();
    keeper_->go_on();
  }
  /// What is to be recorded does not fit, until sync().
  void fill() {
    full_ = dirty_ = true;
    keeper_->held_up();
  }

  void set(std::string_view, std::string_view) override { dirty_ = true; }
  void append(std::string_view, std::string_view) override { dirty_ = true; }
  void erase(std::string_view) override { dirty_ = true; }
  void push(std::string_view, std::string_view) override { dirty_ = true; }
  void pop(std::string_view) override { dirty_ = true; }
  void job(std::string_view, const JobRecord&) override { dirty_ = true; }
  void job_finished(std::string_view, const membership::NodeId&) override { dirty_ = true; }
  void job_progress(std::string_view, const JobProgress&) override { dirty_ = true; }
  void job_left(std::string_view, const membership::NodeId&) override { dirty_ = true; }
  void job_forgotten(std::string_view) override { dirty_ = true; }
  void hosted_began(std::string_view, std::int64_t, std::uint64_t) override { dirty_ = true; }
  void hosted_ended(std::uint64_t) override { dirty_ = true; }
  void hosted_changed(std::uint64_t, const StoreChange&) override { dirty_ = true; }
  void hosted_done(std::uint64_t, const ChannelName&, const ChannelMark&) override { dirty_ = true; }
  void hosted_gone(std::uint64_t, const ChannelName&) override { dirty_ = true; }

 private:
  SavedState saved_;
  net::StateKeeper* keeper_ = nullptr;
  bool dirty_ = false;
  bool full_ = false;
};

}  // namespace muster::test
