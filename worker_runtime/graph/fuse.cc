// SPDX-License-Identifier: Apache-2.0
#include "worker_runtime/graph/fuse.h"

#include "worker_runtime/ops/linear/linear.h"
#include "worker_runtime/ops/max_pool/max_pool.h"

namespace muster::nn {
namespace {

/// What does the work of both, the second of which is the only one to read the first's output; or nullptr.
std::unique_ptr<Operation> fused(const Operation& first, const Operation& second) {
  if (second.type() == "ReLU") return linear_with_relu(first);
  if (first.type() == "ReLU") return max_pool_with_relu(second);
  return nullptr;
}

}  // namespace

void fuse(Graph& graph, int output) {
  std::vector<int> readers(graph.shapes_.size(), 0);
  for (const Graph::Node& node : graph.nodes_)
    for (const int input : node.inputs) ++readers[static_cast<std::size_t>(input)];
  ++readers[static_cast<std::size_t>(output)];
  for (Graph::Node& second : graph.nodes_) {
    if (second.operation == nullptr || second.inputs.size() != 1) continue;
    const int between = second.inputs[0];
    if (between == 0 || readers[static_cast<std::size_t>(between)] != 1) continue;
    Graph::Node& first = graph.nodes_[static_cast<std::size_t>(between - 1)];
    if (first.operation == nullptr) continue;
    auto one = fused(*first.operation, *second.operation);
    if (one == nullptr) continue;
    std::vector<Shape> shapes;
    shapes.reserve(first.inputs.size());
    for (const int input : first.inputs) shapes.push_back(graph.shapes_[static_cast<std::size_t>(input)]);
    if (!one->configure(shapes)) continue;
    if (second.name.empty()) second.name = first.name;
    second.inputs = std::move(first.inputs);
    second.operation = std::move(one);
    first.operation.reset();
    first.inputs.clear();
  }
}

}  // namespace muster::nn
