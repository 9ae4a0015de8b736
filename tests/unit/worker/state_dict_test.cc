// SPDX-License-Identifier: Apache-2.0
#include <filesystem>

#include <muster/state_dict.h>

#include "tests/support/bottleneck.h"
#include "tests/support/fixture.h"
#include "tests/support/temporary_directory.h"
#include "worker_runtime/device/device.h"

using namespace muster;

namespace {

nn::Model network(int classes = 5) {
  nn::Graph graph({3, 6, 6});
  const nn::Value y = test::bottleneck(graph.input(), classes);
  auto model = nn::Model::create(graph, y);
  REQUIRE_OK(model);
  return *std::move(model);
}

std::string data_file(const char* name) {
  return std::string(MUSTER_TEST_DATA) + "/" + name;
}

}  // namespace

TEST_CASE("a state dict of PyTorch's gives its logits, saved again it has its tensors") {
  nn::Model model = network();
  REQUIRE_OK(model.allocate(*make_compute(DeviceType::kCpu)));
  REQUIRE_OK(load_state_dict(data_file("pytorch_state_dict.safetensors"), model));
  const test::Fixture fixture("pytorch_state_dict_logits.safetensors");
  auto plan = model.plan(2, nn::Mode::kInference);
  REQUIRE_OK(plan);
  const auto x = fixture.get<float>("x"), logits = fixture.get<float>("logits");
  std::copy(x.begin(), x.end(), (*plan)->input());
  (*plan)->forward();
  for (std::size_t i = 0; i < logits.size(); ++i)
    REQUIRE((*plan)->output()[i] == Approx(logits[i]).epsilon(1e-5).margin(1e-6));

  const test::TemporaryDirectory directory;
  const std::string path = directory.path() + "/again.safetensors";
  REQUIRE_OK(save_state_dict(path, model));
  const test::Fixture theirs("pytorch_state_dict.safetensors");
  const auto bytes = read_file(path, 1 << 20);
  REQUIRE_OK(bytes);
  const auto mine = safetensors::parse(*bytes);
  REQUIRE_OK(mine);
  REQUIRE(mine->metadata.at("format") == "pt");
  std::size_t tensors = 0;
  for (const safetensors::TensorView& tensor : theirs.view().tensors) {
    if (tensor.name.ends_with("num_batches_tracked")) continue;
    INFO(tensor.name);
    const safetensors::TensorView* same = mine->find(tensor.name);
    REQUIRE(same != nullptr);
    REQUIRE(same->shape == tensor.shape);
    REQUIRE(same->bytes == tensor.bytes);
    ++tensors;
  }
  REQUIRE(mine->tensors.size() == tensors);
}

TEST_CASE("a state dict of another model is refused by name, and changes nothing") {
  nn::Model model = network(7);
  Generator generator(1);
  model.initialize(generator);
  const std::string before = nn::parameters_sha256(model);
  const std::string path = data_file("pytorch_state_dict.safetensors");
  REQUIRE(load_state_dict(path, model).error() ==
          Error{ErrorCode::kMismatch, "state dict " + path +
                                          ": tensor 'fc.weight' is F32 5x16, the model's is F32 7x16; "
                                          "these are the weights of another model"});
  nn::Model garment = nn::garment_classifier();
  REQUIRE(load_state_dict(path, garment).error().message ==
          "state dict " + path +
              ": tensor 'conv1.weight' is F32 8x3x3x3, the model's is F32 6x1x5x5; "
              "these are the weights of another model");
  const test::TemporaryDirectory directory;
  const std::string saved = directory.path() + "/garment.safetensors";
  REQUIRE_OK(save_state_dict(saved, garment));
  REQUIRE(load_state_dict(saved, model).error().code == ErrorCode::kMismatch);
  std::filesystem::resize_file(saved, 100);
  REQUIRE(load_state_dict(saved, garment).error().code == ErrorCode::kCorrupt);
  REQUIRE(load_state_dict(directory.path() + "/none", garment).error().code == ErrorCode::kNotFound);
  REQUIRE(nn::parameters_sha256(model) == before);
}
