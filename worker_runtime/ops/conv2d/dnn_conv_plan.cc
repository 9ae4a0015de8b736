// SPDX-License-Identifier: Apache-2.0
#include "worker_runtime/ops/conv2d/dnn_conv_plan.h"

#include <algorithm>
#include <optional>
#include <span>
#include <vector>

namespace muster::nn::cuda {
namespace {

using muster::cuda::CudaDnn;
using muster::cuda::DnnDescriptor;

// Names of the tensors in the graph and in the variant pack.
enum TensorId : std::int64_t { kX = 1, kW = 2, kY = 3 };

// Engines the heuristic proposes; each is tried until one builds.
constexpr std::int64_t kMaxCandidates = 32;
// Of so many of them the fastest is found out.
constexpr std::size_t kTimed = 4;
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
  const std::int64_t alignment = kConvAlignment;
  MUSTER_OK(made.set(CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type));
  MUSTER_OK(made.set(CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, dims.data()));
  MUSTER_OK(made.set(CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, strides.data()));
  MUSTER_OK(made.set(CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &id));
  MUSTER_OK(made.set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &alignment));
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

/// One pass' operation: the roles are the same, the attributes' numbers are not; and what its x, w and y are
/// to the caller.
struct PassNames {
  std::string_view name;
  std::array<std::string_view, 3> tensors;
  cudnnBackendDescriptorType_t type;
  cudnnBackendAttributeName_t x, w, y, conv, alpha, beta;
};

constexpr std::array<PassNames, 3> kPasses{{{"forward",
                                             {"x", "w", "y"},
                                             CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
                                             CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
                                             CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
                                             CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y,
                                             CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
                                             CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
                                             CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA},
                                            {"backward data",
                                             {"dx", "w", "dy"},
                                             CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
                                             CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
                                             CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
                                             CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY,
                                             CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
                                             CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
                                             CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA},
                                            {"backward filter",
                                             {"x", "dw", "dy"},
                                             CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
                                             CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
                                             CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
                                             CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY,
                                             CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
                                             CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
                                             CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA}}};

const PassNames& names_of(ConvPlan::Pass pass) {
  return kPasses.at(static_cast<std::size_t>(pass));
}

bool is_allowed_engine(const CudaDnn& dnn, const DnnDescriptor& config, const ConvPlanOptions& options,
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
  return is_allowed(notes, options.deterministic, options.tf32 || dtype != DType::kFloat32);
}

struct Proposed {
  int place;  // among all that the heuristic proposes
  std::int64_t workspace_bytes;
  DnnDescriptor plan;
};

/// Builds the first `most` acceptable engine configurations that `mode` proposes, or the one at `place`
/// alone; what the plans refer to goes to `parts`.
Result<std::vector<Proposed>> propose(const CudaDnn& dnn, const DnnDescriptor& graph,
                                      cudnnBackendHeurMode_t mode, const ConvPlanOptions& options,
                                      DType dtype, std::size_t most, std::optional<int> place,
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
  return fail(ErrorCode::kUnsupported,
              "none of the " + std::to_string(found) + " engines cuDNN proposes is allowed and builds");
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
std::string key_of(const CudaDnn& dnn, const ConvShape& s, const PassNames& names,
                   const ConvPlanOptions& options) {
  std::string key = std::string(options.device) + "|cuDNN " + dnn.version() + "|conv2d " +
                    std::string(names.name) + "|" + std::string(to_string(s.format.dtype)) +
                    (s.format.layout == Layout::kNHWC ? "|NHWC" : "") + (options.tf32 ? "|TF32" : "") +
                    (options.deterministic ? "|deterministic" : "");
  for (const int number :
       {s.batch, s.in_channels, s.height, s.width, s.out_channels, s.kernel, s.stride, s.padding, s.groups})
    key += (key.back() >= '0' && key.back() <= '9' ? "x" : "|") + std::to_string(number);
  return key;
}

Result<Proposed> plan_pass(const CudaDnn& dnn, const ConvShape& s, ConvPlan::Pass pass,
                           const ConvPlanOptions& options, std::vector<DnnDescriptor>& parts) {
  MUSTER_TRY(DnnDescriptor x, tensor(dnn, kX, s.format, {s.batch, s.in_channels, s.height, s.width}));
  MUSTER_TRY(DnnDescriptor w,
             tensor(dnn, kW, s.format, {s.out_channels, s.in_channels / s.groups, s.kernel, s.kernel}));
  MUSTER_TRY(DnnDescriptor y,
             tensor(dnn, kY, s.format, {s.batch, s.out_channels, s.out_height(), s.out_width()}));
  MUSTER_TRY(DnnDescriptor conv, convolution(dnn, s));
  const PassNames& names = names_of(pass);
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
  const std::string key = key_of(dnn, s, names, options);
  const auto known = options.timed != nullptr ? options.timed->find(key) : std::nullopt;
  const std::size_t most = options.timed != nullptr ? kTimed : 1;
  auto plans = propose(dnn, graph, CUDNN_HEUR_MODE_A, options, s.format.dtype, most, known, parts);
  const bool kept = known && plans;
  // A choice that is not there was made by something else.
  if (known && !plans)
    plans = propose(dnn, graph, CUDNN_HEUR_MODE_A, options, s.format.dtype, most, std::nullopt, parts);
  if (!plans)
    plans = propose(dnn, graph, CUDNN_HEUR_MODE_FALLBACK, options, s.format.dtype, 1, std::nullopt, parts);
  if (!plans) return fail(std::move(plans).error());
  std::size_t chosen = 0;
  if (!kept && plans->size() > 1)
    if (const auto best = fastest(time_plans(dnn, *plans, s, static_cast<cudaStream_t>(options.stream)))) {
      chosen = static_cast<std::size_t>(*best);
      options.timed->store(key, (*plans)[chosen].place);
    }
  for (DnnDescriptor* part : {&graph, &operation, &conv, &y, &w, &x}) parts.push_back(std::move(*part));
  return std::move((*plans)[chosen]);
}

}  // namespace

Result<ConvPlan> ConvPlan::make(const CudaDnn& dnn, const ConvShape& shape, const ConvPlanOptions& options) {
  ConvPlan made(dnn);
  for (const Pass pass : {Pass::kForward, Pass::kBackwardData, Pass::kBackwardFilter}) {
    MUSTER_TRY(Proposed chosen, plan_pass(dnn, shape, pass, options, made.parts_));
    made.workspace_bytes_ = std::max(made.workspace_bytes_, static_cast<std::size_t>(chosen.workspace_bytes));
    made.plans_[static_cast<std::size_t>(pass)] = std::move(chosen.plan);
  }
  return made;
}

Result<void> ConvPlan::run(Pass pass, const void* x, const void* w, const void* y, void* workspace) {
  // cuDNN takes all pointers alike; it writes only what the pass produces.
  const std::array<const void*, 3> pointers{x, w, y};
  for (std::size_t i = 0; i < pointers.size(); ++i)
    if (!is_conv_aligned(pointers[i]))
      return fail(ErrorCode::kInvalidArgument,
                  "convolution by cuDNN: " + std::string(names_of(pass).tensors[i]) +
                      " is not at a multiple of " + std::to_string(kConvAlignment) +
                      " bytes; place it there, or let muster's own kernel compute this call");
  return execute(*dnn_, plans_[static_cast<std::size_t>(pass)], pointers, workspace);
}

}  // namespace muster::nn::cuda
