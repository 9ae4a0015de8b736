// SPDX-License-Identifier: Apache-2.0
// Plan: when each piece of memory is in use, where it lies, and the walk over the operations.
#include <algorithm>
#include <limits>
#include <numeric>

#include <muster/nn.h>

#include "worker_runtime/graph/memory_plan.h"
#include "worker_runtime/kernels/kernels.h"
#include "worker_runtime/ops/add/add.h"

namespace muster::nn {
namespace {

std::int64_t elements_of(const Shape& shape) {
  return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
}

constexpr int kNever = -1;

}  // namespace

// Operation i runs forward at time i and backward at time 2n - i; the caller computes the loss at time n.
Result<std::unique_ptr<Plan>> Model::make_plan(int batch, Mode mode) const {
  const bool training = mode == Mode::kTraining;
  const int n = static_cast<int>(nodes_.size());
  const int end = 2 * n + 1;
  const auto at = [](auto& list, int index) -> auto& {
    return list[static_cast<std::size_t>(index)];
  };
  const auto operation = [&](int i) -> const Operation* { return at(nodes_, i).operation.get(); };
  const auto is_view = [&](int i) { return operation(i) != nullptr && operation(i)->is_view(); };
  const auto num_values = shapes_.size();

  // Who reads each value, in the order of the operations; and which operations have a gradient to compute:
  // those behind a parameter on whose output the loss depends.
  struct Reader {
    int operation;
    std::size_t input;
  };
  std::vector<std::vector<Reader>> readers(num_values);
  for (int i = 0; i < n; ++i)
    for (std::size_t k = 0; k < at(nodes_, i).inputs.size(); ++k)
      at(readers, at(nodes_, i).inputs[k]).push_back({i, k});
  std::vector<bool> wanted(num_values, false), reached(num_values, false);
  if (training) {
    wanted[0] = input_gradient_;
    for (int i = 0; i < n; ++i) {
      bool any = operation(i) != nullptr && !operation(i)->parameters().empty();
      for (const int input : at(nodes_, i).inputs) any = any || wanted[static_cast<std::size_t>(input)];
      wanted[static_cast<std::size_t>(i) + 1] = any;
    }
    reached[static_cast<std::size_t>(output_)] = true;
    for (int i = n - 1; i >= 0; --i)
      if (reached[static_cast<std::size_t>(i) + 1])
        for (const int input : at(nodes_, i).inputs) reached[static_cast<std::size_t>(input)] = true;
  }
  const auto has_gradient = [&](int value) {
    return wanted[static_cast<std::size_t>(value)] && reached[static_cast<std::size_t>(value)];
  };
  const auto has_backward = [&](int i) { return operation(i) != nullptr && has_gradient(i + 1); };

  MemoryPlan memory;
  const auto rows = static_cast<std::size_t>(batch);
  const auto bytes_of = [&](int value) {
    return rows * static_cast<std::size_t>(elements_of(at(shapes_, value))) * sizeof(float);
  };

  // Activations: from the operation that writes them to the last that reads them. A view is its input's
  // memory.
  std::vector<int> block_of(num_values);
  block_of[0] = memory.add(bytes_of(0), -1, -1);
  const int labels = memory.add(rows * sizeof(std::int32_t), -1, end);
  std::size_t workspace_bytes = 0;
  for (int i = 0; i < n; ++i) {
    if (operation(i) == nullptr) continue;
    const int output = i + 1;
    at(block_of, output) =
        is_view(i) ? at(block_of, at(nodes_, i).inputs[0]) : memory.add(bytes_of(output), i, i);
    if (has_backward(i) && !is_view(i) && operation(i)->backward_reads_y())
      memory.use(at(block_of, output), 2 * n - i);
    for (const int input : at(nodes_, i).inputs) {
      memory.use(at(block_of, input), i);
      if (has_backward(i) && !is_view(i) && operation(i)->backward_reads_x())
        memory.use(at(block_of, input), 2 * n - i);
    }
    workspace_bytes = std::max(workspace_bytes, operation(i)->workspace_bytes(batch));
  }
  memory.use(at(block_of, output_), end);
  const int workspace = memory.add(workspace_bytes, -1, end);

  // Gradients: from the first operation backward that writes one to the one whose output it is. The gradient
  // of a view is its input's, if it is the first to write that one. Who writes after the first does so
  // elsewhere, and it is added.
  std::vector<int> gradient_of(num_values, kNever);
  std::vector<std::vector<int>> dx_of(static_cast<std::size_t>(n)), sum_of(static_cast<std::size_t>(n));
  const auto time_of_producer = [&](int value) { return value == 0 ? end : 2 * n - (value - 1); };
  if (training && has_gradient(output_))
    at(gradient_of, output_) = memory.add(bytes_of(output_), n, time_of_producer(output_));
  else if (training)
    at(gradient_of, output_) = memory.add(bytes_of(output_), n, end);
  for (int i = n - 1; i >= 0; --i) {
    at(dx_of, i).assign(at(nodes_, i).inputs.size(), kNever);
    at(sum_of, i).assign(at(nodes_, i).inputs.size(), kNever);
    if (!has_backward(i)) continue;
    for (std::size_t k = 0; k < at(nodes_, i).inputs.size(); ++k) {
      const int input = at(nodes_, i).inputs[k];
      if (!has_gradient(input)) continue;
      const int now = 2 * n - i;
      const bool is_first = at(gradient_of, input) == kNever;
      const int written = is_view(i) ? at(gradient_of, i + 1) : memory.add(bytes_of(input), now, now);
      if (is_first) {
        at(gradient_of, input) = written;
        memory.use(written, time_of_producer(input));
      } else {
        at(sum_of, i)[k] = at(gradient_of, input);
      }
      at(dx_of, i)[k] = written;
    }
  }
  std::vector<int> saved_of(static_cast<std::size_t>(n), kNever);
  for (int i = 0; i < n; ++i)
    if (operation(i) != nullptr)
      at(saved_of, i) = memory.add(operation(i)->saved_bytes(batch), i, has_backward(i) ? 2 * n - i : i);

  const MemoryPlan::Layout layout = memory.lay_out();
  MUSTER_TRY(void* const arena, compute_->allocate(layout.size_bytes));
  auto* const base = static_cast<std::uint8_t*>(arena);
  const auto place = [&](int block) { return base + layout.offsets[static_cast<std::size_t>(block)]; };
  const auto floats = [&](int block) { return reinterpret_cast<float*>(place(block)); };
  const auto tensor = [&](int value, int block) {
    Tensor made;
    if (block != kNever) made.data = place(block);
    made.device = compute_->device();
    const Shape& shape = at(shapes_, value);
    made.rank = static_cast<int>(shape.size()) + 1;
    made.dims[0] = batch;
    std::copy(shape.begin(), shape.end(), made.dims.begin() + 1);
    return made;
  };

  auto plan = std::make_unique<Plan>();
  plan->kernels_ = compute_.get();
  plan->mode_ = mode;
  plan->batch_ = batch;
  plan->size_bytes_ = layout.size_bytes;
  plan->live_bytes_ = layout.live_bytes;
  plan->input_ = floats(block_of[0]);
  plan->labels_ = reinterpret_cast<std::int32_t*>(place(labels));
  plan->output_ = floats(at(block_of, output_));
  if (training) plan->output_gradient_ = floats(at(gradient_of, output_));
  if (gradient_of[0] != kNever) plan->input_gradient_ = floats(gradient_of[0]);
  plan->steps_.resize(static_cast<std::size_t>(n));
  plan->first_operation_ = n;
  std::size_t next_parameter = 0, next_buffer = 0;
  for (int i = 0; i < n; ++i) {
    if (operation(i) == nullptr) continue;
    Plan::Step& step = at(plan->steps_, i);
    if (!is_view(i)) {
      MUSTER_OK(operation(i)->plan(*compute_, batch));
      step.operation = operation(i);
    }
    Frame& frame = step.frame;
    frame.mode = mode;
    frame.kernels = compute_.get();
    frame.device = compute_->device();
    frame.stream = compute_->stream();
    frame.y = tensor(i + 1, at(block_of, i + 1));
    frame.dy = tensor(i + 1, has_backward(i) ? at(gradient_of, i + 1) : kNever);
    frame.saved = place(at(saved_of, i));
    frame.workspace = place(workspace);
    for (std::size_t k = 0; k < at(nodes_, i).inputs.size(); ++k) {
      const int input = at(nodes_, i).inputs[k];
      frame.x.push_back(tensor(input, at(block_of, input)));
      frame.dx.push_back(tensor(input, at(dx_of, i)[k]));
      if (const int into = at(sum_of, i)[k]; into != kNever)
        step.sums.push_back({floats(into), frame.dx[k].f32(), static_cast<std::size_t>(frame.dx[k].count())});
    }
    for (; next_parameter < parameters_.size() && parameters_[next_parameter].operation == i;
         ++next_parameter) {
      frame.params.push_back(params_ + parameters_[next_parameter].offset);
      frame.grads.push_back(grads_ + parameters_[next_parameter].offset);
    }
    for (; next_buffer < buffers_.size() && buffers_[next_buffer].operation == i; ++next_buffer)
      frame.buffers.push_back(buffer_arena_ + buffers_[next_buffer].offset);
    step.has_backward = has_backward(i) && (step.operation != nullptr || !step.sums.empty());
    if (step.has_backward) plan->first_operation_ = std::min(plan->first_operation_, i);
  }
  return plan;
}

void Plan::forward() const {
  for (const Step& step : steps_)
    if (step.operation != nullptr)
      kernels_->enqueue(
          [](const void* work) {
            const auto& s = *static_cast<const Step*>(work);
            s.operation->forward(s.frame);
          },
          &step);
}

void Plan::backward_operation(int operation) const {
  const Step& step = steps_[static_cast<std::size_t>(operation)];
  if (!step.has_backward) return;
  kernels_->enqueue(
      [](const void* work) {
        const auto& s = *static_cast<const Step*>(work);
        if (s.operation != nullptr) s.operation->backward(s.frame);
        for (const Step::Sum& sum : s.sums) add_into(s.frame, sum.into, sum.from, sum.count);
      },
      &step);
}

void Plan::backward() const {
  for (int operation = last_operation(); operation >= first_operation(); --operation)
    backward_operation(operation);
}

}  // namespace muster::nn
