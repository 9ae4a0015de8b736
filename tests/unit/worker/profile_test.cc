// SPDX-License-Identifier: Apache-2.0
// The figures are those of THOP 0.1.1 and of the versions before it, batch 1.
#include <muster/profile.h>

#include "tests/support/catch.h"

using namespace muster;

namespace {

nn::Model resnet(int depth, const nn::ModelOptions& options = {}) {
  auto model = nn::resnet(depth, {3, 224, 224}, 1000, options);
  REQUIRE_OK(model);
  return *std::move(model);
}

ModelProfile counted(const nn::Model& model, MacRule rule, int batch = 1) {
  nn::Shape shape = model.input_shape();
  shape.insert(shape.begin(), batch);
  auto made = profile(model, shape, {.rule = rule, .custom_rules = {}});
  REQUIRE_OK(made);
  return *std::move(made);
}

}  // namespace

TEST_CASE("ResNets have the MACs and parameters that THOP counts") {
  struct Known {
    int depth;
    std::int64_t pure, old_rule, new_rule, parameters;
  };
  for (const Known& known : {Known{18, 1'814'073'344, 1'819'066'368, 1'824'033'792, 11'689'512},
                             Known{34, 3'663'761'408, 3'671'263'232, 3'678'739'456, 21'797'672},
                             Known{50, 4'089'184'256, 4'111'514'624, 4'133'742'592, 25'557'032},
                             Known{101, 7'801'405'440, 7'833'971'712, 7'866'435'584, 44'549'160},
                             Known{152, 11'513'626'624, 11'558'837'248, 11'603'945'472, 60'192'808}}) {
    const nn::Model model = resnet(known.depth);
    INFO("ResNet-" << known.depth);
    REQUIRE(counted(model, MacRule::kPure).macs == known.pure);
    REQUIRE(counted(model, MacRule::kOld).macs == known.old_rule);
    REQUIRE(counted(model, MacRule::kNew).macs == known.new_rule);
    REQUIRE(counted(model, MacRule::kNew).parameters == known.parameters);
  }
}

TEST_CASE("a profile has each layer once, and fused layers count the same") {
  const ModelProfile fused = counted(nn::garment_classifier(), MacRule::kNew);
  const ModelProfile single = counted(nn::garment_classifier({.fuse = false}), MacRule::kNew);
  REQUIRE(fused.macs == 281'640);
  REQUIRE(fused.parameters == 44'426);
  REQUIRE(counted(nn::lenet5(), MacRule::kPure).macs == 416'520);
  REQUIRE(single.macs == fused.macs);
  REQUIRE(single.parameters == fused.parameters);
  REQUIRE(fused.layers.size() < single.layers.size());
  REQUIRE(single.layers.size() == 12);
  REQUIRE(single.layers[0].name == "conv1");
  REQUIRE(single.layers[0].type == "Conv2d");
  REQUIRE(single.layers[0].output_shape == nn::Shape{6, 24, 24});
  REQUIRE(single.layers[0].macs == 6 * 24 * 24 * 25);
  REQUIRE(single.layers[0].parameters == 156);
  REQUIRE(single.layers[1].type == "ReLU");
  REQUIRE(single.layers[1].macs == 0);
}

TEST_CASE("MACs grow with the batch, parameters do not") {
  const nn::Model model = nn::garment_classifier();
  REQUIRE(counted(model, MacRule::kNew, 8).macs == 8 * 281'640);
  REQUIRE(counted(model, MacRule::kNew, 8).parameters == 44'426);
}

TEST_CASE("average pooling and BatchNorm are counted as THOP counts them") {
  nn::Graph graph({4, 12, 12});
  nn::Value x = nn::conv2d("conv", graph.input(), {.out_channels = 4, .kernel = 1});
  x = nn::adaptive_avg_pool2d(nn::avg_pool2d(nn::batch_norm2d("bn", x)), 2, 2);
  auto model = nn::Model::create(graph, nn::linear("fc", nn::flatten(x), 3));
  REQUIRE_OK(model);
  const std::int64_t conv = 4 * 144 * 4, bn = 4 * 144, pool = 4 * 36, adaptive = (3 * 3 + 1) * 16, fc = 48;
  REQUIRE(counted(*model, MacRule::kPure).macs == conv + fc);
  REQUIRE(counted(*model, MacRule::kOld).macs == conv + 2 * bn + pool + adaptive + fc);
  REQUIRE(counted(*model, MacRule::kNew).macs == conv + 4 * bn + pool + adaptive + fc);
}

TEST_CASE("a custom rule takes the place of a type's rule") {
  ProfileOptions options;
  options.custom_rules["ReLU"] = [](const nn::OperationInfo& layer) { return std::int64_t{layer.output[0]}; };
  const nn::Model model = nn::mlp({.fuse = false});
  const auto made = profile(model, {2, 1, 28, 28}, options);
  REQUIRE_OK(made);
  REQUIRE(made->layers[2].type == "ReLU");
  REQUIRE(made->layers[2].macs == 2 * 512);
}

TEST_CASE("a profile of another input says what the model takes") {
  const nn::Model model = nn::lenet5();
  const auto made = profile(model, {1, 28, 28});
  REQUIRE(made.error().code == ErrorCode::kInvalidArgument);
  REQUIRE(made.error().message ==
          "profile: an input of (1, 28, 28), the model takes (batch, 1, 28, 28); make the model for it");
  REQUIRE_FALSE(profile(model, {0, 1, 28, 28}));
}

TEST_CASE("numbers are formatted as THOP's clever_format does") {
  REQUIRE(clever_format(4'133'742'592) == "4.134G");
  REQUIRE(clever_format(25'557'032) == "25.557M");
  REQUIRE(clever_format(4'111'514'624, 2) == "4.11G");
  REQUIRE(clever_format(44'426) == "44.426K");
  REQUIRE(clever_format(2'500'000'000'000) == "2.500T");
  REQUIRE(clever_format(84) == "84");
  const std::string table = to_table(counted(nn::mlp(), MacRule::kNew));
  REQUIRE(table.ends_with("669.706K\n"));
  REQUIRE(table.find("fc1    Linear             512               401.408K    401.920K\n") !=
          std::string::npos);
}
