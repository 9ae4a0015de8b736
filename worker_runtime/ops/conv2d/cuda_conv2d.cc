// SPDX-License-Identifier: Apache-2.0
// On a GPU: shapes of few channels by muster's own kernels, since the step of a small network is bound by
// launches and a library's convolution takes several; the others by cuDNN where it is there.
#include "worker_runtime/ops/conv2d/cuda_conv2d.h"

#include <algorithm>
#include <optional>

#include "worker_runtime/device/cuda/cuda_device.h"
#ifdef MUSTER_HAS_CUDNN
#include "worker_runtime/ops/cast/cast.h"
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
  void forward(const void* x, const void* w, const void* b, void* y, void* /*workspace*/) override {
    device->report_cuda(own.forward(x, w, b, y, device->stream()), "conv2d");
  }
  void backward(const void* x, const void* w, const void* dy, void* dx, float* dw, float* db,
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

  DnnConv(Device& of, const ConvShape& shape, ConvPlan made)
      : OwnConv(of, shape), plan(std::move(made)), format(shape.format) {
    filter.rank = 4;
    filter.dims = {shape.out_channels, shape.in_channels / shape.groups, shape.kernel, shape.kernel};
    filter.dtype = format.dtype;
    filter_offset = (plan.workspace_bytes() + 255) / 256 * 256;
    const std::size_t filter_bytes = format.dtype == DType::kFloat32 ? 0 : filter.size_bytes();
    workspace_bytes = std::max(workspace_bytes, filter_offset + filter_bytes);
    backend = "cuDNN";
  }
  /// What is enqueued may still use the plan.
  ~DnnConv() override { (void)cudaStreamSynchronize(static_cast<cudaStream_t>(device->stream())); }

  void forward(const void* x, const void* w, const void* b, void* y, void* workspace) override {
    if (!are_aligned({x, w, y})) return OwnConv::forward(x, w, b, y, workspace);
    run(Pass::kForward, x, in_layout(w, workspace), y, workspace);
    if (b != nullptr) device->report_cuda(own.add_bias(y, b, device->stream()), "conv2d (bias)");
  }
  void backward(const void* x, const void* w, const void* dy, void* dx, float* dw, float* db,
                void* workspace) override {
    if (!are_aligned({x, w, dy, dx, dw})) return OwnConv::backward(x, w, dy, dx, dw, db, workspace);
    if (format.dtype == DType::kFloat32) {
      run(Pass::kBackwardFilter, x, dw, dy, workspace);
    } else {  // by cuDNN in the type of x, as PyTorch's
      const Tensor half = copy_of_filter(workspace);
      run(Pass::kBackwardFilter, x, half.data, dy, workspace);
      Tensor gradient = filter;
      gradient.data = dw;
      gradient.dtype = DType::kFloat32;
      convert(half, gradient);
    }
    if (dx != nullptr) run(Pass::kBackwardData, dx, in_layout(w, workspace), dy, workspace);
    if (db != nullptr)
      device->report_cuda(own.bias_gradient(dy, db, device->stream()), "conv2d backward (bias)");
  }

  static bool are_aligned(std::initializer_list<const void*> tensors) {
    return std::all_of(tensors.begin(), tensors.end(), is_conv_aligned);
  }
  /// A place for the filter in the plan's format, behind the plan's workspace.
  Tensor copy_of_filter(void* workspace) const {
    Tensor copy = filter;
    copy.data = static_cast<std::uint8_t*>(workspace) + filter_offset;
    copy.layout = format.layout;
    return copy;
  }
  void convert(const Tensor& from, const Tensor& to) {
    device->report_cuda(cast(conversion(from, to), device->stream()), "conv2d (filter)");
  }
  /// The filter in the plan's layout: one of 1x1 is the same in both.
  const void* in_layout(const void* w, void* workspace) {
    if (format.layout == Layout::kNCHW || filter.height() == 1) return w;
    Tensor plain = filter;
    plain.data = const_cast<void*>(w);  // is only read
    const Tensor copy = copy_of_filter(workspace);
    convert(plain, copy);
    return copy.data;
  }
  void run(Pass pass, const void* x, const void* w, const void* y, void* workspace) {
    if (const Result<void> done = plan.run(pass, x, w, y, workspace); !done) device->report(done.error());
  }

  ConvPlan plan;
  TensorFormat format;
  Tensor filter;  // as the parameter lies in its arena; no data
  std::size_t filter_offset = 0;
};
#endif

bool uses_dnn(Device& device, const ConvShape& shape) {
  return !is_small(shape) && static_cast<muster::cuda::CudaDevice&>(device).dnn() != nullptr;
}

}  // namespace

TensorFormat conv2d_format(Device& device, const ConvShape& shape, const TensorFormat& offered) {
  if (!uses_dnn(device, shape)) return offered;
  return {offered.dtype, offered.dtype == DType::kFloat32 ? Layout::kNCHW : Layout::kNHWC};
}

std::unique_ptr<PreparedConv2d> prepare_conv2d(Device& device, const ConvShape& shape) {
#ifdef MUSTER_HAS_CUDNN
  if (uses_dnn(device, shape)) {
    // A shape for which cuDNN has no engine that is allowed is no error: ours computes every shape.
    auto& gpu = static_cast<muster::cuda::CudaDevice&>(device);
    const ComputeOptions& o = device.options();
    auto plan = ConvPlan::make(*gpu.dnn(), shape,
                               {o.deterministic, o.conv_tf32, o.benchmark ? &gpu.plan_cache() : nullptr,
                                device.name(), device.stream()});
    (void)cudaGetLastError();  // engines that it tried in vain are no error of the next launch
    if (plan) return std::make_unique<DnnConv>(device, shape, *std::move(plan));
  }
#endif
  return std::make_unique<OwnConv>(device, shape);
}

}  // namespace muster::nn::cuda
