// SPDX-License-Identifier: Apache-2.0
#include "worker_runtime/kernels/cpu/dnnl_linear.h"

#include <oneapi/dnnl/dnnl.h>

#include <muster/check.h>

#include "worker_runtime/kernels/cpu/one_thread.h"

namespace muster::kernels {

void dnnl_linear_backward(const LinearShape& s, const float* x, const float* w, const float* dy, float* dx,
                          float* dw) {
  const OneThread one_thread;
  const int batch = s.batch, in = s.in_features, out = s.out_features;
  dnnl_status_t status = dnnl_sgemm('T', 'N', out, in, batch, 1.0F, dy, out, x, in, 0.0F, dw, in);
  MUSTER_CHECK(status == dnnl_success, "oneDNN refused the product of a linear layer's weight gradient");
  if (dx == nullptr) return;
  status = dnnl_sgemm('N', 'N', batch, in, out, 1.0F, dy, out, w, in, 0.0F, dx, in);
  MUSTER_CHECK(status == dnnl_success, "oneDNN refused the product of a linear layer's input gradient");
}

}  // namespace muster::kernels
