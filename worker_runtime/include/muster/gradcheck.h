// SPDX-License-Identifier: Apache-2.0
// gradcheck(): compares an operation's backward pass with central differences of its forward pass. For tests
// of operations, muster's own and a program's. Source: torch.autograd.gradcheck.
#pragma once

#include <cstdint>
#include <functional>

#include <muster/nn.h>

namespace muster::nn {

struct GradcheckOptions {
  int batch = 2;
  double step = 2e-3;       ///< of one parameter or input, up and down
  double tolerance = 1e-2;  ///< of a gradient, relative to the largest one of its tensor (at least 1)
  std::uint64_t seed = 1;   ///< of inputs (uniform in +-1), parameters and the weights of the loss
  bool fuse = false;
};

/// `build` writes down a graph of its argument, of shape `input` without the batch. Every parameter and the
/// input are checked; the loss is the sum of the outputs, each times a fixed random number within +-1. Where
/// a function has a kink within a step of a value, the check fails: choose another seed. kMismatch names the
/// first gradient that differs; other errors are of the graph or the device.
[[nodiscard]] Result<void> gradcheck(const Compute& compute, const Shape& input,
                                     const std::function<Value(Value)>& build,
                                     const GradcheckOptions& options = {});

}  // namespace muster::nn
