// SPDX-License-Identifier: Apache-2.0
// Device: memory, a stream, events and capture. cpu/ and cuda/ have one each; operations enqueue their work
// on it (ops/) and know the rest of a GPU by stream() alone. Calls are asynchronous on CUDA (one stream, in
// order) and complete on return on the CPU. Not thread-safe: one object per rank. Several of them in one
// process work.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include <muster/compute.h>

namespace muster {

struct Tracer;

/// Whether GPUs are compiled in. What is called behind `if constexpr (kHasCuda)` is declared in any case.
#ifdef MUSTER_HAS_CUDA
constexpr bool kHasCuda = true;
#else
constexpr bool kHasCuda = false;
#endif

/// Copies from the host beside the work of a device's stream, into one of two slots. Used by the device's
/// thread, destroyed before the device. Failure: the first call that failed.
class CopyStream {
 public:
  static constexpr std::size_t kSlots = 2;
  virtual ~CopyStream() = default;
  /// Enqueues a copy, once what the device's stream had to do before the slot's last release() is done. What
  /// that stream is given from now on sees it.
  [[nodiscard]] virtual Result<void> copy(std::size_t slot, void* device, const void* host,
                                          std::size_t size_bytes) = 0;
  /// What reads the slot has been given to the device's stream.
  [[nodiscard]] virtual Result<void> release(std::size_t slot) = 0;
  /// Blocks until the slot's copies are done: the host's memory is free.
  [[nodiscard]] virtual Result<void> wait(std::size_t slot) = 0;
};

/// A device's means to record what a step enqueues and to enqueue it again as one: a CUDA graph
/// (cuda_device.cc). StepGraph decides when (step_graph.h). Used by the device's thread, destroyed before the
/// device. Failure: the first call that failed, of the step or of the recording.
class StepRecorder {
 public:
  using Step = std::function<Result<void>()>;
  static constexpr std::size_t kSlots = 4;

  virtual ~StepRecorder() = default;
  StepRecorder& operator=(StepRecorder&&) = delete;  // nor copied

  /// Calls `step`, of whose work nothing runs, and keeps it as `slot` (below kSlots) in place
  /// of what was there. After a failure the slot is empty and the device takes work as before.
  [[nodiscard]] virtual Result<void> record(std::size_t slot, const Step& step) = 0;
  /// Enqueues what was recorded as `slot`.
  [[nodiscard]] virtual Result<void> replay(std::size_t slot) = 0;
  /// Puts mark 0 or 1 behind what has been enqueued, in place of its last one.
  [[nodiscard]] virtual Result<void> mark(std::size_t which) = 0;
  /// Blocks until the device has come to the mark.
  [[nodiscard]] virtual Result<void> wait(std::size_t which) = 0;
  /// Forgets it; an empty slot stays empty.
  virtual void drop(std::size_t slot) = 0;
};

/// When a device came to marks between the work it was given: the times of a GPU for the profiler. Used by
/// the device's thread, destroyed before the device.
class StreamTimer {
 public:
  struct Times {
    std::vector<std::chrono::steady_clock::time_point> marks;  // by their numbers
    std::chrono::nanoseconds error{};                          // how far all of them may be off
  };
  virtual ~StreamTimer() = default;
  /// Puts a mark behind what has been enqueued. Its number, from 0; none while a step is recorded, of which
  /// nothing runs, and after a failure, which read() returns.
  [[nodiscard]] virtual std::optional<std::size_t> mark() = 0;
  /// Likewise where a stream beside the device's comes to, which `make_wait` lets wait for work of others. In
  /// the order of the calls.
  [[nodiscard]] virtual std::optional<std::size_t> mark_after(
      const std::function<Result<void>(void* stream)>& make_wait) = 0;
  /// Forgets all marks.
  virtual void clear() = 0;
  /// Blocks until the device has come to all of them, and keeps them.
  [[nodiscard]] virtual Result<Times> read() = 0;
};

class Device {
 public:
  virtual ~Device() = default;

  [[nodiscard]] virtual DeviceType type() const = 0;
  /// "cpu (avx512)", "cuda (NVIDIA H100 80GB HBM3)".
  [[nodiscard]] virtual std::string_view name() const = 0;

  [[nodiscard]] const ComputeOptions& options() const { return options_; }

  // Memory of the device; zeroed; 256-byte aligned. Freed with the object. kExhausted, also beyond
  // ComputeOptions::memory_fraction.
  [[nodiscard]] virtual Result<void*> allocate(std::size_t size_bytes) = 0;
  template <class T>
  [[nodiscard]] Result<T*> allocate_of(std::size_t count = 1) {
    return allocate(count * sizeof(T)).map([](void* memory) { return static_cast<T*>(memory); });
  }
  /// Counts memory of the device that somebody else allocates, as a group does: kExhausted beyond the cap.
  [[nodiscard]] Result<void> claim(std::size_t size_bytes);
  void unclaim(std::size_t size_bytes) { claimed_bytes_ -= size_bytes; }
  [[nodiscard]] std::size_t claimed_bytes() const { return claimed_bytes_; }
  /// Host memory, zeroed, that copies of the device are fastest to: pinned on CUDA. From any thread; not
  /// counted. kExhausted.
  [[nodiscard]] virtual Result<std::shared_ptr<void>> allocate_host(std::size_t size_bytes);
  virtual void copy_to_device(void* device, const void* host, std::size_t size_bytes) = 0;
  virtual void copy_to_host(void* host, const void* device,
                            std::size_t size_bytes) = 0;  // waits for the copy
  /// Between two places of the device that do not overlap; enqueued like a kernel.
  virtual void copy_on_device(void* to, const void* from, std::size_t size_bytes) = 0;
  virtual void zero(void* device, std::size_t size_bytes) = 0;
  /// Waits for everything enqueued; reports the first asynchronous error.
  [[nodiscard]] virtual Result<void> synchronize() = 0;
  /// The first error of the calls so far that is known without waiting.
  [[nodiscard]] virtual Result<void> status() const = 0;
  /// Makes status() and synchronize() return this error, unless there was one before.
  virtual void report(const Error& error) = 0;
  /// report() of a cudaError_t, unless it is cudaSuccess. `what`: the call.
  virtual void report_cuda(int /*error*/, std::string_view /*what*/) {}
  /// Calls work(argument), which enqueues on stream() or computes at once. `argument` lives as long as what
  /// it enqueues may be replayed. (A pointer and no std::function: a step allocates nothing.)
  virtual void enqueue(void (*work)(const void*), const void* argument) { work(argument); }
  /// The same with a lambda without captures.
  template <class Argument, class Work>
  void enqueue_call(const Argument& argument, Work /*work*/) {
    enqueue([](const void* a) { Work()(*static_cast<const Argument*>(a)); }, &argument);
  }
  /// The stream the work goes to (cudaStream_t); nullptr on the CPU.
  [[nodiscard]] virtual void* stream() const { return nullptr; }
  /// Records what is enqueued on stream(); nullptr where work is done at once (CPU).
  [[nodiscard]] virtual std::unique_ptr<StepRecorder> make_step_recorder() { return nullptr; }
  /// nullptr where the device reads the host's memory (CPU).
  [[nodiscard]] virtual Result<std::unique_ptr<CopyStream>> make_copy_stream() { return nullptr; }
  /// nullptr where a range of the host is all there is (CPU).
  [[nodiscard]] virtual std::unique_ptr<StreamTimer> make_stream_timer() { return nullptr; }

  /// Where the steps' ranges go (tracer.h); nullptr: nowhere.
  [[nodiscard]] Tracer* tracer() const { return tracer_; }
  void set_tracer(Tracer* tracer) { tracer_ = tracer; }

 protected:
  Device() = default;
  explicit Device(const ComputeOptions& options) : options_(options) {}
  /// Of which claim() allows the fraction.
  void set_total_memory(std::size_t size_bytes);

 private:
  ComputeOptions options_;
  Tracer* tracer_ = nullptr;
  std::optional<std::size_t> cap_bytes_;
  std::size_t claimed_bytes_ = 0;
};

[[nodiscard]] Compute make_cpu_device(const ComputeOptions& options);

}  // namespace muster
