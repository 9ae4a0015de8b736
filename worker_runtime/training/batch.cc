// SPDX-License-Identifier: Apache-2.0
#include "worker_runtime/training/batch.h"

#include <algorithm>

#include "rendezvous/base/fail.h"
#include "worker_runtime/device/device.h"
#include "worker_runtime/device/tracer.h"
#include "worker_runtime/ops/gather_normalize/gather_normalize.h"
#include "worker_runtime/ops/shape_text.h"

namespace muster {

Result<void> check_fits(const nn::Model& model, const Batch& batch, int shards) {
  const std::int64_t expected = nn::elements_of(model.input_shape()),
                     classes = nn::elements_of(model.output_shape());
  if (batch.size() == 0 || batch.size() % shards != 0)
    return invalid("a batch of {} samples for {} shards of this rank", batch.size(), shards);
  if (batch.inputs.count() != expected * batch.size())
    return invalid("the batch's samples have {} values, the model takes {} of {}",
                   batch.inputs.count() / batch.size(), nn::to_text(model.input_shape()), expected);
  for (const std::int32_t label : batch.labels)
    if (label < 0 || label >= classes)
      return invalid(
          "a label of {}, the model's output is {}; give its last layer as many outputs as classes", label,
          nn::to_text(model.output_shape()));
  if (batch.inputs.dtype == DType::kFloat32) return {};
  const std::size_t channels = batch.normalize == nullptr ? 0 : batch.normalize->mean.size();
  if (channels == 0 || batch.normalize->stddev.size() != channels ||
      channels > nn::GatherArgs::kMaxChannels ||
      (channels != 1 && channels != static_cast<std::size_t>(batch.inputs.channels())))
    return invalid(
        "uint8 samples need a mean and a deviation for each of at most {} channels, or one for all",
        nn::GatherArgs::kMaxChannels);
  return {};
}

void load_batch(Device& device, const nn::Plan& plan, const Batch& batch, const void* inputs,
                const std::int32_t* labels, std::ptrdiff_t first) {
  const TraceRange range(device, "load batch", "data");
  const auto rows = static_cast<std::size_t>(plan.batch());
  const auto elements = static_cast<int>(batch.inputs.count() / batch.size());
  device.copy_on_device(plan.labels(), labels + first, rows * sizeof *labels);
  if (batch.inputs.dtype == DType::kFloat32)
    return device.copy_on_device(plan.input(), static_cast<const float*>(inputs) + first * elements,
                                 rows * static_cast<std::size_t>(elements) * sizeof(float));
  struct Normalized {
    Device* device;
    nn::GatherArgs args;
  };
  Normalized made{&device,
                  {.images = static_cast<const std::uint8_t*>(inputs) + first * elements,
                   .batch = plan.batch(),
                   .image_elements = elements,
                   .x = plan.input(),
                   .channels = static_cast<int>(batch.normalize->mean.size())}};  // one mean: of all values
  std::copy(batch.normalize->mean.begin(), batch.normalize->mean.end(), made.args.mean);
  std::copy(batch.normalize->stddev.begin(), batch.normalize->stddev.end(), made.args.stddev);
  device.enqueue_call(made, [](const Normalized& n) { nn::gather_normalize(*n.device, n.args); });
}

}  // namespace muster
