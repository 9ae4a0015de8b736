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

/// x (batch, channels, pixels); in NHWC (batch, pixels, channels). On a GPU its elements are of `dtype`.
struct BatchNormSizes {
  int batch, channels, pixels;
  float eps, momentum;
  DType dtype = DType::kFloat32;
  bool nhwc = false;
};

/// Of one channel: the squares are those of the deviations from the mean.
struct ChannelStatistics {
  float mean, squares, count;
};

/// Those of all ranks' samples, or of each `step`-th rank from `first` on. `gathered`: rank after rank the
/// means, the squares and the counts of all channels.
MUSTER_HD ChannelStatistics joined(const float* gathered, int world, int channels, int channel, int first = 0,
                                   int step = 1) {
  double count = 0, mean = 0, squares = 0;
  for (int rank = first; rank < world; rank += step) {
    const float* const of_rank = gathered + std::int64_t{3} * rank * channels + channel;
    count += static_cast<double>(of_rank[2 * channels]);
    mean += static_cast<double>(of_rank[0]) * static_cast<double>(of_rank[2 * channels]);
  }
  mean /= count;
  for (int rank = first; rank < world; rank += step) {
    const float* const of_rank = gathered + std::int64_t{3} * rank * channels + channel;
    const double off = static_cast<double>(of_rank[0]) - mean;
    squares +=
        static_cast<double>(of_rank[channels]) + static_cast<double>(of_rank[2 * channels]) * off * off;
  }
  return {static_cast<float>(mean), static_cast<float>(squares), static_cast<float>(count)};
}

namespace cuda {  // batch_norm.cu
/// Blocks that share a channel; `parts` below have 3 * channels floats for each.
int batch_norm_parts(const BatchNormSizes& sizes);
/// `parts`: joined()'s `gathered`, with a part in the place of a rank; and them joined, unless nullptr.
int batch_norm_statistics(const BatchNormSizes& sizes, const void* x, float* parts, float* joined_to,
                          void* stream);
/// `saved`: mean, 1 / sqrt(var + eps) and number of samples per channel, written. Updates the running
/// statistics. `gathered`: joined()'s.
int batch_norm_join(const BatchNormSizes& sizes, const float* gathered, int world, float* saved,
                    float* running_mean, float* running_var, void* stream);
/// `spread`: of each channel 1 / sqrt(var + eps), or else the variance.
int batch_norm_normalize(const BatchNormSizes& sizes, const void* x, const float* weight, const float* bias,
                         const float* means, const float* spread, bool is_variance, void* y, void* stream);
int batch_norm_gradients(const BatchNormSizes& sizes, const void* x, const float* saved, const void* dy,
                         float* parts, float* dweight, float* dbias, void* stream);
/// `dweight` and `dbias`: over all ranks.
int batch_norm_input_gradient(const BatchNormSizes& sizes, const void* x, const float* weight,
                              const float* saved, const void* dy, const float* dweight, const float* dbias,
                              void* dx, void* stream);
}  // namespace cuda

}  // namespace muster::nn
