// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <utility>

#include <fmt/format.h>

#include <muster/profile.h>

#include "rendezvous/base/fail.h"

namespace muster {
namespace {

std::int64_t macs_of(const nn::OperationInfo& layer, const ProfileOptions& options) {
  const std::string_view type = layer.operation->type();
  if (const auto custom = options.custom_rules.find(type); custom != options.custom_rules.end())
    return custom->second(layer);
  if (options.rule == MacRule::kPure) return layer.operation->macs();
  const std::int64_t outputs = nn::elements_of(layer.output);
  if (type == "BatchNorm2d" || type == "SyncBatchNorm")
    return (options.rule == MacRule::kOld ? 2 : 4) * nn::elements_of(layer.inputs[0]);
  if (type == "AvgPool2d") return outputs;
  if (type == "AdaptiveAvgPool2d") {  // the values of one window, and the division
    const nn::Shape &in = layer.inputs[0], &out = layer.output;
    return (std::int64_t{in[1] / out[1]} * (in[2] / out[2]) + 1) * outputs;
  }
  return layer.operation->macs();
}

}  // namespace

Result<ModelProfile> profile(const nn::Model& model, const nn::Shape& input_shape,
                             const ProfileOptions& options) {
  const nn::Shape& sample = model.input_shape();
  if (input_shape.size() != sample.size() + 1 || input_shape[0] < 1 ||
      !std::equal(sample.begin(), sample.end(), input_shape.begin() + 1))
    return invalid("profile: an input of {}, the model takes (batch, {}); make the model for it",
                   fmt::format("({})", fmt::join(input_shape, ", ")), fmt::join(sample, ", "));
  ModelProfile made;
  for (const nn::OperationInfo& layer : model.operations()) {
    LayerProfile row{layer.name, std::string(layer.operation->type()), layer.output};
    row.macs = macs_of(layer, options) * input_shape[0];
    for (const nn::ParameterSpec& parameter : layer.operation->parameters())
      row.parameters += nn::elements_of(parameter.shape);
    made.macs += row.macs;
    made.parameters += row.parameters;
    made.layers.push_back(std::move(row));
  }
  return made;
}

std::string clever_format(std::int64_t number, int decimals) {
  static constexpr std::array<std::pair<double, char>, 4> kUnits{
      {{1e12, 'T'}, {1e9, 'G'}, {1e6, 'M'}, {1e3, 'K'}}};
  const auto value = static_cast<double>(number);
  for (const auto& [size, letter] : kUnits)
    if (value >= size) return fmt::format("{:.{}f}{}", value / size, decimals, letter);
  return std::to_string(number);
}

std::string to_table(const ModelProfile& profile) {
  std::size_t wide = 5;
  for (const LayerProfile& layer : profile.layers) wide = std::max(wide, layer.name.size());
  const auto row = [wide](std::string_view name, std::string_view type, const std::string& shape,
                          const std::string& macs, const std::string& parameters) {
    return fmt::format("{:<{}}  {:<17}  {:<16}{:>10}{:>12}\n", name, wide, type, shape, macs, parameters);
  };
  std::string text = row("layer", "type", "output shape", "MACs", "parameters");
  for (const LayerProfile& layer : profile.layers)
    text += row(layer.name, layer.type, fmt::format("{}", fmt::join(layer.output_shape, "x")),
                clever_format(layer.macs), clever_format(layer.parameters));
  return text + row("total", "", "", clever_format(profile.macs), clever_format(profile.parameters));
}

}  // namespace muster
