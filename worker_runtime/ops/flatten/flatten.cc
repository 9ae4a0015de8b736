// SPDX-License-Identifier: Apache-2.0
#include <muster/nn.h>

#include "rendezvous/base/fail.h"
#include "worker_runtime/ops/shape_text.h"

namespace muster::nn {
namespace {

class Flatten final : public Operation {
 public:
  std::string_view type() const override { return "Flatten"; }
  Result<Shape> configure(std::span<const Shape> inputs) override {
    if (inputs.size() != 1) return invalid("Flatten expects one input, it has {}", to_text(inputs));
    return Shape{static_cast<int>(elements_of(inputs[0]))};
  }
  bool is_view() const override { return true; }
  void forward(const Frame& /*frame*/) const override {}
  void backward(const Frame& /*frame*/) const override {}
};

}  // namespace

Value flatten(Value x) {
  return apply("", std::make_unique<Flatten>(), {x});
}

}  // namespace muster::nn
