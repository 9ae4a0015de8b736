// SPDX-License-Identifier: Apache-2.0
// Kernels: what the runtime computes for a layer, called by shape and pointer, so that implementations can be
// compared. This one is a device's own: what PreparedConv2d, PreparedLinear, cross_entropy() and
// gather_normalize() do there. The plain loops (reference_kernels.h) override it.
#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>

#include "worker_runtime/device/device.h"
#include "worker_runtime/ops/conv2d/conv2d.h"
#include "worker_runtime/ops/cross_entropy/cross_entropy.h"
#include "worker_runtime/ops/gather_normalize/gather_normalize.h"
#include "worker_runtime/ops/linear/linear.h"

namespace muster::testing {

using nn::ConvShape;
using nn::LinearShape;

class Kernels {
 public:
  explicit Kernels(Compute device) : device_(std::move(device)) {}
  virtual ~Kernels() = default;

  [[nodiscard]] const Compute& device() const { return device_; }
  Result<void*> allocate(std::size_t size_bytes) { return device_->allocate(size_bytes); }
  void copy_to_device(void* to, const void* from, std::size_t size_bytes) {
    device_->copy_to_device(to, from, size_bytes);
  }
  void copy_to_host(void* to, const void* from, std::size_t size_bytes) {
    device_->copy_to_host(to, from, size_bytes);
  }
  void copy_on_device(void* to, const void* from, std::size_t size_bytes) {
    device_->copy_on_device(to, from, size_bytes);
  }
  void zero(void* memory, std::size_t size_bytes) { device_->zero(memory, size_bytes); }
  Result<void> synchronize() { return device_->synchronize(); }
  [[nodiscard]] void* stream() const { return device_->stream(); }
  void report_cuda(int error, std::string_view what) { device_->report_cuda(error, what); }
  std::unique_ptr<StepRecorder> make_step_recorder() { return device_->make_step_recorder(); }

  /// How many shapes each library computes.
  [[nodiscard]] const std::map<std::string, int>& backends() const { return backends_; }

  virtual Result<void> plan_conv2d(const ConvShape& shape) {
    return prepare<nn::PreparedConv2d>(shape, conv2d_).map([](auto) {});
  }
  virtual Result<void> plan_linear(const LinearShape& shape) {
    return prepare<nn::PreparedLinear>(shape, linear_).map([](auto) {});
  }

  virtual void gather_normalize(const std::uint8_t* images, const std::uint8_t* labels,
                                const std::int32_t* indices, int batch, int image_elements, float mean,
                                float stddev, float* x, std::int32_t* out_labels) {
    nn::gather_normalize(*device_,
                         {images, labels, indices, batch, image_elements, {mean}, {stddev}, x, out_labels});
  }
  virtual void conv2d_forward(const ConvShape& shape, const float* x, const float* w, const float* b,
                              float* y) {
    (*prepare<nn::PreparedConv2d>(shape, conv2d_))->forward(x, w, b, y, workspace_);
  }
  virtual void conv2d_backward(const ConvShape& shape, const float* x, const float* w, const float* dy,
                               float* dx, float* dw, float* db) {
    (*prepare<nn::PreparedConv2d>(shape, conv2d_))->backward(x, w, dy, dx, dw, db, workspace_);
  }
  virtual void linear_forward(const LinearShape& shape, const float* x, const float* w, const float* b,
                              float* y, bool relu) {
    (*prepare<nn::PreparedLinear>(shape, linear_))->forward(x, w, b, y, relu, workspace_);
  }
  virtual void linear_backward(const LinearShape& shape, const float* x, const float* w, const float* y,
                               float* dy, float* dx, float* dw, float* db, bool relu) {
    (*prepare<nn::PreparedLinear>(shape, linear_))->backward(x, w, y, dy, dx, dw, db, relu, workspace_);
  }
  virtual void cross_entropy(const nn::LossArgs& args, LossTotals* totals) {
    device_->report_cuda(nn::cross_entropy(args, totals, device_->stream()), "cross_entropy");
  }

 private:
  template <class Prepared, class Shape>
  Result<Prepared*> prepare(const Shape& shape,
                            std::vector<std::pair<Shape, std::unique_ptr<Prepared>>>& made) {
    const auto found =
        std::find_if(made.begin(), made.end(), [&](const auto& each) { return each.first == shape; });
    if (found != made.end()) return found->second.get();
    MUSTER_TRY(std::unique_ptr<Prepared> prepared, Prepared::make(*device_, shape));
    ++backends_[std::string(prepared->backend)];
    if (prepared->workspace_bytes > workspace_bytes_) {
      MUSTER_TRY(workspace_, device_->allocate(prepared->workspace_bytes));
      workspace_bytes_ = prepared->workspace_bytes;
    }
    made.emplace_back(shape, std::move(prepared));
    return made.back().second.get();
  }

  Compute device_;
  void* workspace_ = nullptr;
  std::size_t workspace_bytes_ = 0;
  std::map<std::string, int> backends_;
  std::vector<std::pair<ConvShape, std::unique_ptr<nn::PreparedConv2d>>> conv2d_;
  std::vector<std::pair<LinearShape, std::unique_ptr<nn::PreparedLinear>>> linear_;
};

inline std::unique_ptr<Kernels> make_cpu_kernels() {
  return std::make_unique<Kernels>(*make_compute(DeviceType::kCpu));
}
inline Result<std::unique_ptr<Kernels>> make_cuda_kernels(int index) {
  MUSTER_TRY(Compute device, make_compute(DeviceType::kCuda, index, {.conv_tf32 = false}));
  return std::make_unique<Kernels>(std::move(device));
}

}  // namespace muster::testing
