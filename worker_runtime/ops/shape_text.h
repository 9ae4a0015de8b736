// SPDX-License-Identifier: Apache-2.0
// Shapes in error messages: "(3, 32, 32)".
#pragma once

#include <span>
#include <string>

#include <muster/operation.h>

namespace muster::nn {

[[nodiscard]] inline std::string to_text(const Shape& shape) {
  std::string text = "(";
  for (std::size_t i = 0; i < shape.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  return text + ")";
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
