// SPDX-License-Identifier: Apache-2.0
// CudaKernels: the kernels of one rank on one GPU, on one stream of its own. Small shapes run muster's own
// kernels, larger ones cuBLASLt and cuDNN where those are installed. Made by make_cuda_kernels(), used by one
// thread. The numeric calls only enqueue and return nothing: the first error is kept and reported by
// status() and synchronize().
#pragma once

#include <initializer_list>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "worker_runtime/core/cuda_blas.h"
#include "worker_runtime/kernels/cuda/conv_plan_choice.h"
#include "worker_runtime/kernels/cuda/gemm_plan.h"
#include "worker_runtime/kernels/cuda/launch.h"
#include "worker_runtime/kernels/kernels.h"

namespace muster::kernels::cuda {

class CudaKernels final : public Kernels {
 public:
  [[nodiscard]] static Result<std::unique_ptr<Kernels>> make(int device);
  ~CudaKernels() override;

  Device device() const override { return Device::kCuda; }
  std::string_view name() const override { return name_; }
  Result<void*> allocate(std::size_t size_bytes) override;
  void copy_to_device(void* device, const void* host, std::size_t size_bytes) override;
  void copy_to_host(void* host, const void* device, std::size_t size_bytes) override;
  void copy_on_device(void* to, const void* from, std::size_t size_bytes) override;
  void zero(void* device, std::size_t size_bytes) override;
  Result<void> synchronize() override;
  Result<void> status() const override { return first_error_; }
  void report(const Error& error) override { note(fail(error)); }
  void report_cuda(int error, std::string_view what) override { note(static_cast<cudaError_t>(error), what); }
  void enqueue(void (*work)(const void*), const void* argument) override {
    (void)selected();
    work(argument);
  }
  void* stream() const override { return stream_; }
  std::unique_ptr<StepRecorder> make_step_recorder() override;

  Result<void> plan_conv2d(const ConvShape& shape) override;
  Result<void> plan_linear(const LinearShape& shape) override;
  PlanCounts plan_counts() const override;

  void gather_normalize(const std::uint8_t* images, const std::uint8_t* labels, const std::int32_t* indices,
                        int batch, int image_elements, float mean, float stddev, float* x,
                        std::int32_t* out_labels) override;
  void conv2d_forward(const ConvShape& shape, const float* x, const float* w, const float* b,
                      float* y) override;
  void conv2d_backward(const ConvShape& shape, const float* x, const float* w, const float* dy, float* dx,
                       float* dw, float* db) override;
  void linear_forward(const LinearShape& shape, const float* x, const float* w, const float* b, float* y,
                      bool relu) override;
  void linear_backward(const LinearShape& shape, const float* x, const float* w, const float* y, float* dy,
                       float* dx, float* dw, float* db, bool relu) override;
  void cross_entropy(const float* logits, const std::int32_t* labels, int batch, int classes, float* dlogits,
                     LossTotals* totals, const LossOptions& options) override;

 private:
  explicit CudaKernels(int device) : device_(device) {}
  [[nodiscard]] Result<void> start();
  /// The stream, with its GPU made the thread's, as launches and the libraries need it: the thread may use
  /// several GPUs.
  [[nodiscard]] cudaStream_t selected();
  /// Keeps the first error; later calls still enqueue, their results are not used.
  void note(cudaError_t result, std::string_view call);
  void note(Result<void> result);
  /// What could not be opened, for plan_counts() and, once per process, on stderr.
  void note_missing(const char* library, const Error& error, const char* work, std::once_flag& told);
  [[nodiscard]] Result<void> reserve_workspace(std::size_t size_bytes);
  [[nodiscard]] LinearPlan* find(const LinearShape& shape);
  /// Whether cuDNN computes a call with these tensors.
  [[nodiscard]] bool is_for_dnn(const ConvShape& shape, std::initializer_list<const float*> tensors);

  struct LinearEntry {
    LinearShape shape;
    std::unique_ptr<LinearPlan> plan;  // nullptr: muster's own kernel
  };

  int device_;
  std::string name_;
  cudaStream_t stream_ = nullptr;
  std::vector<void*> allocations_;
  void* workspace_ =
      nullptr;  // of the libraries; one of allocations_, which also keeps the smaller ones before it:
  std::size_t workspace_bytes_ = 0;               // a captured step may still name them
  std::unique_ptr<muster::cuda::CudaBlas> blas_;  // opened for the first shape that wants it
  std::unique_ptr<ConvPlans> conv_plans_;         // likewise, cuDNN
  bool tried_blas_ = false, tried_dnn_ = false;
  std::vector<ConvShape> conv_shapes_;  // planned, whoever computes them
  std::vector<LinearEntry> linear_plans_;
  PlanCounts counts_;  // but for `own`, which is the rest
  Result<void> first_error_;
};

}  // namespace muster::kernels::cuda
