// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <muster/operation.h>

#include "worker_runtime/ops/portable.h"

namespace muster {
class ProcessGroup;
}

namespace muster::nn {

/// Makes a BatchNorm2d take its statistics over the ranks of a group; other operations stay as they are.
void synchronize_batch_norm(Operation& operation, ProcessGroup& group);

/// x (batch, channels, pixels).
struct BatchNormSizes {
  int batch, channels, pixels;
  float eps, momentum;
};

/// Of one channel: the squares are those of the deviations from the mean.
struct ChannelStatistics {
  float mean, squares, count;
};

/// Those of all ranks' samples. `gathered`: rank after rank the means, the squares and the counts of all
/// channels.
MUSTER_HD ChannelStatistics joined(const float* gathered, int world, int channels, int channel) {
  double count = 0, mean = 0, squares = 0;
  for (int rank = 0; rank < world; ++rank) {
    const float* const of_rank = gathered + std::int64_t{3} * rank * channels + channel;
    count += static_cast<double>(of_rank[2 * channels]);
    mean += static_cast<double>(of_rank[0]) * static_cast<double>(of_rank[2 * channels]);
  }
  mean /= count;
  for (int rank = 0; rank < world; ++rank) {
    const float* const of_rank = gathered + std::int64_t{3} * rank * channels + channel;
    const double off = static_cast<double>(of_rank[0]) - mean;
    squares +=
        static_cast<double>(of_rank[channels]) + static_cast<double>(of_rank[2 * channels]) * off * off;
  }
  return {static_cast<float>(mean), static_cast<float>(squares), static_cast<float>(count)};
}

#ifdef MUSTER_HAS_CUDA
namespace cuda {  // batch_norm.cu
/// Blocks that share a channel; `parts` below have 3 * channels floats for each.
int batch_norm_parts(const BatchNormSizes& sizes);
/// `parts`: joined()'s `gathered`, with a part in the place of a rank; and them joined, unless nullptr.
int batch_norm_statistics(const BatchNormSizes& sizes, const float* x, float* parts, float* joined_to,
                          void* stream);
/// `saved`: mean, 1 / sqrt(var + eps) and number of samples per channel, written. Updates the running
/// statistics. `gathered`: joined()'s.
int batch_norm_train(const BatchNormSizes& sizes, const float* x, const float* weight, const float* bias,
                     float* running_mean, float* running_var, const float* gathered, int world, float* saved,
                     float* y, void* stream);
int batch_norm_infer(const BatchNormSizes& sizes, const float* x, const float* weight, const float* bias,
                     const float* running_mean, const float* running_var, float* y, void* stream);
int batch_norm_gradients(const BatchNormSizes& sizes, const float* x, const float* saved, const float* dy,
                         float* parts, float* dweight, float* dbias, void* stream);
/// `dweight` and `dbias`: over all ranks.
int batch_norm_input_gradient(const BatchNormSizes& sizes, const float* x, const float* weight,
                              const float* saved, const float* dy, const float* dweight, const float* dbias,
                              float* dx, void* stream);
}  // namespace cuda
#endif

}  // namespace muster::nn
