// SPDX-License-Identifier: Apache-2.0
// Loss: what a model's output is compared with the labels by. CrossEntropy is muster's own; a program derives
// its own and hands it to the Trainer.
#pragma once

#include <cstdint>

#include <muster/check.h>
#include <muster/compute.h>
#include <muster/tensor.h>

namespace muster {
namespace nn {
class Model;
class Plan;
}  // namespace nn

/// Sums over samples. In a LossFrame on the device, where they add up over calls until zeroed.
struct LossTotals {
  double loss_sum = 0;
  std::int64_t correct = 0;   ///< samples whose largest output (first of equals) is the label's
  std::int64_t correct5 = 0;  ///< label among the five largest; a Loss of one's own may not count them
  std::int64_t num_samples = 0;

  [[nodiscard]] double loss() const { return share(loss_sum); }
  [[nodiscard]] double accuracy() const { return share(static_cast<double>(correct)); }
  [[nodiscard]] double accuracy5() const { return share(static_cast<double>(correct5)); }
  LossTotals& operator+=(const LossTotals& other) {
    loss_sum += other.loss_sum;
    correct += other.correct;
    correct5 += other.correct5;
    num_samples += other.num_samples;
    return *this;
  }

 private:
  [[nodiscard]] double share(double sum) const {
    return num_samples == 0 ? 0 : sum / static_cast<double>(num_samples);
  }
};

/// What a loss works on; all of it in the memory of the model's device.
struct LossFrame {
  Device* device = nullptr;
  void* stream = nullptr;                // cudaStream_t; nullptr: the memory is the host's
  Tensor output;                         // float32
  const std::int32_t* labels = nullptr;  // (batch)
  Tensor gradient;  // of the mean loss by the output, times *scale, to be overwritten; none in evaluation
  const float* scale = nullptr;  // GradScaler's; nullptr: 1
  LossTotals* totals = nullptr;  // to be added to
};

/// Of the model's output in `plan`, with its labels and gradient; without scale and totals.
[[nodiscard]] LossFrame loss_frame(const nn::Model& model, const nn::Plan& plan);

class Loss {
 public:
  virtual ~Loss() = default;
  /// Only enqueues where the device is a GPU; done on return on the CPU. Returns a cudaError_t, 0 on the CPU.
  virtual int compute(const LossFrame& frame) const = 0;
};

/// torch.nn.CrossEntropyLoss.
class CrossEntropy final : public Loss {
 public:
  /// `label_smoothing`: within 0 and 1.
  explicit CrossEntropy(float label_smoothing = 0) : label_smoothing_(label_smoothing) {
    MUSTER_CHECK(label_smoothing >= 0 && label_smoothing <= 1, "label smoothing is within 0 and 1");
  }
  int compute(const LossFrame& frame) const override;

 private:
  float label_smoothing_;
};

}  // namespace muster
