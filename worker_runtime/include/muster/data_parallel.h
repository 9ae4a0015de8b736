// SPDX-License-Identifier: Apache-2.0
// DataParallel: one process trains on several devices, a thread for each. Each step gives every replica the
// parameters and buffers of the first, deals out the batch as torch.chunk does, computes the loss of each
// replica's part, and sums the gradients on the first device, where one optimizer works on model 0. The first
// device so holds more than the others and works while they wait: DistributedDataParallel is faster. The
// running statistics kept are those of replica 0, over its part of the batch. Used by one thread. Sources:
// torch.nn.DataParallel (torch/nn/parallel/data_parallel.py), torch.chunk.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include <muster/data_loader.h>
#include <muster/loss.h>
#include <muster/nn.h>

namespace muster {

/// Samples for each of up to `devices`: parts of ceil(batch / devices), the last one smaller. 10 on 4 are 3,
/// 3, 3, 1; 4 on 3 are 2, 2, without the third device.
[[nodiscard]] std::vector<int> chunk_sizes(int batch, int devices);

class DataParallel {
 public:
  virtual ~DataParallel() = default;
  DataParallel& operator=(DataParallel&&) = delete;  // nor copied

  /// Allocates models[i] on computes[i], which may be several computes of one device; models[0] may be there
  /// already. It has the first values; all outlive the object. kMismatch: a model with other parameters;
  /// kInvalidArgument: not one compute per model.
  [[nodiscard]] static Result<std::unique_ptr<DataParallel>> create(std::span<nn::Model> models,
                                                                    std::span<const Compute> computes);

  /// Forward, loss and backward of a batch, which each replica copies and normalises its part of. Afterwards
  /// models[0].grads() is the gradient of the mean loss, times `loss_scale`. Returns the sums of this batch;
  /// waits for the devices. kInvalidArgument: the batch does not fit the models. After another error
  /// gradients are undefined.
  [[nodiscard]] virtual Result<LossTotals> forward_backward(const Batch& batch,
                                                            const Loss& loss = CrossEntropy(),
                                                            float loss_scale = 1) = 0;
  /// Of labels.size() samples that are together in host memory.
  [[nodiscard]] Result<LossTotals> forward_backward(std::span<const float> input,
                                                    std::span<const std::int32_t> labels,
                                                    const Loss& loss = CrossEntropy());

  /// The first one, which the optimizer works on.
  [[nodiscard]] virtual nn::Model& model() const = 0;
};

}  // namespace muster
