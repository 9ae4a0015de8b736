// SPDX-License-Identifier: Apache-2.0
// The three passes of one convolution shape as execution plans of cuDNN 9's graph interface: operation graph,
// heuristic mode A (then its fallback list), the first engine that is allowed and builds, or the fastest of
// the first ones. All tensors in ConvShape's format, sums in float32; engines that use Winograd or FFT are
// passed over. Built once per shape before the first step, which then only enqueues. Source: cudnn_graph.h of
// cuDNN 9.19; PyTorch's filterEngineConfigs (Conv_v8.cpp).
#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "rendezvous/base/fail.h"
#include "worker_runtime/device/cuda/cuda_device.h"
#include "worker_runtime/device/cuda/cuda_dnn.h"
#include "worker_runtime/ops/cast/cast.h"
#include "worker_runtime/ops/conv2d/cuda_conv2d.h"

namespace muster::nn::cuda {
namespace {

using muster::cuda::CudaDevice;
using muster::cuda::CudaDnn;
using muster::cuda::DnnDescriptor;

// Names of the tensors in the graph and in the variant pack.
enum TensorId : std::int64_t { kX = 1, kW = 2, kY = 3 };

// Engines the heuristic proposes; each is tried until one builds.
constexpr std::int64_t kMaxCandidates = 32;
// Of so many of them the fastest is found out.
constexpr std::size_t kTimed = 4;
// What plans promise cuDNN of every pointer, so that it may choose engines that load four floats at once.
// Arenas and activations of muster's models keep it, as they are cut from allocations (256 bytes) at
// multiples of 64 bytes.
constexpr std::int64_t kConvAlignment = kLoadBytes;
// Plans that want more scratch than this are passed over.
constexpr std::int64_t kMaxWorkspace = std::int64_t{512} << 20;

/// A tensor of four dimensions, packed.
Result<DnnDescriptor> tensor(const CudaDnn& dnn, std::int64_t id, const TensorFormat& format,
                             std::array<std::int64_t, 4> dims) {
  MUSTER_TRY(DnnDescriptor made, DnnDescriptor::make(dnn, CUDNN_BACKEND_TENSOR_DESCRIPTOR));
  const cudnnDataType_t type = format.dtype == DType::kBFloat16  ? CUDNN_DATA_BFLOAT16
                               : format.dtype == DType::kFloat16 ? CUDNN_DATA_HALF
                                                                 : CUDNN_DATA_FLOAT;
  std::array<std::int64_t, 4> strides{dims[1] * dims[2] * dims[3], dims[2] * dims[3], dims[3], 1};
  if (format.layout == Layout::kNHWC) strides = {strides[0], 1, dims[3] * dims[1], dims[1]};
  MUSTER_OK(made.set(CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type));
  MUSTER_OK(made.set(CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, dims.data()));
  MUSTER_OK(made.set(CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, strides.data()));
  MUSTER_OK(made.set(CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &id));
  MUSTER_OK(made.set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &kConvAlignment));
  MUSTER_OK(made.finalize());
  return made;
}

Result<DnnDescriptor> convolution(const CudaDnn& dnn, const ConvShape& shape) {
  MUSTER_TRY(DnnDescriptor made, DnnDescriptor::make(dnn, CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR));
  const cudnnDataType_t compute = CUDNN_DATA_FLOAT;
  const cudnnConvolutionMode_t mode = CUDNN_CROSS_CORRELATION;
  const std::int64_t dims = 2;
  const std::array<std::int64_t, 2> padding{shape.padding, shape.padding}, stride{shape.stride, shape.stride},
      dilation{1, 1};
  MUSTER_OK(made.set(CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_TYPE_INT64, 1, &dims));
  MUSTER_OK(made.set(CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &compute));
  MUSTER_OK(made.set(CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, 1, &mode));
  MUSTER_OK(made.set(CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_TYPE_INT64, 2, padding.data()));
  MUSTER_OK(made.set(CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, CUDNN_TYPE_INT64, 2, padding.data()));
  MUSTER_OK(made.set(CUDNN_ATTR_CONVOLUTION_DILATIONS, CUDNN_TYPE_INT64, 2, dilation.data()));
  MUSTER_OK(made.set(CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, CUDNN_TYPE_INT64, 2, stride.data()));
  MUSTER_OK(made.finalize());
  return made;
}

/// One pass' operation: the roles are the same, the attributes' numbers are not.
struct PassNames {
  std::string_view name;
  cudnnBackendDescriptorType_t type;
  cudnnBackendAttributeName_t x, w, y, conv, alpha, beta;
};

constexpr std::array<PassNames, 3> kPasses{
    {{"forward", CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
      CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
      CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
      CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA},
     {"backward data", CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
      CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
      CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
      CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA},
     {"backward filter", CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
      CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
      CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
      CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA}}};

bool is_allowed_engine(const CudaDnn& dnn, const DnnDescriptor& config, const ComputeOptions& options,
                       DType dtype) {
  auto engine = DnnDescriptor::make(dnn, CUDNN_BACKEND_ENGINE_DESCRIPTOR);
  if (!engine) return false;
  cudnnBackendDescriptor_t raw = engine->get();
  std::int64_t count = 0;
  if (dnn.get_attribute(config.get(), CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &count,
                        &raw) != CUDNN_STATUS_SUCCESS)
    return false;
  std::array<cudnnBackendNumericalNote_t, CUDNN_NUMERICAL_NOTE_TYPE_COUNT> list{};
  if (dnn.get_attribute(raw, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE,
                        static_cast<std::int64_t>(list.size()), &count, list.data()) != CUDNN_STATUS_SUCCESS)
    return false;
  // A newer library may know notes this header does not and count them too.
  count = std::clamp<std::int64_t>(count, 0, static_cast<std::int64_t>(list.size()));
  EngineNotes notes;
  for (const auto note : std::span(list).first(static_cast<std::size_t>(count))) {
    if (note == CUDNN_NUMERICAL_NOTE_TENSOR_CORE)
      notes.tensor_cores = true;
    else if (note == CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC)
      notes.nondeterministic = true;
    else if (note != CUDNN_NUMERICAL_NOTE_STRICT_NAN_PROP)
      notes.approximate = true;
  }
  return is_allowed(notes, options.deterministic, options.conv_tf32 || dtype != DType::kFloat32);
}

struct Proposed {
  int place;  // among all that the heuristic proposes
  std::int64_t workspace_bytes;
  DnnDescriptor plan;
};

/// Builds the first `most` acceptable engine configurations that `mode` proposes, or the one at `place`
/// alone; what the plans refer to goes to `parts`.
Result<std::vector<Proposed>> propose(const CudaDnn& dnn, const DnnDescriptor& graph,
                                      cudnnBackendHeurMode_t mode, const ComputeOptions& options, DType dtype,
                                      std::size_t most, std::optional<int> place,
                                      std::vector<DnnDescriptor>& parts) {
  MUSTER_TRY(DnnDescriptor heuristic, DnnDescriptor::make(dnn, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR));
  MUSTER_OK(heuristic.set(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph));
  MUSTER_OK(heuristic.set(CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode));
  MUSTER_OK(heuristic.finalize());
  std::vector<DnnDescriptor> configs;
  std::vector<cudnnBackendDescriptor_t> raw;
  for (std::int64_t i = 0; i < kMaxCandidates; ++i) {
    MUSTER_TRY(DnnDescriptor config, DnnDescriptor::make(dnn, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR));
    raw.push_back(config.get());
    configs.push_back(std::move(config));
  }
  std::int64_t found = 0;
  MUSTER_OK(dnn.check(dnn.get_attribute(heuristic.get(), CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                        CUDNN_TYPE_BACKEND_DESCRIPTOR, kMaxCandidates, &found, raw.data()),
                      "cudnnBackendGetAttribute heuristic results"));
  cudnnHandle_t handle = dnn.handle();
  std::vector<Proposed> proposed;
  for (int i = 0; i < std::min(found, kMaxCandidates) && proposed.size() < most; ++i) {
    DnnDescriptor& config = configs[static_cast<std::size_t>(i)];
    if (place.value_or(i) != i || !is_allowed_engine(dnn, config, options, dtype)) continue;
    MUSTER_TRY(DnnDescriptor plan, DnnDescriptor::make(dnn, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR));
    MUSTER_OK(plan.set(CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle));
    MUSTER_OK(plan.set(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config));
    if (!plan.finalize()) continue;  // proposed, but not for this GPU or shape
    std::int64_t workspace = 0, count = 0;
    MUSTER_OK(dnn.check(dnn.get_attribute(plan.get(), CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE,
                                          CUDNN_TYPE_INT64, 1, &count, &workspace),
                        "cudnnBackendGetAttribute workspace"));
    if (workspace > kMaxWorkspace) continue;
    parts.push_back(std::move(config));
    proposed.push_back({i, workspace, std::move(plan)});
  }
  parts.push_back(std::move(heuristic));
  if (!proposed.empty()) return proposed;
  return fail(ErrorCode::kUnsupported, "none of the {} engines cuDNN proposes is allowed and builds", found);
}

Result<void> execute(const CudaDnn& dnn, const DnnDescriptor& plan, std::array<const void*, 3> pointers,
                     void* workspace) {
  MUSTER_TRY(DnnDescriptor pack, DnnDescriptor::make(dnn, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR));
  const std::array<std::int64_t, 3> ids{kX, kW, kY};
  MUSTER_OK(pack.set(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, 3, pointers.data()));
  MUSTER_OK(pack.set(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, 3, ids.data()));
  MUSTER_OK(pack.set(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &workspace));
  MUSTER_OK(pack.finalize());
  return dnn.check(dnn.execute(dnn.handle(), plan.get(), pack.get()), "cudnnBackendExecute");
}

/// Milliseconds of each plan, on tensors of zeros; below 0: it failed. Not during a capture.
std::vector<float> time_plans(const CudaDnn& dnn, const std::vector<Proposed>& plans, const ConvShape& s,
                              cudaStream_t stream) {
  constexpr int kRuns = 5;
  const auto bytes = [&s](std::int64_t a, std::int64_t b, std::int64_t c, std::int64_t d) {
    return static_cast<std::size_t>(a * b * c * d) * size_of(s.format.dtype);
  };
  std::size_t workspace_bytes = 0;
  for (const Proposed& each : plans)
    workspace_bytes = std::max(workspace_bytes, static_cast<std::size_t>(each.workspace_bytes));
  const std::array<std::size_t, 4> sizes{bytes(s.batch, s.in_channels, s.height, s.width),
                                         bytes(s.out_channels, s.in_channels, s.kernel, s.kernel),
                                         bytes(s.batch, s.out_channels, s.out_height(), s.out_width()),
                                         workspace_bytes + 1};
  std::array<void*, 4> memory{};
  std::array<cudaEvent_t, 2> events{};
  std::vector<float> times(plans.size(), -1.0F);
  bool ready = true;
  for (std::size_t i = 0; i < sizes.size(); ++i)
    ready = ready && cudaMalloc(&memory[i], sizes[i]) == cudaSuccess &&
            cudaMemsetAsync(memory[i], 0, sizes[i], stream) == cudaSuccess;
  for (cudaEvent_t& event : events) ready = ready && cudaEventCreate(&event) == cudaSuccess;
  for (std::size_t i = 0; ready && i < plans.size(); ++i) {
    const auto run = [&] {
      return execute(dnn, plans[i].plan, {memory[0], memory[1], memory[2]}, memory[3]).has_value();
    };
    // As one graph: a call of cuDNN takes the host longer than a small convolution the GPU.
    cudaGraph_t recorded = nullptr;
    cudaGraphExec_t runs = nullptr;
    float time = 0;
    bool good = run() && cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal) == cudaSuccess;
    if (good) {
      for (int k = 0; k < kRuns; ++k) good = run() && good;
      good = cudaStreamEndCapture(stream, &recorded) == cudaSuccess && good;
    }
    if (good && cudaGraphInstantiate(&runs, recorded, 0) == cudaSuccess &&
        cudaGraphLaunch(runs, stream) == cudaSuccess && cudaEventRecord(events[0], stream) == cudaSuccess &&
        cudaGraphLaunch(runs, stream) == cudaSuccess && cudaEventRecord(events[1], stream) == cudaSuccess &&
        cudaEventSynchronize(events[1]) == cudaSuccess &&
        cudaEventElapsedTime(&time, events[0], events[1]) == cudaSuccess)
      times[i] = time / kRuns;
    if (runs != nullptr) (void)cudaGraphExecDestroy(runs);
    if (recorded != nullptr) (void)cudaGraphDestroy(recorded);
  }
  for (const cudaEvent_t event : events)
    if (event != nullptr) (void)cudaEventDestroy(event);
  for (void* const each : memory) (void)cudaFree(each);
  return times;
}

/// What the choice depends on.
std::string key_of(CudaDevice& gpu, const ConvShape& s, const PassNames& names) {
  const ComputeOptions& options = gpu.options();
  std::string key = std::string(gpu.name()) + "|cuDNN " + gpu.dnn()->version() + "|conv2d " +
                    std::string(names.name) + "|" + std::string(to_string(s.format.dtype)) +
                    (s.format.layout == Layout::kNHWC ? "|NHWC" : "") + (options.conv_tf32 ? "|TF32" : "") +
                    (options.deterministic ? "|deterministic" : "");
  for (const int number :
       {s.batch, s.in_channels, s.height, s.width, s.out_channels, s.kernel, s.stride, s.padding, s.groups})
    key += (key.back() >= '0' && key.back() <= '9' ? "x" : "|") + std::to_string(number);
  return key;
}

Result<Proposed> plan_pass(CudaDevice& gpu, const ConvShape& s, const PassNames& names,
                           std::vector<DnnDescriptor>& parts) {
  const CudaDnn& dnn = *gpu.dnn();
  MUSTER_TRY(DnnDescriptor x, tensor(dnn, kX, s.format, {s.batch, s.in_channels, s.height, s.width}));
  MUSTER_TRY(DnnDescriptor w,
             tensor(dnn, kW, s.format, {s.out_channels, s.in_channels / s.groups, s.kernel, s.kernel}));
  MUSTER_TRY(DnnDescriptor y,
             tensor(dnn, kY, s.format, {s.batch, s.out_channels, s.out_height(), s.out_width()}));
  MUSTER_TRY(DnnDescriptor conv, convolution(dnn, s));
  const float one = 1.0F, zero = 0.0F;
  MUSTER_TRY(DnnDescriptor operation, DnnDescriptor::make(dnn, names.type));
  MUSTER_OK(operation.set(names.x, x));
  MUSTER_OK(operation.set(names.w, w));
  MUSTER_OK(operation.set(names.y, y));
  MUSTER_OK(operation.set(names.conv, conv));
  MUSTER_OK(operation.set(names.alpha, CUDNN_TYPE_FLOAT, 1, &one));
  MUSTER_OK(operation.set(names.beta, CUDNN_TYPE_FLOAT, 1, &zero));
  MUSTER_OK(operation.finalize());

  MUSTER_TRY(DnnDescriptor graph, DnnDescriptor::make(dnn, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR));
  cudnnHandle_t handle = dnn.handle();
  MUSTER_OK(graph.set(CUDNN_ATTR_OPERATIONGRAPH_OPS, operation));
  MUSTER_OK(graph.set(CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle));
  MUSTER_OK(graph.finalize());
  const std::string key = key_of(gpu, s, names);
  PlanCache* const timed = gpu.options().benchmark ? &gpu.plan_cache() : nullptr;
  const auto known = timed != nullptr ? timed->find(key) : std::nullopt;
  const auto from = [&](cudnnBackendHeurMode_t mode, std::size_t most, std::optional<int> place) {
    return propose(dnn, graph, mode, gpu.options(), s.format.dtype, most, place, parts);
  };
  const std::size_t most = timed != nullptr ? kTimed : 1;
  auto plans = from(CUDNN_HEUR_MODE_A, most, known);
  const bool kept = known && plans;
  // A choice that is not there was made by something else.
  if (known && !plans) plans = from(CUDNN_HEUR_MODE_A, most, std::nullopt);
  if (!plans) plans = from(CUDNN_HEUR_MODE_FALLBACK, 1, std::nullopt);
  if (!plans) return fail(std::move(plans).error());
  std::size_t chosen = 0;
  if (!kept && plans->size() > 1)
    if (const auto best = fastest(time_plans(dnn, *plans, s, static_cast<cudaStream_t>(gpu.stream())))) {
      chosen = static_cast<std::size_t>(*best);
      timed->store(key, (*plans)[chosen].place);
    }
  for (DnnDescriptor* part : {&graph, &operation, &conv, &y, &w, &x}) parts.push_back(std::move(*part));
  return std::move((*plans)[chosen]);
}

/// A tensor that is not aligned as the plan promises costs speed, no error: muster's own kernels take every
/// pointer. A second set of plans for 4 bytes would double planning and memory for calls no layer makes.
class DnnConv final : public OwnConv {
 public:
  DnnConv(Device& device, const ConvShape& shape) : OwnConv(device, shape), format_(shape.format) {
    filter_.rank = 4;
    filter_.dims = {shape.out_channels, shape.in_channels / shape.groups, shape.kernel, shape.kernel};
    filter_.dtype = format_.dtype;
    backend = "cuDNN";
  }
  /// What is enqueued may still use the plans.
  ~DnnConv() override { (void)cudaStreamSynchronize(static_cast<cudaStream_t>(device_->stream())); }

  Result<void> plan(const ConvShape& shape) {
    auto& gpu = static_cast<CudaDevice&>(*device_);
    dnn_ = gpu.dnn();
    std::int64_t most = 0;
    for (std::size_t pass = 0; pass < kPasses.size(); ++pass) {
      MUSTER_TRY(Proposed chosen, plan_pass(gpu, shape, kPasses[pass], parts_));
      most = std::max(most, chosen.workspace_bytes);
      plans_[pass] = std::move(chosen.plan);
    }
    filter_offset_ = (static_cast<std::size_t>(most) + 255) / 256 * 256;
    const std::size_t filter_bytes = format_.dtype == DType::kFloat32 ? 0 : filter_.size_bytes();
    workspace_bytes = std::max(workspace_bytes, filter_offset_ + filter_bytes);
    return {};
  }

  void forward(const void* x, const void* w, const void* b, void* y, void* workspace) override {
    if (!are_aligned({x, w, y})) return OwnConv::forward(x, w, b, y, workspace);
    run(kForward, x, in_layout(w, workspace), y, workspace);
    if (b != nullptr) add_bias(y, b);
  }
  void backward(const void* x, const void* w, const void* dy, void* dx, float* dw, float* db,
                void* workspace) override {
    if (!are_aligned({x, w, dy, dx, dw})) return OwnConv::backward(x, w, dy, dx, dw, db, workspace);
    if (format_.dtype == DType::kFloat32) {
      run(kBackwardFilter, x, dw, dy, workspace);
    } else {  // by cuDNN in the type of x, as PyTorch's
      const Tensor half = copy_of_filter(workspace);
      run(kBackwardFilter, x, half.data, dy, workspace);
      Tensor gradient = filter_;
      gradient.data = dw;
      gradient.dtype = DType::kFloat32;
      convert(half, gradient);
    }
    if (dx != nullptr) run(kBackwardData, dx, in_layout(w, workspace), dy, workspace);
    if (db != nullptr) bias_gradient(dy, db);
  }

 private:
  enum Pass : std::size_t { kForward, kBackwardData, kBackwardFilter };

  /// A place for the filter in the plan's format, behind the plan's workspace.
  Tensor copy_of_filter(void* workspace) const {
    Tensor copy = filter_;
    copy.data = static_cast<std::uint8_t*>(workspace) + filter_offset_;
    copy.layout = format_.layout;
    return copy;
  }
  void convert(const Tensor& from, const Tensor& to) {
    device_->report_cuda(cast(conversion(from, to), device_->stream()), "conv2d (filter)");
  }
  /// The filter in the plan's layout: one of 1x1 is the same in both.
  const void* in_layout(const void* w, void* workspace) {
    if (format_.layout == Layout::kNCHW || filter_.height() == 1) return w;
    Tensor plain = filter_;
    plain.data = const_cast<void*>(w);  // is only read
    const Tensor copy = copy_of_filter(workspace);
    convert(plain, copy);
    return copy.data;
  }
  /// x, w and y stand for whichever of them and their gradients the pass reads and writes: forward x, w -> y;
  /// backward data dy (as y), w -> dx (as x); backward filter x, dy (as y) -> dw (as w). In NHWC w is
  /// (out_channels, kernel, kernel, in_channels / groups).
  void run(Pass pass, const void* x, const void* w, const void* y, void* workspace) {
    if (const auto done = execute(*dnn_, plans_[pass], {x, w, y}, workspace); !done)
      device_->report(done.error());
  }

  const CudaDnn* dnn_ = nullptr;
  // Whether a finalized plan still refers to what it was made of is not documented: all of it lives as long.
  std::vector<DnnDescriptor> parts_;
  std::array<DnnDescriptor, 3> plans_;
  TensorFormat format_;
  Tensor filter_;  // as the parameter lies in its arena; no data
  std::size_t filter_offset_ = 0;
};

}  // namespace

std::unique_ptr<PreparedConv2d> make_dnn_conv(Device& device, const ConvShape& shape) {
  auto made = std::make_unique<DnnConv>(device, shape);
  const Result<void> planned = made->plan(shape);
  (void)cudaGetLastError();  // engines that were tried in vain are no error of the next launch
  if (!planned) return nullptr;
  return made;
}

}  // namespace muster::nn::cuda
