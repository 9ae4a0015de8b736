// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <muster/state_dict.h>

#include "rendezvous/base/syscall.h"
#include "worker_runtime/checkpoint/arena_tensors.h"
#include "worker_runtime/core/atomic_file.h"

namespace muster {
namespace {

/// "6x1x5x5".
std::string shape_text(const std::vector<std::int64_t>& shape) {
  return shape.empty() ? "scalar" : fmt::format("{}", fmt::join(shape, "x"));
}

constexpr std::size_t kMaxModelFileBytes = std::size_t{64} << 30;  // a larger file is no model's

Result<void> load(std::string_view bytes, nn::Model& model) {
  MUSTER_TRY(const safetensors::FileView file, safetensors::parse(bytes));
  MUSTER_TRY(const std::vector<float> params, read_arena(file, model.parameters(), model.arena_elements()));
  MUSTER_TRY(const std::vector<float> buffers, read_arena(file, model.buffers(), model.buffer_elements()));
  const auto is_in = [](const std::vector<nn::Parameter>& list, std::string_view name) {
    return std::any_of(list.begin(), list.end(), [&](const nn::Parameter& p) { return p.name == name; });
  };
  for (const auto& [name, dtype, shape, data] : file.tensors)
    if (!name.ends_with(".num_batches_tracked") && !is_in(model.parameters(), name) &&
        !is_in(model.buffers(), name))
      return fail(ErrorCode::kMismatch,
                  "its tensor '" + name + "' is none of the model's; these are the weights of another model");
  model.write_params(params);
  model.write_buffers(buffers);
  return {};
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

Result<void> save_state_dict(const std::string& path, const nn::Model& model) {
  const std::vector<float> params = model.read_params(), buffers = model.read_buffers();
  std::vector<safetensors::TensorView> tensors;
  append_tensors(tensors, model.parameters(), params);
  append_tensors(tensors, model.buffers(), buffers);
  // PyTorch's own loaders look for the format.
  MUSTER_TRY(const safetensors::Layout layout, safetensors::lay_out(tensors, {{"format", "pt"}}));
  if (auto written = write_file_atomically(path, safetensors::pieces_of(tensors, layout)); !written)
    return fail("state dict", std::move(written).error());
  return {};
}

Result<void> load_state_dict(const std::string& path, nn::Model& model) {
  auto bytes = read_file(path, kMaxModelFileBytes);
  if (!bytes) return fail("state dict", std::move(bytes).error());
  if (auto loaded = load(*bytes, model); !loaded)
    return fail("state dict " + path, std::move(loaded).error());
  return {};
}

}  // namespace muster
