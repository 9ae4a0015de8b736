// SPDX-License-Identifier: Apache-2.0
#include "worker_runtime/checkpoint/arena_tensors.h"

#include <cstring>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace muster {
namespace {

/// "6x1x5x5".
std::string shape_text(const std::vector<std::int64_t>& shape) {
  return shape.empty() ? "scalar" : fmt::format("{}", fmt::join(shape, "x"));
}

}  // namespace

void append_tensors(std::vector<safetensors::TensorView>& tensors,
                    const std::vector<nn::Parameter>& parameters, std::span<const float> arena,
                    const std::string& prefix) {
  for (const nn::Parameter& parameter : parameters) {
    const auto values = arena.subspan(parameter.offset, parameter.count);
    tensors.push_back({prefix + parameter.name,
                       DType::kFloat32,
                       parameter.shape,
                       {reinterpret_cast<const char*>(values.data()), values.size_bytes()}});
  }
}

Result<std::vector<float>> read_arena(const safetensors::FileView& file,
                                      const std::vector<nn::Parameter>& parameters, std::size_t elements,
                                      const std::string& prefix) {
  std::vector<float> arena(elements, 0.0F);
  for (const nn::Parameter& parameter : parameters) {
    const std::string name = prefix + parameter.name;
    const safetensors::TensorView* tensor = file.find(name);
    if (tensor == nullptr)
      return fail(ErrorCode::kMismatch,
                  "it has no tensor '" + name + "'; these are the weights of another model");
    if (tensor->dtype != DType::kFloat32 || tensor->shape != parameter.shape)
      return fail(ErrorCode::kMismatch,
                  "tensor '" + name + "' is " + std::string(to_string(tensor->dtype)) + " " +
                      shape_text(tensor->shape) + ", the model's is F32 " + shape_text(parameter.shape) +
                      (tensor->shape == parameter.shape ? "; save it as F32"
                                                        : "; these are the weights of another model"));
    std::memcpy(arena.data() + parameter.offset, tensor->bytes.data(), tensor->bytes.size());
  }
  return arena;
}

}  // namespace muster
