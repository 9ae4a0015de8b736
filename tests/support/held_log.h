// SPDX-License-Identifier: Apache-2.0
// HeldLog: a state log whose disk is the test: what is recorded is on it when the test says so.
#pragma once

#include "rendezvous/wal/state_log.h"

namespace muster::test {

class HeldLog final : public net::StateLog {
 public:
  explicit HeldLog(boost::asio::io_context& loop) : StateLog(loop, {}) {}

  bool keeps_hosted() const override { return true; }
  /// A write is under way, and ends with sync().
  [[nodiscard]] bool writing() const { return writing_; }
  void sync() {
    problem_.clear();
    writing_ = false;
    on_written();
  }
  /// There is no room for what is written next, until sync().
  void fill() {
    problem_ = "the disk is full";
    write_soon();
  }

 private:
  bool add(const journal::LogRecord&) override { return true; }
  void write() override { writing_ = true; }

  bool writing_ = false;
};

}  // namespace muster::test
