// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include <muster/state_dict.h>

#include "rendezvous/base/fail.h"
#include "rendezvous/base/syscall.h"
#include "worker_runtime/checkpoint/safetensors.h"
#include "worker_runtime/core/atomic_file.h"

namespace muster {
namespace {

constexpr std::size_t kMaxModelFileBytes = std::size_t{64} << 30;  // a larger file is no model's

Result<void> load(std::string_view bytes, nn::Model& model) {
  MUSTER_TRY(const safetensors::FileView file, safetensors::parse(bytes));
  MUSTER_TRY(const std::vector<float> params,
             safetensors::read_arena(file, model.parameters(), model.arena_elements()));
  MUSTER_TRY(const std::vector<float> buffers,
             safetensors::read_arena(file, model.buffers(), model.buffer_elements()));
  const auto is_in = [](const std::vector<nn::Parameter>& list, std::string_view name) {
    return std::any_of(list.begin(), list.end(), [&](const nn::Parameter& p) { return p.name == name; });
  };
  for (const auto& [name, dtype, shape, data] : file.tensors)
    if (!name.ends_with(".num_batches_tracked") && !is_in(model.parameters(), name) &&
        !is_in(model.buffers(), name))
      return fail(ErrorCode::kMismatch,
                  "its tensor '{}' is none of the model's; these are the weights of another model", name);
  model.write_params(params);
  model.write_buffers(buffers);
  return {};
}

}  // namespace

Result<void> save_state_dict(const std::string& path, const nn::Model& model) {
  const std::vector<float> params = model.read_params(), buffers = model.read_buffers();
  std::vector<safetensors::TensorView> tensors;
  safetensors::append_tensors(tensors, model.parameters(), params);
  safetensors::append_tensors(tensors, model.buffers(), buffers);
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
