// SPDX-License-Identifier: Apache-2.0
// A loader's batch on its way into a plan: what Trainer and DataParallel share.
#pragma once

#include <cstddef>

#include <muster/data_loader.h>
#include <muster/nn.h>

namespace muster {

/// kInvalidArgument: `batch` is not what `model` takes, or cannot be cut into `shards` equal parts.
[[nodiscard]] Result<void> check_fits(const nn::Model& model, const Batch& batch, int shards = 1);

/// Enqueues on `device`: as many samples as the plan has, from number `first` on, go to its input, normalised
/// if they are uint8, and to its labels. `inputs` and `labels` are the batch's, or a copy that the device
/// reads.
void load_batch(Device& device, const nn::Plan& plan, const Batch& batch, const void* inputs,
                const std::int32_t* labels, std::ptrdiff_t first);

}  // namespace muster
