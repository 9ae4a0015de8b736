// SPDX-License-Identifier: Apache-2.0
// profile: multiply-accumulates (MACs) and parameters of a model's forward pass, layer by layer, by the rules
// of THOP (pip thop), which FLOP tables quote, or by the pure count. Computes nothing and needs no device.
// Make the model with ModelOptions{.fuse = false} to see each layer by itself; the sums are the same.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include <muster/nn.h>
#include <muster/result.h>

namespace muster {

/// All count multiply-accumulates of convolutions and linear layers alike, without biases.
enum class MacRule : std::uint8_t {
  kPure,  ///< those alone: ResNet-50 has 4.089G
  kOld,   ///< THOP before 0.1, of which "4.11 GMACs" is: BatchNorm 2 per input value; average pooling
  kNew,   ///< THOP 0.1: BatchNorm 4 per input value
};

/// MACs of one layer for one sample, in the place of the rule's.
using CustomMacs = std::function<std::int64_t(const nn::OperationInfo&)>;

struct ProfileOptions {
  MacRule rule = MacRule::kNew;
  /// By Operation::type(): {"Softmax", [](const nn::OperationInfo& layer) { ... }}. An operation that neither
  /// this nor the rule knows counts what its macs() says.
  std::map<std::string, CustomMacs, std::less<>> custom_rules = {};
};

struct LayerProfile {
  std::string name;        ///< "layer1.0.conv1"; empty for layers without parameters
  std::string type;        ///< "Conv2d"
  nn::Shape output_shape;  ///< without the batch
  std::int64_t macs = 0;   ///< of the whole batch
  std::int64_t parameters = 0;
};

struct ModelProfile {
  std::vector<LayerProfile> layers;  ///< in the order in which they run
  std::int64_t macs = 0;             ///< of the whole batch
  std::int64_t parameters = 0;
};

/// `input_shape`: the batch, then the shape that the model was made for: {1, 3, 224, 224}. MACs grow with the
/// batch. kInvalidArgument: another shape.
[[nodiscard]] Result<ModelProfile> profile(const nn::Model& model, const nn::Shape& input_shape,
                                           const ProfileOptions& options = {});

/// "4.134G", "25.557M", "61.706K": thousands, as THOP's clever_format. Below 1000 the number itself.
[[nodiscard]] std::string clever_format(std::int64_t number, int decimals = 3);

/// A table of the layers with a last line for the sums. Ends with a newline.
[[nodiscard]] std::string to_table(const ModelProfile& profile);

}  // namespace muster
