// SPDX-License-Identifier: Apache-2.0
// Bodies of the kernels in which each thread owns one element of the result: gathering a batch, the ReLU mask
// and a per-channel bias. Launched by elementwise.cu, looped over on the CPU by tests/unit/cuda.
#pragma once

#include "worker_runtime/kernels/cuda/portable.h"
#include "worker_runtime/kernels/kernels.h"

namespace muster::kernels::cuda {

struct GatherArgs {
  const std::uint8_t* images;   // (n, image_elements)
  const std::uint8_t* labels;   // (n)
  const std::int32_t* indices;  // (batch)
  int batch;
  int image_elements;
  float mean;
  float stddev;
  float* x;                  // (batch, image_elements)
  std::int32_t* out_labels;  // (batch)
};

inline Grid grid_of(const GatherArgs& a) {
  return flat_grid(std::int64_t{a.batch} * a.image_elements);
}

MUSTER_HD void gather_cell(const GatherArgs& a, Cell cell) {
  const std::int64_t i = flat_index(cell);
  if (i >= std::int64_t{a.batch} * a.image_elements) return;
  const int n = static_cast<int>(i / a.image_elements);
  const int e = static_cast<int>(i - std::int64_t{n} * a.image_elements);
  const std::int64_t image = a.indices[n];
  a.x[i] = (static_cast<float>(a.images[image * a.image_elements + e]) / 255.0F - a.mean) / a.stddev;
  if (e == 0) a.out_labels[n] = a.labels[image];
}

/// Zero where the layer's output was not positive; a NaN lets the gradient pass, as in PyTorch.
MUSTER_HD void relu_mask_cell(const float* y, float* dy, std::int64_t count, Cell cell) {
  const std::int64_t i = flat_index(cell);
  if (i < count && y[i] <= 0.0F) dy[i] = 0.0F;
}

/// y (batch, channels, pixels) += b (channels).
MUSTER_HD void add_bias_cell(float* y, const float* b, std::int64_t count, int channels, int pixels,
                             Cell cell) {
  const std::int64_t i = flat_index(cell);
  if (i < count) y[i] += b[i / pixels % channels];
}

}  // namespace muster::kernels::cuda
