// SPDX-License-Identifier: Apache-2.0
// RecordingDevice and RecordingGroup: a GPU that records steps, on the CPU. Device and group of the CPU
// behind faces that say kCuda; while a step is recorded they run nothing and put each call, with the
// addresses it was given, on a tape that a replay runs. What a stream capture forbids (waiting for the
// device, allocating) spoils the recording, as it does there. Fakes for the trainer's tests; one tape per
// rank.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <muster/process_group.h>

#include "tests/support/collective_group.h"
#include "worker_runtime/device/device.h"
#include "worker_runtime/device/step_graph.h"

namespace muster::testing {

struct Tape {
  using Call = std::function<Result<void>()>;

  /// True: the call was put on the tape and is not to be run.
  bool take(Call call) {
    if (recording) calls.push_back(std::move(call));
    return recording;
  }
  /// For what a capture forbids.
  void forbid(const std::string& what) {
    if (recording && spoilt.empty()) spoilt = what + " while capturing";
  }

  bool recording = false;
  std::vector<Call> calls;
  std::string spoilt;
  int records = 0, replays = 0;
  /// The recording (1: the first) that ends with an error; 0: none.
  int failing_record = 0;
  /// Reductions a recording takes before the group refuses; below 0: all.
  int reductions_until_refusal = -1;
  bool lost = false;  // the group
  /// Kernel launches and copies until one fails, as a launch does: noted, not returned; below 0: none.
  int calls_until_error = -1;
  Result<void> noted;
};

class TapeRecorder final : public StepRecorder {
 public:
  explicit TapeRecorder(std::shared_ptr<Tape> tape) : tape_(std::move(tape)) {}

  Result<void> record(std::size_t slot, const Step& step) override {
    drop(slot);
    tape_->calls.clear();
    tape_->spoilt.clear();
    tape_->recording = true;
    const Result<void> stepped = step();
    tape_->recording = false;
    ++tape_->records;
    MUSTER_OK(std::exchange(tape_->noted, Result<void>{}));  // it is the recording's
    MUSTER_OK(stepped);
    if (!tape_->spoilt.empty()) return fail(ErrorCode::kFailed, tape_->spoilt);
    if (tape_->records == tape_->failing_record) return fail(ErrorCode::kFailed, "told to fail");
    slots_[slot] = std::move(tape_->calls);
    return {};
  }
  Result<void> replay(std::size_t slot) override {
    if (slots_[slot].empty()) return fail(ErrorCode::kFailed, "replay of nothing");
    ++tape_->replays;
    for (const Tape::Call& call : slots_[slot]) MUSTER_OK(call());
    return {};
  }
  Result<void> mark(std::size_t /*which*/) override { return {}; }
  Result<void> wait(std::size_t /*which*/) override { return {}; }
  void drop(std::size_t slot) override { slots_[slot].clear(); }

 private:
  std::shared_ptr<Tape> tape_;
  std::array<std::vector<Tape::Call>, StepGraphPlan::kSlots> slots_;
};

class RecordingDevice : public Device {
 public:
  RecordingDevice(Compute inner, std::shared_ptr<Tape> tape)
      : inner_(std::move(inner)), tape_(std::move(tape)) {}

  DeviceType type() const override { return DeviceType::kCuda; }
  std::string_view name() const override { return "recording"; }
  std::unique_ptr<StepRecorder> make_step_recorder() override {
    return std::make_unique<TapeRecorder>(tape_);
  }

  Result<void*> allocate(std::size_t size_bytes) override {
    tape_->forbid("allocate");
    return inner_->allocate(size_bytes);
  }
  void copy_to_device(void* device, const void* host, std::size_t size_bytes) override {
    tape_->forbid("copy_to_device");
    if (!fails("copy_to_device")) inner_->copy_to_device(device, host, size_bytes);
  }
  void copy_to_host(void* host, const void* device, std::size_t size_bytes) override {
    tape_->forbid("copy_to_host");
    if (!fails("copy_to_host")) inner_->copy_to_host(host, device, size_bytes);
  }
  Result<void> synchronize() override {
    tape_->forbid("synchronize");
    MUSTER_OK(inner_->synchronize());
    return tape_->noted;
  }
  Result<void> status() const override { return tape_->noted; }
  void report(const Error& error) override {
    if (tape_->noted) tape_->noted = fail(error);
  }
  void enqueue(void (*work)(const void*), const void* argument) override {
    put([=] { work(argument); });
  }
  void copy_on_device(void* to, const void* from, std::size_t size_bytes) override {
    put([=, this] { inner_->copy_on_device(to, from, size_bytes); });
  }
  void zero(void* device, std::size_t size_bytes) override {
    put([=, this] { inner_->zero(device, size_bytes); });
  }

 private:
  bool fails(const char* what) {
    if (tape_->calls_until_error < 0 || tape_->calls_until_error-- > 0) return false;
    if (tape_->noted) tape_->noted = fail(ErrorCode::kFailed, std::string(what) + ": told to fail");
    return true;
  }
  template <class Call>
  void put(Call call) {
    if (fails("launch")) return;
    const auto whole = [call]() -> Result<void> {
      call();
      return {};
    };
    if (!tape_->take(whole)) call();
  }

  Compute inner_;
  std::shared_ptr<Tape> tape_;
};

class RecordingGroup final : public test::CollectiveGroup {
 public:
  RecordingGroup(ProcessGroup& inner, std::shared_ptr<Tape> tape) : inner_(inner), tape_(std::move(tape)) {}

  int rank() const override { return inner_.rank(); }
  int world_size() const override { return inner_.world_size(); }
  std::string_view backend() const override { return "recording"; }
  DeviceType device() const override { return DeviceType::kCuda; }
  Result<void> status() const override {
    if (tape_->lost) return fail(ErrorCode::kPeerGone, "rank 1 is gone");
    return {};
  }

  Result<void> all_reduce(Buffer buffer, ReduceOp op) override {
    if (!tape_->recording) return inner_.all_reduce(buffer, op);
    if (tape_->reductions_until_refusal == 0)
      return fail(ErrorCode::kInvalidArgument, "not in a captured step");
    if (tape_->reductions_until_refusal > 0) --tape_->reductions_until_refusal;
    tape_->take([this, buffer, op] { return inner_.all_reduce(buffer, op); });
    return {};
  }
  Result<std::unique_ptr<Work>> start_all_reduce(Buffer buffer, ReduceOp op) override {
    if (!tape_->recording) return inner_.start_all_reduce(buffer, op);
    MUSTER_OK(all_reduce(buffer, op));
    return std::make_unique<RecordedWork>(tape_);
  }
  Result<void> broadcast(Buffer buffer, int root) override {
    tape_->forbid("broadcast");
    return inner_.broadcast(buffer, root);
  }
  Result<void> all_gather(ConstBuffer input, Buffer output) override {
    tape_->forbid("all_gather");
    return inner_.all_gather(input, output);
  }
  Result<void> reduce_scatter(ConstBuffer input, Buffer output, ReduceOp op) override {
    tape_->forbid("reduce_scatter");
    return inner_.reduce_scatter(input, output, op);
  }
  Result<void> barrier() override {
    tape_->forbid("barrier");
    return inner_.barrier();
  }
  Result<void*> allocate(std::size_t size_bytes) override { return inner_.allocate(size_bytes); }

 private:
  /// Its events belong to the recording: waiting for them afterwards is an error.
  class RecordedWork final : public Work {
   public:
    explicit RecordedWork(std::shared_ptr<Tape> tape) : tape_(std::move(tape)) {}
    Result<void> wait() override {
      if (tape_->recording) return {};
      return fail(ErrorCode::kFailed, "a captured reduction is waited for after its capture");
    }

   private:
    std::shared_ptr<Tape> tape_;
  };

  ProcessGroup& inner_;
  std::shared_ptr<Tape> tape_;
};

}  // namespace muster::testing
