// SPDX-License-Identifier: Apache-2.0
// muster-profile: prints MACs and parameters of a model, layer by layer: `muster-profile resnet50 3x224x224`.
#include <charconv>
#include <cstdio>
#include <map>
#include <optional>
#include <string>

#include <nlohmann/json.hpp>

#include <muster/profile.h>

#include "command_line.h"

namespace {

using namespace muster;

/// "3x224x224", or "8x3x224x224" with a batch in front.
std::optional<nn::Shape> parse_shape(const std::string& text) {
  constexpr int kLargest = 16384;
  nn::Shape shape;
  if (text.ends_with('x')) return {};  // split() would pass over it
  for (const std::string& side : CLI::detail::split(text, 'x')) {
    int& size = shape.emplace_back();
    const auto [end, error] = std::from_chars(side.data(), side.data() + side.size(), size);
    if (error != std::errc() || end != side.data() + side.size() || size < 1 || size > kLargest) return {};
  }
  if (shape.size() == 3) shape.insert(shape.begin(), 1);
  return shape.size() == 4 ? std::optional(shape) : std::nullopt;
}

Result<nn::Model> make_model(const std::string& name, const nn::Shape& sample) {
  const nn::ModelOptions options{.fuse = false};
  if (name == "garment_classifier") return nn::garment_classifier(options);
  if (name == "lenet5") return nn::lenet5(options);
  if (name == "mlp") return nn::mlp(options);
  return nn::resnet(std::stoi(name.substr(6)), sample, 1000, options);
}

std::string to_json(const ModelProfile& profile) {
  nlohmann::ordered_json json{
      {"macs", profile.macs}, {"parameters", profile.parameters}, {"layers", nlohmann::json::array()}};
  for (const LayerProfile& layer : profile.layers)
    json["layers"].push_back({{"name", layer.name},
                              {"type", layer.type},
                              {"output_shape", layer.output_shape},
                              {"macs", layer.macs},
                              {"parameters", layer.parameters}});
  return json.dump(1) + "\n";
}

Result<int> print(const std::string& name, std::string shape_text, MacRule rule, bool json) {
  if (shape_text.empty()) shape_text = name.starts_with("resnet") ? "3x224x224" : "1x28x28";
  const std::optional<nn::Shape> shape = parse_shape(shape_text);
  if (!shape)
    return fail(ErrorCode::kInvalidArgument,
                "'" + shape_text +
                    "' is not the shape of an image, channels x height x width such as 3x224x224 (each 1 to "
                    "16384), or with a batch in front 8x3x224x224");
  MUSTER_TRY(const nn::Model model, make_model(name, {shape->begin() + 1, shape->end()}));
  MUSTER_TRY(const ModelProfile counted, profile(model, *shape, {.rule = rule, .custom_rules = {}}));
  std::fputs((json ? to_json(counted) : to_table(counted)).c_str(), stdout);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::map<std::string, MacRule> rules{
      {"old", MacRule::kOld}, {"new", MacRule::kNew}, {"pure", MacRule::kPure}};
  std::string name, shape_text, rule = "new";
  bool json = false;
  CLI::App app("Counts multiply-accumulates (MACs) and parameters of a model's forward pass.",
               "muster-profile");
  app.add_option("MODEL", name, "the model")
      ->required()
      ->check(CLI::IsMember({"resnet18", "resnet34", "resnet50", "resnet101", "resnet152",
                             "garment_classifier", "lenet5", "mlp"}));
  app.add_option("SHAPE", shape_text,
                 "of the input: 3x224x224, with a batch 8x3x224x224 (default: the model's usual one)");
  app.add_option("--rule", rule,
                 "new or old: THOP's since and before 0.1; pure: convolutions and linear layers")
      ->check(CLI::IsMember({"old", "new", "pure"}))
      ->capture_default_str();
  app.add_flag("--json", json, "exact numbers as JSON");
  return run_program(app, argc, argv, [&] { return print(name, shape_text, rules.at(rule), json); });
}
