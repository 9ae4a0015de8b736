// SPDX-License-Identifier: Apache-2.0
// On a GPU: small batches by muster's own kernels, the others by cuBLASLt where it is there.
#include "worker_runtime/ops/linear/cuda_linear.h"

#include "worker_runtime/device/cuda/cuda_device.h"
#include "worker_runtime/ops/linear/gemm_plan.h"

namespace muster::nn::cuda {
namespace {

struct OwnLinear final : PreparedLinear {
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

/// A row-major (r, c) matrix is to cuBLAS a column-major (c, r) one.
struct BlasLinear final : PreparedLinear {
  static Result<std::unique_ptr<PreparedLinear>> make(Device& device, const muster::cuda::CudaBlas& blas,
                                                      const LinearShape& shape) {
    const std::int64_t m = shape.batch, k = shape.in_features, n = shape.out_features;
    // y^T (n x m) = w (n x k) x^T (k x m); dx^T (k x m) = w^T (k x n) dy^T (n x m); dw^T (k x n) = x^T (k x
    // m) dy (m x n), and db = columns of dy summed.
    const DType type = shape.dtype;
    GemmShape forward{CUBLAS_OP_T, CUBLAS_OP_N, n, m, k, k, k, n, CUBLASLT_EPILOGUE_BIAS, type, type};
    const GemmShape data{CUBLAS_OP_N, CUBLAS_OP_N, k, m, n, k, n, k, CUBLASLT_EPILOGUE_DEFAULT, type, type};
    GemmShape weights{CUBLAS_OP_N, CUBLAS_OP_T, k, n, m, k, n, k, CUBLASLT_EPILOGUE_BGRADB, type};
    auto made = std::make_unique<BlasLinear>();
    made->device = &device;
    made->shape = shape;
    made->workspace_bytes = kGemmWorkspace;
    made->backend = "cuBLASLt";
    const bool tf32 = device.options().matmul_tf32;
    const auto plan = [&blas, tf32](const GemmShape& product, std::optional<GemmPlan>& to) -> Result<void> {
      MUSTER_TRY(GemmPlan planned, GemmPlan::make(blas, product, tf32));
      to.emplace(std::move(planned));
      return {};
    };
    MUSTER_OK(plan(forward, made->plain));
    forward.epilogue = CUBLASLT_EPILOGUE_RELU_BIAS;
    MUSTER_OK(plan(forward, made->with_relu));
    MUSTER_OK(plan(data, made->data));
    made->sums_bias = plan(weights, made->weights).has_value();
    weights.epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    if (!made->sums_bias) MUSTER_OK(plan(weights, made->weights));
    return made;
  }

  void forward(const void* x, const void* w, const void* b, void* y, bool relu, void* workspace) override {
    report((relu ? with_relu : plain)->run(w, x, y, b, workspace, stream()));
  }
  void backward(const void* x, const void* w, const void* y, void* dy, void* dx, float* dw, float* db,
                bool relu, void* workspace) override {
    const std::int64_t count = std::int64_t{shape.batch} * shape.out_features;
    if (relu)
      device->report_cuda(relu_backward(shape.dtype, y, dy, dy, count, stream()), "linear backward (mask)");
    report(weights->run(x, dy, dw, db, workspace, stream()));
    if (!sums_bias) device->report_cuda(bias_gradient(shape, dy, db, stream()), "linear backward (bias)");
    if (dx != nullptr) report(data->run(w, dy, dx, nullptr, workspace, stream()));
  }

  cudaStream_t stream() const { return static_cast<cudaStream_t>(device->stream()); }
  void report(const Result<void>& done) const {
    if (!done) device->report(done.error());
  }

  Device* device = nullptr;
  LinearShape shape;
  std::optional<GemmPlan> plain, with_relu, data, weights;
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
