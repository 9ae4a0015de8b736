// SPDX-License-Identifier: Apache-2.0
#include "worker_runtime/kernels/cuda/cuda_kernels.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "worker_runtime/core/cuda_error.h"
#include "worker_runtime/core/cuda_graph.h"
#include "worker_runtime/kernels/cpu/host_kernels.h"
#include "worker_runtime/kernels/cuda/arguments.h"

namespace muster::kernels {

Result<std::unique_ptr<Kernels>> make_cuda_kernels(int device) {
  return cuda::CudaKernels::make(device);
}

int cuda_device_count() {
  return muster::cuda::device_count().value_or(0);
}

namespace cuda {

Result<std::unique_ptr<Kernels>> CudaKernels::make(int device) {
  MUSTER_TRY(const int count, muster::cuda::device_count());
  if (device < 0 || device >= count)
    return fail(ErrorCode::kNotFound, "GPU " + std::to_string(device) + ": there are " +
                                          std::to_string(count) +
                                          " GPUs here; check LOCAL_RANK and CUDA_VISIBLE_DEVICES");
  std::unique_ptr<CudaKernels> kernels(new CudaKernels(device));
  MUSTER_OK(kernels->start());
  return kernels;
}

Result<void> CudaKernels::start() {
  MUSTER_OK(muster::cuda::select(device_));
  cudaDeviceProp properties{};
  MUSTER_OK(
      muster::cuda::check(cudaGetDeviceProperties(&properties, device_), "cudaGetDeviceProperties", device_));
  name_ = std::string("cuda (") + properties.name + ")";
  // Not the legacy stream, whose implicit waiting would tie this rank to everything else in the process.
  return muster::cuda::check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate",
                             device_);
}

CudaKernels::~CudaKernels() {
  (void)cudaSetDevice(device_);
  if (stream_ != nullptr) (void)cudaStreamSynchronize(stream_);
  linear_plans_.clear();
  conv_plans_.reset();
  blas_.reset();
  for (void* block : allocations_) (void)cudaFree(block);
  if (stream_ != nullptr) (void)cudaStreamDestroy(stream_);
}

Result<void*> CudaKernels::allocate(std::size_t size_bytes) {
  MUSTER_OK(muster::cuda::select(device_));
  const std::size_t bytes = size_bytes == 0 ? 256 : size_bytes;  // cudaMalloc aligns to 256 bytes at least
  void* block = nullptr;
  MUSTER_OK(muster::cuda::check(cudaMalloc(&block, bytes),
                                "cudaMalloc of " + std::to_string(bytes) + " bytes", device_));
  allocations_.push_back(block);
  MUSTER_OK(muster::cuda::check(cudaMemsetAsync(block, 0, bytes, stream_), "cudaMemset", device_));
  return block;
}

void CudaKernels::copy_to_device(void* device, const void* host, std::size_t size_bytes) {
  if (size_bytes == 0) return;
  note(cudaMemcpyAsync(device, host, size_bytes, cudaMemcpyHostToDevice, selected()), "copy to the GPU");
  note(cudaStreamSynchronize(stream_), "copy to the GPU");  // the caller may reuse its memory, pinned or not
}

void CudaKernels::copy_to_host(void* host, const void* device, std::size_t size_bytes) {
  if (size_bytes == 0) return;
  note(cudaMemcpyAsync(host, device, size_bytes, cudaMemcpyDeviceToHost, selected()), "copy from the GPU");
  note(cudaStreamSynchronize(stream_), "copy from the GPU");
}

void CudaKernels::copy_on_device(void* to, const void* from, std::size_t size_bytes) {
  if (size_bytes != 0)
    note(cudaMemcpyAsync(to, from, size_bytes, cudaMemcpyDeviceToDevice, selected()), "copy on the GPU");
}

void CudaKernels::zero(void* device, std::size_t size_bytes) {
  if (size_bytes != 0) note(cudaMemsetAsync(device, 0, size_bytes, selected()), "cudaMemset");
}

Result<void> CudaKernels::synchronize() {
  note(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
  return first_error_;
}

std::unique_ptr<StepRecorder> CudaKernels::make_step_recorder() {
  return make_cuda_step_recorder(device_, stream_, first_error_);
}

cudaStream_t CudaKernels::selected() {
  note(muster::cuda::select(device_));
  return stream_;
}

void CudaKernels::note(cudaError_t result, std::string_view call) {
  if (result != cudaSuccess && first_error_)
    first_error_ = fail(muster::cuda::error_of(result, call, device_));
}

void CudaKernels::note(Result<void> result) {
  if (!result && first_error_) first_error_ = std::move(result);
}

Result<void> CudaKernels::reserve_workspace(std::size_t size_bytes) {
  if (size_bytes <= workspace_bytes_) return {};
  MUSTER_TRY(workspace_, allocate(size_bytes));
  workspace_bytes_ = size_bytes;
  return {};
}

void CudaKernels::note_missing(const char* library, const Error& error, const char* work,
                               std::once_flag& told) {
  counts_.missing += (counts_.missing.empty() ? "" : "; ") + error.message;
  std::call_once(told, [&] {
    std::fprintf(stderr, "muster: %s is not used: %s; muster's own kernels compute %s, more slowly\n",
                 library, error.message.c_str(), work);
  });
}

Result<void> CudaKernels::plan_conv2d(const ConvShape& shape) {
  MUSTER_OK(check_shape(shape));
  if (std::find(conv_shapes_.begin(), conv_shapes_.end(), shape) != conv_shapes_.end()) return {};
  MUSTER_OK(muster::cuda::select(device_));
  if (!is_small(shape) && !std::exchange(tried_dnn_, true)) {
    static std::once_flag told;
#ifdef MUSTER_HAS_CUDNN
    auto opened = open_conv_plans(stream_);
#else
    Result<std::unique_ptr<ConvPlans>> opened =
        fail(ErrorCode::kUnsupported, "this was built without cuDNN; build where cudnn_graph.h is found");
#endif
    if (opened)
      conv_plans_ = *std::move(opened);
    else
      note_missing("cuDNN", opened.error(), "convolutions of many channels", told);
  }
  if (!is_small(shape) && conv_plans_ != nullptr) {
    const std::size_t bytes = conv_plans_->plan(shape);
    (void)cudaGetLastError();  // engines that a library tried in vain are no error of the next launch
    MUSTER_OK(reserve_workspace(bytes));
    if (conv_plans_->has(shape)) ++counts_.cudnn;
  }
  conv_shapes_.push_back(shape);
  return {};
}

Result<void> CudaKernels::plan_linear(const LinearShape& shape) {
  MUSTER_OK(check_shape(shape));
  for (const LinearEntry& entry : linear_plans_)
    if (entry.shape == shape) return {};
  MUSTER_OK(muster::cuda::select(device_));
  if (!is_small(shape) && !std::exchange(tried_blas_, true)) {
    static std::once_flag told;
    auto opened = muster::cuda::CudaBlas::open();
    if (opened)
      blas_ = *std::move(opened);
    else
      note_missing("cuBLASLt", opened.error(), "linear layers of large batches", told);
  }
  std::unique_ptr<LinearPlan> plan;
  if (!is_small(shape) && blas_ != nullptr) {
    // Without an algorithm for this shape: ours computes every shape.
    if (auto made = LinearPlan::make(*blas_, shape)) plan = std::make_unique<LinearPlan>(*std::move(made));
    (void)cudaGetLastError();  // as above
    if (plan != nullptr) MUSTER_OK(reserve_workspace(kGemmWorkspace));
  }
  if (plan != nullptr) ++counts_.cublaslt;
  linear_plans_.push_back({shape, std::move(plan)});
  return {};
}

PlanCounts CudaKernels::plan_counts() const {
  PlanCounts counts = counts_;
  counts.own = static_cast<int>(conv_shapes_.size() + linear_plans_.size()) - counts.cudnn - counts.cublaslt;
  return counts;
}

LinearPlan* CudaKernels::find(const LinearShape& shape) {
  for (const LinearEntry& entry : linear_plans_)
    if (entry.shape == shape) return entry.plan.get();
  return nullptr;
}

void CudaKernels::gather_normalize(const std::uint8_t* images, const std::uint8_t* labels,
                                   const std::int32_t* indices, int batch, int image_elements, float mean,
                                   float stddev, float* x, std::int32_t* out_labels) {
  note(launch_gather({images, labels, indices, batch, image_elements, mean, stddev, x, out_labels},
                     selected()),
       "gather_normalize");
}

bool CudaKernels::is_for_dnn(const ConvShape& shape, std::initializer_list<const float*> tensors) {
  // A tensor that is not aligned as the plans promise costs speed, no error: muster's own kernels take every
  // pointer. A second set of plans for 4 bytes would double planning and memory for calls no layer makes.
  return conv_plans_ != nullptr && conv_plans_->has(shape) &&
         std::all_of(tensors.begin(), tensors.end(), is_conv_aligned);
}

void CudaKernels::conv2d_forward(const ConvShape& shape, const float* x, const float* w, const float* b,
                                 float* y) {
  const ConvArgs args = arguments_of(shape);
  cudaStream_t const stream = selected();
  if (!is_for_dnn(shape, {x, w, y}))
    return note(launch_conv_forward(args, x, w, b, y, stream), "conv2d_forward");
  note(conv_plans_->forward(shape, x, w, y, workspace_));
  note(launch_add_bias(y, b, args.num_outputs(), args.out_channels, args.out_height * args.out_width, stream),
       "bias");
}

void CudaKernels::conv2d_backward(const ConvShape& shape, const float* x, const float* w, const float* dy,
                                  float* dx, float* dw, float* db) {
  const ConvArgs args = arguments_of(shape);
  cudaStream_t const stream = selected();
  if (!is_for_dnn(shape, {x, w, dy, dx, dw})) {
    note(launch_conv_backward_filter(args, x, dy, dw, db, stream), "conv2d_backward (filter)");
    if (dx != nullptr) note(launch_conv_backward_data(args, w, dy, dx, stream), "conv2d_backward (data)");
    return;
  }
  note(conv_plans_->backward(shape, x, w, dy, dx, dw, workspace_));
  note(launch_conv_backward_filter(args, x, dy, nullptr, db, stream), "conv2d_backward (bias)");
}

void CudaKernels::linear_forward(const LinearShape& shape, const float* x, const float* w, const float* b,
                                 float* y, bool relu) {
  if (LinearPlan* plan = find(shape); plan != nullptr)
    return note(plan->forward(x, w, b, y, relu, workspace_, selected()));
  note(launch_linear_forward(arguments_of(shape), x, w, b, y, relu, selected()), "linear_forward");
}

void CudaKernels::linear_backward(const LinearShape& shape, const float* x, const float* w, const float* y,
                                  float* dy, float* dx, float* dw, float* db, bool relu) {
  LinearPlan* plan = find(shape);
  cudaStream_t const stream = selected();
  if (plan == nullptr)
    return note(launch_linear_backward({arguments_of(shape), x, w, y, dy, dx, dw, db, relu}, stream),
                "linear_backward");
  const std::int64_t outputs = std::int64_t{shape.batch} * shape.out_features;
  if (relu) note(launch_relu_mask(y, dy, outputs, stream), "linear_backward (mask)");
  note(plan->backward(x, w, dy, dx, dw, db, workspace_, stream));
  if (!plan->computes_bias_gradient()) {
    // The sum over samples of dy (M, N): as a convolution's bias gradient with N channels of one pixel.
    ConvArgs sums{};
    sums.batch = shape.batch;
    sums.out_channels = shape.out_features;
    sums.in_channels = sums.kernel = sums.stride = sums.height = sums.width = sums.out_height =
        sums.out_width = 1;
    note(launch_conv_backward_filter(sums, nullptr, dy, nullptr, db, stream), "linear_backward (bias)");
  }
}

void CudaKernels::cross_entropy(const float* logits, const std::int32_t* labels, int batch, int classes,
                                float* dlogits, LossTotals* totals, const LossOptions& options) {
  note(launch_cross_entropy({logits, labels, batch, classes, dlogits, options}, totals, selected()),
       "cross_entropy");
}

}  // namespace cuda
}  // namespace muster::kernels
