// SPDX-License-Identifier: Apache-2.0
// A model's parameters and buffers as a safetensors file with PyTorch's names, as safetensors.torch reads and
// writes it: torchvision's weights load here, and what is saved here loads there (load_state_dict, strict).
// Files are treated as hostile; nothing is changed before all of it has been checked. Blocks on the disk, and
// for the device.
#pragma once

#include <string>

#include <muster/nn.h>
#include <muster/result.h>

namespace muster {

/// Replaces the file as a whole or leaves it as it was.
[[nodiscard]] Result<void> save_state_dict(const std::string& path, const nn::Model& model);

/// Every parameter and buffer of the model must be there, as F32 and with its shape; BatchNorm's
/// num_batches_tracked is passed over, anything else is a tensor of another model. kMismatch names the first
/// that does not fit; kCorrupt: no safetensors file.
[[nodiscard]] Result<void> load_state_dict(const std::string& path, nn::Model& model);

}  // namespace muster
