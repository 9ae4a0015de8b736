// SPDX-License-Identifier: Apache-2.0
// What muster's own operations share: shapes in error messages, "(3, 32, 32)", and the format of most.
#pragma once

#include <span>
#include <string>

#include <fmt/format.h>

#include <muster/operation.h>

#include "worker_runtime/device/device.h"

namespace muster::nn {

/// On a GPU it takes its tensors as the plan offers them; on the CPU as float32 NCHW, like all.
class AnyFormatOperation : public Operation {
 public:
  TensorFormat format(Device& device, const TensorFormat& offered) const override {
    return device.type() == DeviceType::kCuda ? offered : TensorFormat{};
  }
};

[[nodiscard]] inline std::string to_text(const Shape& shape) {
  return fmt::format("({})", fmt::join(shape, ", "));
}

/// "(3, 4) and (4)"; "nothing".
[[nodiscard]] inline std::string to_text(std::span<const Shape> shapes) {
  std::string text;
  for (const Shape& shape : shapes) text += (text.empty() ? "" : " and ") + to_text(shape);
  return text.empty() ? "nothing" : text;
}

/// "operation 3 'fc1'".
[[nodiscard]] inline std::string operation_text(std::size_t index, const std::string& name) {
  return "operation " + std::to_string(index) + (name.empty() ? "" : " '" + name + "'");
}

}  // namespace muster::nn
