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

#include <muster/loss.h>
#include <muster/nn.h>

namespace muster {

/// Samples for each of up to `devices`: parts of ceil(batch / devices), the last one smaller. 10 on 4 are 3,
/// 3, 3, 1; 4 on 3 are 2, 2, without the third device.
[[nodiscard]] std::vector<int> chunk_sizes(int batch, int devices);

class DataParallel {
 public:
  virtual ~DataParallel() = default;
  DataParallel(const DataParallel&) = delete;
  DataParallel& operator=(const DataParallel&) = delete;

  /// Allocates models[i] on computes[i], which may be several computes of one device. models[0] has the first
  /// values; all outlive the object. kMismatch: a model with other parameters; kInvalidArgument: not one
  /// compute per model.
  [[nodiscard]] static Result<std::unique_ptr<DataParallel>> create(std::span<nn::Model> models,
                                                                    std::span<const Compute> computes);

  /// Forward, loss and backward of a batch in host memory, labels.size() samples. Afterwards
  /// models[0].grads() is the gradient of the mean loss. Returns the sums of this batch; waits for the
  /// devices. After an error gradients are undefined.
  [[nodiscard]] virtual Result<LossTotals> forward_backward(std::span<const float> input,
                                                            std::span<const std::int32_t> labels,
                                                            const Loss& loss = CrossEntropy()) = 0;

 protected:
  DataParallel() = default;
};

}  // namespace muster
