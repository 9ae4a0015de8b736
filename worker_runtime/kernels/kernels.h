// SPDX-License-Identifier: Apache-2.0
// Kernels: a device's memory and stream, and convolutions, linear layers and cross-entropy on it. Operations
// call it and know no device. tests/support/reference_kernels.h has the plain loops that each is tested
// against, within the tolerance given here (relative to the largest
// magnitude of the expected tensor). All tensors are float32, contiguous, row-major, NCHW, on the kernels'
// device. Calls are asynchronous on CUDA (one stream, in order) and complete on return on the CPU. No call
// allocates: scratch memory is reserved by the plan_* functions, once per shape, before the first step (so a
// step can be captured in a CUDA graph). Not thread-safe: one object per rank.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include <muster/dtype.h>
#include <muster/loss.h>
#include <muster/result.h>

#include "worker_runtime/core/step_recorder.h"

namespace muster::kernels {

/// Convolution: x (batch, in_channels, height, width), w (out_channels, in_channels, kernel, kernel), b
/// (out_channels), y (batch, out_channels, out_height(), out_width()).
struct ConvShape {
  int batch = 0, in_channels = 0, height = 0, width = 0, out_channels = 0, kernel = 0, stride = 1,
      padding = 0;

  [[nodiscard]] int out_height() const { return (height + 2 * padding - kernel) / stride + 1; }
  [[nodiscard]] int out_width() const { return (width + 2 * padding - kernel) / stride + 1; }
  friend bool operator==(const ConvShape&, const ConvShape&) = default;
};

/// x (batch, in_features), w (out_features, in_features), b (out_features), y (batch, out_features).
struct LinearShape {
  int batch = 0, in_features = 0, out_features = 0;
  friend bool operator==(const LinearShape&, const LinearShape&) = default;
};

/// `smoothing`: torch's label_smoothing; `scale`: on the device, the gradient is multiplied with it; nullptr:
/// not.
struct LossOptions {
  float smoothing = 0;
  const float* scale = nullptr;
};

/// Who computes the shapes that were planned.
struct PlanCounts {
  int own = 0, cublaslt = 0, cudnn = 0;
  std::string missing;  ///< why a library that was wanted could not be opened; empty: all were
};

class Kernels {
 public:
  virtual ~Kernels() = default;

  [[nodiscard]] virtual Device device() const = 0;
  /// "cpu (avx512)", "cuda (NVIDIA H100 80GB HBM3)".
  [[nodiscard]] virtual std::string_view name() const = 0;

  // Memory of the kernels' device; zeroed; 256-byte aligned. Freed with the object.
  [[nodiscard]] virtual Result<void*> allocate(std::size_t size_bytes) = 0;
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
  /// The stream the work goes to (cudaStream_t); nullptr on the CPU.
  [[nodiscard]] virtual void* stream() const { return nullptr; }
  /// Records what is enqueued on stream(); nullptr where work is done at once (CPU).
  [[nodiscard]] virtual std::unique_ptr<StepRecorder> make_step_recorder() { return nullptr; }

  // Reserve scratch and build plans for a shape. Called once per layer and batch size before its first use;
  // planning a shape again does nothing. The CPU's kernels also accept shapes nobody planned where they need
  // no scratch.
  [[nodiscard]] virtual Result<void> plan_conv2d(const ConvShape& shape) = 0;
  [[nodiscard]] virtual Result<void> plan_linear(const LinearShape& shape) = 0;
  /// All 0 where no libraries of a GPU come into question.
  [[nodiscard]] virtual PlanCounts plan_counts() const { return {}; }

  /// x[i] = (images[indices[i]] / 255 - mean) / stddev; out_labels[i] = labels[indices[i]].
  /// images (n, image_elements) and labels (n) are uint8 on the device, indices (batch) int32 on the device.
  /// 1e-6.
  virtual void gather_normalize(const std::uint8_t* images, const std::uint8_t* labels,
                                const std::int32_t* indices, int batch, int image_elements, float mean,
                                float stddev, float* x, std::int32_t* out_labels) = 0;

  /// y = conv(x, w) + b. 1e-5.
  virtual void conv2d_forward(const ConvShape& shape, const float* x, const float* w, const float* b,
                              float* y) = 0;
  /// dw, db are overwritten; dx is overwritten, or not computed when nullptr (first layer). 1e-5 (dw, db:
  /// 1e-4).
  virtual void conv2d_backward(const ConvShape& shape, const float* x, const float* w, const float* dy,
                               float* dx, float* dw, float* db) = 0;

  /// y = x w^T + b, then max(., 0) if `relu`. 1e-5.
  virtual void linear_forward(const LinearShape& shape, const float* x, const float* w, const float* b,
                              float* y, bool relu) = 0;
  /// dy is the gradient of the layer's output; with `relu` it is zeroed where y <= 0 first (in place: dy is
  /// clobbered). dw, db are overwritten; dx likewise, or not computed when nullptr. 1e-5 (dw, db: 1e-4).
  virtual void linear_backward(const LinearShape& shape, const float* x, const float* w, const float* y,
                               float* dy, float* dx, float* dw, float* db, bool relu) = 0;

  /// logits (batch, classes), labels (batch) int32. dlogits = (softmax - target) / batch, or not computed
  /// when nullptr; target: onehot, of which `smoothing` is spread over all classes. Adds to *totals (device
  /// memory). 1e-6.
  virtual void cross_entropy(const float* logits, const std::int32_t* labels, int batch, int classes,
                             float* dlogits, LossTotals* totals, const LossOptions& options) = 0;
};

/// The CPU's own vector kernels (Highway, chosen for the machine at run time) and oneDNN, whichever is faster
/// per shape.
[[nodiscard]] std::unique_ptr<Kernels> make_cpu_kernels();
/// CUDA on `device`, on a stream of its own. kUnsupported: built without CUDA; kNotFound: no driver or no
/// such GPU.
[[nodiscard]] Result<std::unique_ptr<Kernels>> make_cuda_kernels(int device);
/// GPUs that make_cuda_kernels can use; 0 without CUDA. Creates no context.
[[nodiscard]] int cuda_device_count();

}  // namespace muster::kernels
