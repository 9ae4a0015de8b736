// SPDX-License-Identifier: Apache-2.0
// Networks with PyTorch's and torchvision's names.
#include <algorithm>
#include <array>
#include <utility>

#include <muster/check.h>
#include <muster/nn.h>

#include "rendezvous/base/fail.h"

namespace muster::nn {
namespace {

Model checked(Result<Model> model) {
  MUSTER_CHECK(model.has_value(), model.error().message);
  return *std::move(model);
}

/// A convolution as torchvision's ResNets have it: without bias, initialised by its fan-out.
Value plain_conv(const std::string& name, Value x, int out_channels, int kernel, int stride) {
  return conv2d(name, x,
                {.out_channels = out_channels,
                 .kernel = kernel,
                 .stride = stride,
                 .padding = kernel / 2,
                 .bias = false,
                 .weight_init = kaiming_normal(std::int64_t{out_channels} * kernel * kernel)});
}

/// The identity, or what fits it to the block's output.
Value shortcut(const std::string& name, Value x, int channels, int stride) {
  if (stride == 1 && x.shape().size() == 3 && x.shape()[0] == channels) return x;
  x = plain_conv(name + ".downsample.0", x, channels, 1, stride);
  return batch_norm2d(name + ".downsample.1", x);
}

Value basic_block(const std::string& name, Value x, int width, int stride) {
  Value y = relu(batch_norm2d(name + ".bn1", plain_conv(name + ".conv1", x, width, 3, stride)));
  y = batch_norm2d(name + ".bn2", plain_conv(name + ".conv2", y, width, 3, 1));
  return relu(add(y, shortcut(name, x, width, stride)));
}

Value bottleneck(const std::string& name, Value x, int width, int stride) {
  Value y = relu(batch_norm2d(name + ".bn1", plain_conv(name + ".conv1", x, width, 1, 1)));
  y = relu(batch_norm2d(name + ".bn2", plain_conv(name + ".conv2", y, width, 3, stride)));
  y = batch_norm2d(name + ".bn3", plain_conv(name + ".conv3", y, 4 * width, 1, 1));
  return relu(add(y, shortcut(name, x, 4 * width, stride)));
}

/// Two convolutions and three linear layers: `padding` is the first one's.
Model convolutional(int padding, const ModelOptions& options) {
  Graph graph({1, 28, 28});
  Value x = conv2d("conv1", graph.input(), {.out_channels = 6, .kernel = 5, .padding = padding});
  x = max_pool2d(relu(x));
  x = conv2d("conv2", x, {.out_channels = 16, .kernel = 5});
  x = flatten(max_pool2d(relu(x)));
  x = relu(linear("fc1", x, 120));
  x = relu(linear("fc2", x, 84));
  x = linear("fc3", x, 10);
  return checked(Model::create(graph, x, options));
}

}  // namespace

Model garment_classifier(const ModelOptions& options) {
  return convolutional(0, options);
}

Model lenet5(const ModelOptions& options) {
  return convolutional(2, options);
}

Model mlp(const ModelOptions& options) {
  Graph graph({1, 28, 28});
  Value x = relu(linear("fc1", flatten(graph.input()), 512));
  x = relu(linear("fc2", x, 512));
  return checked(Model::create(graph, linear("fc3", x, 10), options));
}

Result<Model> resnet(int depth, const Shape& input, int classes, const ModelOptions& options) {
  struct Kind {
    int depth;
    Value (*block)(const std::string&, Value, int, int);
    std::array<int, 4> blocks;
  };
  static constexpr std::array<Kind, 5> kKinds{{{18, basic_block, {2, 2, 2, 2}},
                                               {34, basic_block, {3, 4, 6, 3}},
                                               {50, bottleneck, {3, 4, 6, 3}},
                                               {101, bottleneck, {3, 4, 23, 3}},
                                               {152, bottleneck, {3, 8, 36, 3}}}};
  const auto kind =
      std::find_if(kKinds.begin(), kKinds.end(), [depth](const Kind& k) { return k.depth == depth; });
  if (kind == kKinds.end()) return invalid("ResNet-{} is not there: 18, 34, 50, 101 and 152 are", depth);
  Graph graph(input);
  Value x = relu(batch_norm2d("bn1", plain_conv("conv1", graph.input(), 64, 7, 2)));
  x = max_pool2d(x, {.kernel = 3, .stride = 2, .padding = 1});
  for (int stage = 0; stage < 4; ++stage)
    for (int i = 0; i < kind->blocks[static_cast<std::size_t>(stage)]; ++i)
      x = kind->block("layer" + std::to_string(stage + 1) + "." + std::to_string(i), x, 64 << stage,
                      stage > 0 && i == 0 ? 2 : 1);
  x = linear("fc", flatten(adaptive_avg_pool2d(x)), classes);
  return Model::create(graph, x, options);
}

}  // namespace muster::nn
