// SPDX-License-Identifier: Apache-2.0
// The CPU's kernels: hands each call to the implementation that was measured faster for its shape.
#include <algorithm>
#include <vector>

#include <muster/check.h>

#include "worker_runtime/kernels/cpu/direct_conv.h"
#include "worker_runtime/kernels/cpu/dnnl_conv.h"
#include "worker_runtime/kernels/cpu/dnnl_linear.h"
#include "worker_runtime/kernels/cpu/elementwise_vector.h"
#include "worker_runtime/kernels/cpu/host_kernels.h"
#include "worker_runtime/kernels/cpu/linear_vector.h"

namespace muster::kernels {
namespace {

// Both rules come from one core of a Zen 4 (AVX-512), microseconds of forward + dw + dx, own against
// oneDNN 2.6.3: 6->16 5x5 on 12x12, batch 64: 620 / 1012;  3->16 3x3 on 34x34, batch 16: 664 / 1424 (its dx
// of few channels is slow); 32->32 3x3 on 18x18, batch 16: 2391 / 2178;  16->32 5x5 on 14x14, batch 16: 1987
// / 1160.
bool direct_is_faster(const ConvShape& shape) {
  return direct_conv_supports(shape) && shape.in_channels < 16;
}

// dw + dx: 512->512, batch 64: 605 / 594;  784->512, batch 256: 3999 / 3620;  1024->1024, batch 256: 18160 /
// 10409.
bool sgemm_is_faster(const LinearShape& shape) {
  return std::int64_t{shape.in_features} * shape.out_features >= 512 * 512 && shape.batch >= 16;
}

class CpuKernels final : public HostKernels {
 public:
  [[nodiscard]] std::string_view name() const override { return vector_target_name(); }

  [[nodiscard]] Result<void> plan_conv2d(const ConvShape& shape) override {
    MUSTER_OK(check_shape(shape));
    if (direct_is_faster(shape)) return reserve(direct_conv_scratch(shape));
    if (find(shape) != nullptr) return {};
    MUSTER_TRY(auto conv, DnnlConv::make(shape));
    dnnl_convs_.push_back(std::move(conv));
    return {};
  }

  [[nodiscard]] Result<void> plan_linear(const LinearShape& shape) override { return check_shape(shape); }

  void gather_normalize(const std::uint8_t* images, const std::uint8_t* labels, const std::int32_t* indices,
                        int batch, int image_elements, float mean, float stddev, float* x,
                        std::int32_t* out_labels) override {
    gather_normalize_vector(images, labels, indices, batch, image_elements, mean, stddev, x, out_labels);
  }

  void conv2d_forward(const ConvShape& shape, const float* x, const float* w, const float* b,
                      float* y) override {
    if (direct_is_faster(shape)) return direct_conv_forward(shape, x, w, b, y);
    planned(shape).forward(x, w, b, y);
  }

  void conv2d_backward(const ConvShape& shape, const float* x, const float* w, const float* dy, float* dx,
                       float* dw, float* db) override {
    if (!direct_is_faster(shape)) return planned(shape).backward(x, w, dy, dx, dw, db);
    direct_conv_weight_gradient(shape, x, dy, dw, db);
    if (dx != nullptr) direct_conv_input_gradient(shape, w, dy, dx, scratch(direct_conv_scratch(shape)));
  }

  void linear_forward(const LinearShape& shape, const float* x, const float* w, const float* b, float* y,
                      bool relu) override {
    linear_vector_forward(shape, x, w, b, y, relu);
  }

  void linear_backward(const LinearShape& shape, const float* x, const float* w, const float* y, float* dy,
                       float* dx, float* dw, float* db, bool relu) override {
    linear_vector_output_gradient(shape, y, dy, db, relu);
    if (sgemm_is_faster(shape)) return dnnl_linear_backward(shape, x, w, dy, dx, dw);
    linear_vector_backward(shape, x, w, dy, dx, dw);
  }

  void cross_entropy(const float* logits, const std::int32_t* labels, int batch, int classes, float* dlogits,
                     LossTotals* totals, const LossOptions& options) override {
    cross_entropy_vector(logits, labels, batch, classes, dlogits, totals, options);
  }

 private:
  /// Makes the scratch at least `count` floats; it is shared by all shapes, since one call runs at a time.
  [[nodiscard]] Result<void> reserve(std::size_t count) {
    if (count <= scratch_count_) return {};
    AlignedMemory memory = allocate_aligned(count * sizeof(float));
    if (!memory) {
      return fail(ErrorCode::kExhausted,
                  "reserve " + std::to_string(count * sizeof(float)) +
                      " bytes of scratch memory: none left; use a smaller batch or model");
    }
    scratch_ = std::move(memory);
    scratch_count_ = count;
    return {};
  }

  [[nodiscard]] float* scratch(std::size_t count) {
    MUSTER_CHECK(count <= scratch_count_,
                 "a layer runs with a shape that was not planned; call plan_* first");
    return static_cast<float*>(scratch_.get());
  }

  [[nodiscard]] DnnlConv* find(const ConvShape& shape) {
    const auto found = std::find_if(dnnl_convs_.begin(), dnnl_convs_.end(),
                                    [&](const auto& conv) { return conv->shape() == shape; });
    return found == dnnl_convs_.end() ? nullptr : found->get();
  }

  [[nodiscard]] DnnlConv& planned(const ConvShape& shape) {
    DnnlConv* conv = find(shape);
    MUSTER_CHECK(conv != nullptr,
                 "a convolution runs with a shape that was not planned; call plan_conv2d first");
    return *conv;
  }

  AlignedMemory scratch_;
  std::size_t scratch_count_ = 0;
  std::vector<std::unique_ptr<DnnlConv>> dnnl_convs_;  // few: one per layer and batch size
};

}  // namespace

std::unique_ptr<Kernels> make_cpu_kernels() {
  return std::make_unique<CpuKernels>();
}

}  // namespace muster::kernels
