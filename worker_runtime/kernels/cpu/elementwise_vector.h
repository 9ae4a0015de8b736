// SPDX-License-Identifier: Apache-2.0
// The kernels without matrix products: input normalisation, relu with max-pooling, cross-entropy, SGD. Called
// by the CPU kernels; what each computes is said in kernels.h. Pure functions of their arguments; same bits
// on each run.
#pragma once

#include <cstddef>
#include <cstdint>

#include "worker_runtime/kernels/kernels.h"

namespace muster::kernels {

void gather_normalize_vector(const std::uint8_t* images, const std::uint8_t* labels,
                             const std::int32_t* indices, int batch, int image_elements, float mean,
                             float stddev, float* x, std::int32_t* out_labels);
void cross_entropy_vector(const float* logits, const std::int32_t* labels, int batch, int classes,
                          float* dlogits, LossTotals* totals, const LossOptions& options);

/// The device and the vector instructions in use: "cpu (avx512)", "cpu (avx2)", ...
[[nodiscard]] const char* vector_target_name();

}  // namespace muster::kernels
