// SPDX-License-Identifier: Apache-2.0
#include "worker_runtime/ops/conv2d/dnn_conv_plan.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

namespace muster::nn::cuda {
namespace {

using muster::cuda::CudaDnn;
using muster::cuda::DnnDescriptor;

// Names of the tensors in the graph and in the variant pack.
enum TensorId : std::int64_t { kX = 1, kW = 2, kY = 3 };

// Engines the heuristic proposes; each is tried until one builds.
constexpr std::int64_t kMaxCandidates = 32;
// Plans that want more scratch than this are passed over.
constexpr std::int64_t kMaxWorkspace = std::int64_t{512} << 20;

/// A float32 tensor of four dimensions, packed.
Result<DnnDescriptor> tensor(const CudaDnn& dnn, std::int64_t id, std::array<std::int64_t, 4> dims) {
  MUSTER_TRY(DnnDescriptor made, DnnDescriptor::make(dnn, CUDNN_BACKEND_TENSOR_DESCRIPTOR));
  const cudnnDataType_t type = CUDNN_DATA_FLOAT;
  const std::array<std::int64_t, 4> strides{dims[1] * dims[2] * dims[3], dims[2] * dims[3], dims[3], 1};
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

/// The attribute names of one pass' operation: same roles, other numbers.
struct OperationNames {
  cudnnBackendDescriptorType_t type;
  cudnnBackendAttributeName_t x, w, y, conv, alpha, beta;
};

OperationNames names_of(ConvPlan::Pass pass) {
  switch (pass) {
    case ConvPlan::Pass::kForward:
      return {CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
              CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
              CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
              CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y,
              CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
              CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
              CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA};
    case ConvPlan::Pass::kBackwardData:
      return {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA};
    case ConvPlan::Pass::kBackwardFilter:
      break;
  }
  return {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
          CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
          CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
          CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY,
          CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
          CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
          CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA};
}

/// What the pass' x, w and y are to the caller.
std::array<std::string_view, 3> tensors_of(ConvPlan::Pass pass) {
  if (pass == ConvPlan::Pass::kForward) return {"x", "w", "y"};
  if (pass == ConvPlan::Pass::kBackwardData) return {"dx", "w", "dy"};
  return {"x", "dw", "dy"};
}

/// True for engines within the tolerance of the tests, and deterministic.
bool is_exact_enough(const CudaDnn& dnn, const DnnDescriptor& config) {
  auto engine = DnnDescriptor::make(dnn, CUDNN_BACKEND_ENGINE_DESCRIPTOR);
  if (!engine) return false;
  cudnnBackendDescriptor_t raw = engine->get();
  std::int64_t count = 0;
  if (dnn.get_attribute(config.get(), CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &count,
                        &raw) != CUDNN_STATUS_SUCCESS)
    return false;
  std::array<cudnnBackendNumericalNote_t, CUDNN_NUMERICAL_NOTE_TYPE_COUNT> notes{};
  if (dnn.get_attribute(raw, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE,
                        static_cast<std::int64_t>(notes.size()), &count,
                        notes.data()) != CUDNN_STATUS_SUCCESS)
    return false;
  // A newer library may know notes this header does not and count them too.
  count = std::clamp<std::int64_t>(count, 0, static_cast<std::int64_t>(notes.size()));
  return std::all_of(notes.begin(), notes.begin() + count, [](cudnnBackendNumericalNote_t note) {
    return note == CUDNN_NUMERICAL_NOTE_STRICT_NAN_PROP;
  });
}

/// Builds the first acceptable engine configuration that `mode` proposes; what the plan refers to goes to
/// `parts`.
Result<DnnDescriptor> first_plan(const CudaDnn& dnn, const DnnDescriptor& graph, cudnnBackendHeurMode_t mode,
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
  for (std::int64_t i = 0; i < std::min(found, kMaxCandidates); ++i) {
    DnnDescriptor& config = configs[static_cast<std::size_t>(i)];
    if (!is_exact_enough(dnn, config)) continue;
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
    parts.push_back(std::move(heuristic));
    return plan;
  }
  return fail(ErrorCode::kUnsupported,
              "none of the " + std::to_string(found) + " engines cuDNN proposes is exact float32 and builds");
}

Result<DnnDescriptor> plan_pass(const CudaDnn& dnn, const ConvShape& s, ConvPlan::Pass pass,
                                std::vector<DnnDescriptor>& parts) {
  MUSTER_TRY(DnnDescriptor x, tensor(dnn, kX, {s.batch, s.in_channels, s.height, s.width}));
  MUSTER_TRY(DnnDescriptor w,
             tensor(dnn, kW, {s.out_channels, s.in_channels / s.groups, s.kernel, s.kernel}));
  MUSTER_TRY(DnnDescriptor y, tensor(dnn, kY, {s.batch, s.out_channels, s.out_height(), s.out_width()}));
  MUSTER_TRY(DnnDescriptor conv, convolution(dnn, s));
  const OperationNames names = names_of(pass);
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
  auto plan = first_plan(dnn, graph, CUDNN_HEUR_MODE_A, parts);
  if (!plan) plan = first_plan(dnn, graph, CUDNN_HEUR_MODE_FALLBACK, parts);
  for (DnnDescriptor* part : {&graph, &operation, &conv, &y, &w, &x}) parts.push_back(std::move(*part));
  return plan;
}

}  // namespace

Result<ConvPlan> ConvPlan::make(const CudaDnn& dnn, const ConvShape& shape) {
  ConvPlan made(dnn);
  for (const Pass pass : {Pass::kForward, Pass::kBackwardData, Pass::kBackwardFilter}) {
    MUSTER_TRY(DnnDescriptor plan, plan_pass(dnn, shape, pass, made.parts_));
    std::int64_t bytes = 0, count = 0;
    MUSTER_OK(dnn.check(dnn.get_attribute(plan.get(), CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE,
                                          CUDNN_TYPE_INT64, 1, &count, &bytes),
                        "cudnnBackendGetAttribute workspace"));
    made.workspace_bytes_ = std::max(made.workspace_bytes_, static_cast<std::size_t>(bytes));
    made.plans_[static_cast<std::size_t>(pass)] = std::move(plan);
  }
  return made;
}

Result<void> ConvPlan::run(Pass pass, const float* x, const float* w, const float* y, void* workspace) {
  // cuDNN takes all pointers alike; it writes only what the pass produces.
  const std::array<const void*, 3> pointers{x, w, y};
  for (std::size_t i = 0; i < pointers.size(); ++i)
    if (!is_conv_aligned(pointers[i]))
      return fail(ErrorCode::kInvalidArgument,
                  "convolution by cuDNN: " + std::string(tensors_of(pass)[i]) + " is not at a multiple of " +
                      std::to_string(kConvAlignment) +
                      " bytes; place it there, or let muster's own kernel compute this call");
  MUSTER_TRY(DnnDescriptor pack, DnnDescriptor::make(*dnn_, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR));
  const std::array<std::int64_t, 3> ids{kX, kW, kY};
  MUSTER_OK(pack.set(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, 3, pointers.data()));
  MUSTER_OK(pack.set(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, 3, ids.data()));
  MUSTER_OK(pack.set(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &workspace));
  MUSTER_OK(pack.finalize());
  return dnn_->check(dnn_->execute(dnn_->handle(), plans_[static_cast<std::size_t>(pass)].get(), pack.get()),
                     "cudnnBackendExecute");
}

}  // namespace muster::nn::cuda
