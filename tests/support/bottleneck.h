// SPDX-License-Identifier: Apache-2.0
// The ResNet of one bottleneck, for images (3, 6, 6), of tests/data/make_fixtures.py.
#pragma once

#include <muster/nn.h>

namespace muster::test {

inline nn::Value bottleneck(nn::Value x, int classes) {
  const auto conv = [](const std::string& name, nn::Value in, int channels, int kernel, int stride) {
    return nn::conv2d(
        name, in,
        {.out_channels = channels, .kernel = kernel, .stride = stride, .padding = kernel / 2, .bias = false});
  };
  x = nn::relu(nn::batch_norm2d("bn1", conv("conv1", x, 8, 3, 1)));
  nn::Value y = nn::relu(nn::batch_norm2d("layer1.0.bn1", conv("layer1.0.conv1", x, 4, 1, 1)));
  y = nn::relu(nn::batch_norm2d("layer1.0.bn2", conv("layer1.0.conv2", y, 4, 3, 2)));
  y = nn::batch_norm2d("layer1.0.bn3", conv("layer1.0.conv3", y, 16, 1, 1));
  x = nn::batch_norm2d("layer1.0.downsample.1", conv("layer1.0.downsample.0", x, 16, 1, 2));
  return nn::linear("fc", nn::flatten(nn::adaptive_avg_pool2d(nn::relu(nn::add(y, x)))), classes);
}

}  // namespace muster::test
