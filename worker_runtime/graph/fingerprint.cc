// SPDX-License-Identifier: Apache-2.0
#include <muster/nn.h>

#include "worker_runtime/core/sha256.h"

namespace muster::nn {

std::string parameters_sha256(const Model& model) {
  Sha256 digest;
  const std::vector<float> arena = model.read_params();
  for (const Parameter& parameter : model.parameters())
    digest.update(
        {reinterpret_cast<const char*>(arena.data() + parameter.offset), parameter.count * sizeof(float)});
  return digest.finish();
}

}  // namespace muster::nn
