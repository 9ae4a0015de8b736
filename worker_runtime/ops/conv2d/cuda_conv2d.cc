// SPDX-License-Identifier: Apache-2.0
// On a GPU: shapes of few channels by muster's own kernels, since the step of a small network is bound by
// launches and a library's convolution takes several; the others by cuDNN where it is there.
#include "worker_runtime/ops/conv2d/cuda_conv2d.h"

#include <algorithm>
#include <optional>

#include "worker_runtime/device/cuda/cuda_device.h"
#ifdef MUSTER_HAS_CUDNN
#include "worker_runtime/ops/conv2d/dnn_conv_plan.h"
#endif

namespace muster::nn::cuda {
namespace {

bool is_small(const ConvShape& s) {
  return s.in_channels <= 16 && s.out_channels <= 32 && s.kernel <= 7;
}

struct OwnConv : PreparedConv2d {
  OwnConv(Device& of, const ConvShape& shape) : device(&of), own(shape) {
    workspace_bytes = own.workspace_bytes();
  }
  void forward(const float* x, const float* w, const float* b, float* y, void* /*workspace*/) override {
    device->report_cuda(own.forward(x, w, b, y, device->stream()), "conv2d");
  }
  void backward(const float* x, const float* w, const float* dy, float* dx, float* dw, float* db,
                void* workspace) override {
    void* const stream = device->stream();
    device->report_cuda(own.backward_filter(x, dy, dw, db, workspace, stream), "conv2d backward (filter)");
    if (dx != nullptr) device->report_cuda(own.backward_data(w, dy, dx, stream), "conv2d backward (data)");
  }

  Device* device;
  OwnConv2d own;
};

#ifdef MUSTER_HAS_CUDNN
/// A tensor that is not aligned as the plan promises costs speed, no error: muster's own kernels take every
/// pointer. A second set of plans for 4 bytes would double planning and memory for calls no layer makes.
struct DnnConv final : OwnConv {
  using Pass = ConvPlan::Pass;

  DnnConv(Device& of, const ConvShape& shape, ConvPlan made) : OwnConv(of, shape), plan(std::move(made)) {
    workspace_bytes = std::max(workspace_bytes, plan.workspace_bytes());
    backend = "cuDNN";
  }
  /// What is enqueued may still use the plan.
  ~DnnConv() override { (void)cudaStreamSynchronize(static_cast<cudaStream_t>(device->stream())); }

  void forward(const float* x, const float* w, const float* b, float* y, void* workspace) override {
    if (!are_aligned({x, w, y})) return OwnConv::forward(x, w, b, y, workspace);
    run(Pass::kForward, x, w, y, workspace);
    if (b != nullptr) device->report_cuda(own.add_bias(y, b, device->stream()), "conv2d (bias)");
  }
  void backward(const float* x, const float* w, const float* dy, float* dx, float* dw, float* db,
                void* workspace) override {
    if (!are_aligned({x, w, dy, dx, dw})) return OwnConv::backward(x, w, dy, dx, dw, db, workspace);
    run(Pass::kBackwardFilter, x, dw, dy, workspace);
    if (dx != nullptr) run(Pass::kBackwardData, dx, w, dy, workspace);
    if (db != nullptr)
      device->report_cuda(own.bias_gradient(dy, db, device->stream()), "conv2d backward (bias)");
  }

  static bool are_aligned(std::initializer_list<const float*> tensors) {
    return std::all_of(tensors.begin(), tensors.end(), is_conv_aligned);
  }
  void run(Pass pass, const float* x, const float* w, const float* y, void* workspace) {
    if (const Result<void> done = plan.run(pass, x, w, y, workspace); !done) device->report(done.error());
  }

  ConvPlan plan;
};
#endif

}  // namespace

std::unique_ptr<PreparedConv2d> prepare_conv2d(Device& device, const ConvShape& shape) {
  if (!is_small(shape)) {
    [[maybe_unused]] auto& gpu = static_cast<muster::cuda::CudaDevice&>(device);
    [[maybe_unused]] const auto* const dnn = gpu.dnn();
#ifdef MUSTER_HAS_CUDNN
    if (dnn != nullptr) {
      // A shape for which cuDNN has no engine that is allowed is no error: ours computes every shape.
      const ComputeOptions& o = device.options();
      auto plan = ConvPlan::make(*dnn, shape,
                                 {o.deterministic, o.conv_tf32, o.benchmark ? &gpu.plan_cache() : nullptr,
                                  device.name(), device.stream()});
      (void)cudaGetLastError();  // engines that it tried in vain are no error of the next launch
      if (plan) return std::make_unique<DnnConv>(device, shape, *std::move(plan));
    }
#endif
  }
  return std::make_unique<OwnConv>(device, shape);
}

}  // namespace muster::nn::cuda
