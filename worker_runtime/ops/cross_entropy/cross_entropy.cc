// SPDX-License-Identifier: Apache-2.0
#include <muster/loss.h>

#include "worker_runtime/kernels/kernels.h"

namespace muster {

int CrossEntropy::compute(const LossFrame& f) const {
  const int batch = f.output.batch();
  f.kernels->cross_entropy(f.output.f32(), f.labels, batch, static_cast<int>(f.output.count() / batch),
                           f.gradient.f32(), f.totals, {label_smoothing_, f.scale});
  return 0;
}

}  // namespace muster
