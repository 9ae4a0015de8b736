// SPDX-License-Identifier: Apache-2.0
// On a GPU: small batches by muster's own kernels, the others by cuBLASLt where it is there.
#include <utility>

#include "rendezvous/base/fail.h"
#include "worker_runtime/device/cuda/cuda_blas.h"
#include "worker_runtime/device/cuda/cuda_device.h"
#include "worker_runtime/ops/linear/linear.h"
#include "worker_runtime/ops/portable.h"

namespace muster::nn::cuda {
namespace {

using muster::cuda::CudaBlas;

/// Bytes of scratch a product may use: what cuBLAS itself takes on Hopper.
constexpr std::size_t kGemmWorkspace = std::size_t{32} << 20;
/// Of every pointer, so that cuBLAS may choose an algorithm that loads four floats at once. Arenas are cut
/// from allocations (256 bytes) at multiples of 32 bytes at least.
constexpr std::uint32_t kGemmAlignment = kLoadBytes;

/// D (rows x columns) = op(A) op(B), column-major as cuBLAS sees memory.
struct GemmShape {
  cublasOperation_t op_a = CUBLAS_OP_N, op_b = CUBLAS_OP_N;
  std::int64_t rows = 0, columns = 0, inner = 0;
  std::int64_t lda = 0, ldb = 0, ldd = 0;
  cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  DType from = DType::kFloat32, to = DType::kFloat32;  // of A and B; of D and the bias
};

/// One cuBLASLt product of fixed shape with its epilogue and chosen algorithm. Sums are float32; float32
/// inputs are rounded to TF32 where that is asked for. Built once per shape before the first step; run() only
/// enqueues, so it can be captured. Failure: the library's words, or kUnsupported where cuBLASLt has no
/// algorithm for a shape; the caller then keeps muster's own kernel.
class GemmPlan {
 public:
  [[nodiscard]] static Result<std::unique_ptr<GemmPlan>> make(const CudaBlas& blas, const GemmShape& shape,
                                                              bool tf32) {
    auto plan = std::make_unique<GemmPlan>(blas);
    MUSTER_OK(blas.check(
        blas.desc_create(&plan->desc_, tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F, CUDA_R_32F),
        "cublasLtMatmulDescCreate"));
    MUSTER_OK(plan->set(CUBLASLT_MATMUL_DESC_TRANSA, shape.op_a));
    MUSTER_OK(plan->set(CUBLASLT_MATMUL_DESC_TRANSB, shape.op_b));
    MUSTER_OK(plan->set(CUBLASLT_MATMUL_DESC_EPILOGUE, shape.epilogue));
    plan->has_bias_ = shape.epilogue != CUBLASLT_EPILOGUE_DEFAULT;
    const auto layout = [&](cublasLtMatrixLayout_t* made, DType dtype, cublasOperation_t op,
                            std::int64_t rows, std::int64_t columns, std::int64_t ld) {
      if (op != CUBLAS_OP_N) std::swap(rows, columns);  // a layout describes memory, before op
      const cudaDataType_t type = dtype == DType::kBFloat16  ? CUDA_R_16BF
                                  : dtype == DType::kFloat16 ? CUDA_R_16F
                                                             : CUDA_R_32F;
      return blas.check(blas.layout_create(made, type, static_cast<std::uint64_t>(rows),
                                           static_cast<std::uint64_t>(columns), ld),
                        "cublasLtMatrixLayoutCreate");
    };
    MUSTER_OK(layout(&plan->a_, shape.from, shape.op_a, shape.rows, shape.inner, shape.lda));
    MUSTER_OK(layout(&plan->b_, shape.from, shape.op_b, shape.inner, shape.columns, shape.ldb));
    MUSTER_OK(layout(&plan->d_, shape.to, CUBLAS_OP_N, shape.rows, shape.columns, shape.ldd));
    MUSTER_OK(plan->choose(shape));
    return plan;
  }
  explicit GemmPlan(const CudaBlas& blas) : blas_(blas) {}
  GemmPlan& operator=(GemmPlan&&) = delete;  // nor copied
  ~GemmPlan() {
    for (const cublasLtMatrixLayout_t layout : {a_, b_, d_})
      if (layout != nullptr) blas_.layout_destroy(layout);
    if (desc_ != nullptr) blas_.desc_destroy(desc_);
  }

  /// All at multiples of kGemmAlignment. `bias` is read or written as the epilogue says; ignored without one.
  [[nodiscard]] Result<void> run(const void* a, const void* b, void* d, const void* bias, void* workspace,
                                 cudaStream_t stream) {
    if (has_bias_) MUSTER_OK(set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias));
    const float one = 1.0F, zero = 0.0F;
    return blas_.check(blas_.matmul(blas_.handle(), desc_, &one, a, a_, b, b_, &zero, d, d_, d, d_, &algo_,
                                    workspace, kGemmWorkspace, stream),
                       "cublasLtMatmul");
  }

 private:
  template <class Value>
  [[nodiscard]] Result<void> set(cublasLtMatmulDescAttributes_t name, const Value& value) {
    return blas_.check(blas_.desc_set(desc_, name, &value, sizeof value), "cublasLtMatmulDescSetAttribute");
  }

  [[nodiscard]] Result<void> choose(const GemmShape& shape) {
    cublasLtMatmulPreference_t raw = nullptr;
    MUSTER_OK(blas_.check(blas_.preference_create(&raw), "cublasLtMatmulPreferenceCreate"));
    const std::unique_ptr<cublasLtMatmulPreferenceOpaque_t, decltype(blas_.preference_destroy)> preference(
        raw, blas_.preference_destroy);
    MUSTER_OK(blas_.check(blas_.preference_set(raw, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &kGemmWorkspace,
                                               sizeof kGemmWorkspace),
                          "cublasLtMatmulPreferenceSetAttribute"));
    for (const auto name :
         {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
          CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
      MUSTER_OK(blas_.check(blas_.preference_set(raw, name, &kGemmAlignment, sizeof kGemmAlignment),
                            "cublasLtMatmulPreferenceSetAttribute"));
    // The heuristic takes the bias' alignment from its address and does not read it.
    if (has_bias_)
      MUSTER_OK(set(CUBLASLT_MATMUL_DESC_BIAS_POINTER,
                    reinterpret_cast<const void*>(std::uintptr_t{kGemmAlignment})));
    cublasLtMatmulHeuristicResult_t result{};
    int found = 0;
    const cublasStatus_t status =
        blas_.get_heuristic(blas_.handle(), desc_, a_, b_, d_, d_, raw, 1, &result, &found);
    if (status == CUBLAS_STATUS_NOT_SUPPORTED || (status == CUBLAS_STATUS_SUCCESS && found == 0))
      return fail(ErrorCode::kUnsupported,
                  "cuBLASLt has no algorithm for a product of {}x{} and {}x{} with epilogue {}", shape.rows,
                  shape.inner, shape.inner, shape.columns, static_cast<int>(shape.epilogue));
    MUSTER_OK(blas_.check(status, "cublasLtMatmulAlgoGetHeuristic"));
    MUSTER_OK(blas_.check(result.state, "cublasLtMatmulAlgoGetHeuristic result"));
    algo_ = result.algo;
    return {};
  }

  const CudaBlas& blas_;
  cublasLtMatmulDesc_t desc_ = nullptr;
  cublasLtMatrixLayout_t a_ = nullptr, b_ = nullptr, d_ = nullptr;
  bool has_bias_ = false;
  cublasLtMatmulAlgo_t algo_{};
};

struct OwnLinear : PreparedLinear {
  OwnLinear(Device& on, const LinearShape& of) : device(&on), shape(of) {}
  void forward(const void* x, const void* w, const void* b, void* y, bool relu,
               void* /*workspace*/) override {
    device->report_cuda(linear_forward(shape, x, w, b, y, relu, device->stream()), "linear");
  }
  void backward(const void* x, const void* w, const void* y, void* dy, void* dx, float* dw, float* db,
                bool relu, void* /*workspace*/) override {
    device->report_cuda(linear_backward(shape, x, w, y, dy, dx, dw, db, relu, device->stream()),
                        "linear backward");
  }

  Device* device;
  LinearShape shape;
};

/// A row-major (r, c) matrix is to cuBLAS a column-major (c, r) one. Tensors that are not aligned as the
/// plans promise cost speed, no error: muster's own kernels take every pointer.
struct BlasLinear final : OwnLinear {
  using OwnLinear::OwnLinear;
  static Result<std::unique_ptr<PreparedLinear>> make(Device& device, const CudaBlas& blas,
                                                      const LinearShape& shape) {
    const std::int64_t m = shape.batch, k = shape.in_features, n = shape.out_features;
    // y^T (n x m) = w (n x k) x^T (k x m); dx^T (k x m) = w^T (k x n) dy^T (n x m); dw^T (k x n) = x^T (k x
    // m) dy (m x n), and db = columns of dy summed.
    const DType type = shape.dtype;
    const GemmShape forward{CUBLAS_OP_T, CUBLAS_OP_N, n, m, k, k, k, n, CUBLASLT_EPILOGUE_BIAS, type, type};
    const GemmShape data{CUBLAS_OP_N, CUBLAS_OP_N, k, m, n, k, n, k, CUBLASLT_EPILOGUE_DEFAULT, type, type};
    GemmShape weights{CUBLAS_OP_N, CUBLAS_OP_T, k, n, m, k, n, k, CUBLASLT_EPILOGUE_BGRADB, type};
    auto made = std::make_unique<BlasLinear>(device, shape);
    made->workspace_bytes = kGemmWorkspace;
    made->backend = "cuBLASLt";
    const bool tf32 = device.options().matmul_tf32;
    MUSTER_TRY(made->output, GemmPlan::make(blas, forward, tf32));
    MUSTER_TRY(made->data, GemmPlan::make(blas, data, tf32));
    auto planned = GemmPlan::make(blas, weights, tf32);
    made->sums_bias = planned.has_value();
    weights.epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    if (!made->sums_bias) planned = GemmPlan::make(blas, weights, tf32);
    MUSTER_TRY(made->weights, std::move(planned));
    return made;
  }

  void forward(const void* x, const void* w, const void* b, void* y, bool relu, void* workspace) override {
    if (!are_aligned({x, w, b, y})) return OwnLinear::forward(x, w, b, y, relu, workspace);
    report(output->run(w, x, y, b, workspace, stream()));
    // Not cuBLASLt's ReLU, which makes 0 of a NaN: a model that diverged would have a finite loss.
    if (relu) mask(y, y);
  }
  void backward(const void* x, const void* w, const void* y, void* dy, void* dx, float* dw, float* db,
                bool relu, void* workspace) override {
    if (!are_aligned({x, w, dy, dx, dw, db}))
      return OwnLinear::backward(x, w, y, dy, dx, dw, db, relu, workspace);
    if (relu) mask(y, dy);
    report(weights->run(x, dy, dw, db, workspace, stream()));
    if (!sums_bias) device->report_cuda(bias_gradient(shape, dy, db, stream()), "linear backward (bias)");
    if (dx != nullptr) report(data->run(w, dy, dx, nullptr, workspace, stream()));
  }

  /// values (batch, out_features) where y is positive, else 0.
  void mask(const void* y, void* values) const {
    const std::int64_t count = std::int64_t{shape.batch} * shape.out_features;
    device->report_cuda(relu_backward(shape.dtype, y, values, values, count, stream()), "linear (relu)");
  }
  cudaStream_t stream() const { return static_cast<cudaStream_t>(device->stream()); }
  void report(const Result<void>& done) const {
    if (!done) device->report(done.error());
  }

  std::unique_ptr<GemmPlan> output, data, weights;
  bool sums_bias = false;  // false where cuBLASLt has no algorithm that does
};

}  // namespace

std::unique_ptr<PreparedLinear> prepare_linear(Device& device, const LinearShape& shape) {
  if (shape.batch > kSmallBatch) {
    if (const auto* const blas = static_cast<muster::cuda::CudaDevice&>(device).blas(); blas != nullptr) {
      // Without an algorithm for this shape: ours computes every shape.
      auto made = BlasLinear::make(device, *blas, shape);
      (void)cudaGetLastError();  // what it tried in vain is no error of the next launch
      if (made) return *std::move(made);
    }
  }
  return std::make_unique<OwnLinear>(device, shape);
}

}  // namespace muster::nn::cuda
