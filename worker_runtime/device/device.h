// SPDX-License-Identifier: Apache-2.0
// Device: memory, a stream, events and capture. cpu/ and cuda/ have one each; operations enqueue their work
// on it (ops/) and know the rest of a GPU by stream() alone. Calls are asynchronous on CUDA (one stream, in
// order) and complete on return on the CPU. Not thread-safe: one object per rank. Several of them in one
// process work.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string_view>

#include <muster/compute.h>

#include "worker_runtime/device/step_recorder.h"

namespace muster {

struct Tracer;

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
  /// Counts memory of the device that somebody else allocates, as a group does: kExhausted beyond the cap.
  [[nodiscard]] Result<void> claim(std::size_t size_bytes);
  void unclaim(std::size_t size_bytes) { claimed_bytes_ -= size_bytes; }
  [[nodiscard]] std::size_t claimed_bytes() const { return claimed_bytes_; }
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

}  // namespace muster
