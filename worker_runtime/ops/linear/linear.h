// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include <muster/operation.h>

namespace muster::nn {

/// A Linear of the same features followed by ReLU, if `operation` is one without; nullptr otherwise.
[[nodiscard]] std::unique_ptr<Operation> linear_with_relu(const Operation& operation);

}  // namespace muster::nn
