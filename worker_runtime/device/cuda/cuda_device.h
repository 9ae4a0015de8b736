// SPDX-License-Identifier: Apache-2.0
// CudaDevice: one rank's GPU, with one stream of its own, and the libraries that operations find there. Used
// by one thread. Calls only enqueue and return nothing: the first error is kept and reported by status() and
// synchronize().
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <cuda_runtime_api.h>

#include "worker_runtime/device/device.h"
#include "worker_runtime/device/plan_cache.h"

namespace muster::cuda {

class CudaBlas;
class CudaDnn;

class CudaDevice final : public Device {
 public:
  /// kNotFound: no driver or no such GPU.
  [[nodiscard]] static Result<Compute> make(int index, const ComputeOptions& options = {});
  ~CudaDevice() override;

  DeviceType type() const override { return DeviceType::kCuda; }
  std::string_view name() const override { return name_; }
  Result<void*> allocate(std::size_t size_bytes) override;
  Result<std::shared_ptr<void>> allocate_host(std::size_t size_bytes) override;
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
  Result<std::unique_ptr<CopyStream>> make_copy_stream() override;
  std::unique_ptr<StreamTimer> make_stream_timer() override;

  /// Opened on first use. nullptr: not there, as one line on stderr has said.
  [[nodiscard]] const CudaBlas* blas();
  [[nodiscard]] const CudaDnn* dnn();
  /// Read on first use.
  [[nodiscard]] PlanCache& plan_cache();

 private:
  CudaDevice(int index, const ComputeOptions& options) : Device(options), index_(index) {}
  [[nodiscard]] Result<void> start();
  /// The stream, with its GPU made the thread's, as launches and the libraries need it: the thread may use
  /// several GPUs.
  [[nodiscard]] cudaStream_t selected();
  /// Keeps the first error; later calls still enqueue, their results are not used.
  void note(cudaError_t result, std::string_view call);
  void note(Result<void> result);

  int index_;
  std::string name_;
  cudaStream_t stream_ = nullptr;
  std::vector<void*> allocations_;
  std::shared_ptr<const CudaBlas> blas_;
  std::shared_ptr<const CudaDnn> dnn_;
  std::optional<PlanCache> plan_cache_;
  bool tried_blas_ = false, tried_dnn_ = false;
  Result<void> first_error_;
};

}  // namespace muster::cuda
