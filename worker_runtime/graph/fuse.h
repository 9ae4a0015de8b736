// SPDX-License-Identifier: Apache-2.0
// fuse(): replaces pairs of operations by one where a measurement asked for it. Model::create() calls it; the
// result is tested against the graph as it was written down.
//   linear + relu      one core, GarmentClassifier, batch 4: the mask costs a pass over 120 and 84 values
//   each way relu + max_pool2d  without overlap: one pass instead of two over the largest activations
#pragma once

#include <muster/nn.h>

namespace muster::nn {

/// `output` is the value that the model returns: the operation that makes it keeps its own output.
void fuse(Graph& graph, int output);

}  // namespace muster::nn
