// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include <muster/check.h>
#include <muster/nn.h>

namespace muster::nn {
namespace {

Model checked(Result<Model> model) {
  MUSTER_CHECK(model.has_value(), model.error().message);
  return *std::move(model);
}

}  // namespace

Model garment_classifier() {
  std::vector<NamedLayer> layers;
  layers.push_back({"conv1", conv2d({.in_channels = 1, .out_channels = 6, .kernel = 5})});
  layers.push_back({"pool1", relu_max_pool2d()});
  layers.push_back({"conv2", conv2d({.in_channels = 6, .out_channels = 16, .kernel = 5})});
  layers.push_back({"pool2", relu_max_pool2d()});
  layers.push_back({"flatten", flatten()});
  layers.push_back({"fc1", linear(16 * 4 * 4, 120, true)});
  layers.push_back({"fc2", linear(120, 84, true)});
  layers.push_back({"fc3", linear(84, 10)});
  return checked(Model::create({1, 28, 28}, std::move(layers)));
}

Model mlp() {
  std::vector<NamedLayer> layers;
  layers.push_back({"flatten", flatten()});
  layers.push_back({"fc1", linear(784, 512, true)});
  layers.push_back({"fc2", linear(512, 512, true)});
  layers.push_back({"fc3", linear(512, 10)});
  return checked(Model::create({1, 28, 28}, std::move(layers)));
}

}  // namespace muster::nn
