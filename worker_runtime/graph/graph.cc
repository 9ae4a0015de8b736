// SPDX-License-Identifier: Apache-2.0
// Graph: the operations as a program writes them down.
#include <utility>

#include <muster/check.h>
#include <muster/nn.h>

#include "worker_runtime/device/device.h"
#include "worker_runtime/ops/shape_text.h"

namespace muster::nn {

const Shape& Value::shape() const {
  static const Shape kNone;
  return graph_->error_ ? kNone : graph_->shapes_[static_cast<std::size_t>(index_)];
}

Value Graph::add(std::string name, std::unique_ptr<Operation> operation,
                 std::initializer_list<Value> inputs) {
  const int output = static_cast<int>(nodes_.size()) + 1;
  if (error_) return {*this, 0};
  Node node;
  std::vector<Shape> shapes;
  for (const Value& input : inputs) {
    MUSTER_CHECK(input.graph_ == this, "an operation on values of two graphs");
    node.inputs.push_back(input.index_);
    shapes.push_back(input.shape());
  }
  auto shape = operation->configure(shapes);
  if (!shape) {
    error_ = Error{shape.error().code, operation_text(nodes_.size(), name) + ": " + shape.error().message};
    return {*this, 0};
  }
  node.name = std::move(name);
  node.operation = std::move(operation);
  nodes_.push_back(std::move(node));
  shapes_.push_back(*std::move(shape));
  return {*this, output};
}

Value apply(std::string name, std::unique_ptr<Operation> operation, std::initializer_list<Value> inputs) {
  MUSTER_CHECK(inputs.size() != 0, "an operation without inputs");
  return inputs.begin()->graph_->add(std::move(name), std::move(operation), inputs);
}

void Frame::report(const Error& error) const {
  device->report(error);
}

void Frame::report_cuda(int error, std::string_view what) const {
  device->report_cuda(error, what);
}

}  // namespace muster::nn
