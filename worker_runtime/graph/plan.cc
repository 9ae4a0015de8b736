// SPDX-License-Identifier: Apache-2.0
// Plan: when each piece of memory is in use, where it lies, and the walk over the operations.
#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include <muster/check.h>
#include <muster/nn.h>

#include "rendezvous/base/fail.h"
#include "worker_runtime/device/tracer.h"
#include "worker_runtime/graph/memory_plan.h"
#include "worker_runtime/ops/cast/cast.h"
#include "worker_runtime/ops/dropout/dropout.h"
#include "worker_runtime/ops/shape_text.h"

namespace muster::nn {
namespace {

constexpr int kNever = -1;
constexpr DType kF32 = DType::kFloat32;

}  // namespace

int MemoryPlan::add(std::size_t size_bytes, int begin, int end) {
  blocks_.push_back({(size_bytes + kAlignment - 1) / kAlignment * kAlignment, begin, end});
  return static_cast<int>(blocks_.size()) - 1;
}

void MemoryPlan::use(int block, int time) {
  Block& used = blocks_[static_cast<std::size_t>(block)];
  used.begin = std::min(used.begin, time);
  used.end = std::max(used.end, time);
}

MemoryPlan::Layout MemoryPlan::lay_out() const {
  Layout layout;
  layout.offsets.resize(blocks_.size());
  std::vector<std::size_t> order(blocks_.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return blocks_[a].size_bytes > blocks_[b].size_bytes;
  });
  std::vector<std::size_t> placed;  // in the order of their offsets
  std::map<int, std::ptrdiff_t> change;
  for (const std::size_t i : order) {
    const Block& block = blocks_[i];
    std::size_t offset = 0;
    for (const std::size_t other : placed) {
      if (blocks_[other].end < block.begin || block.end < blocks_[other].begin) continue;
      if (layout.offsets[other] >= offset + block.size_bytes) break;  // it fits in front of this one
      offset = std::max(offset, layout.offsets[other] + blocks_[other].size_bytes);
    }
    layout.offsets[i] = offset;
    layout.size_bytes = std::max(layout.size_bytes, offset + block.size_bytes);
    placed.insert(
        std::upper_bound(placed.begin(), placed.end(), offset,
                         [&](std::size_t value, std::size_t o) { return value < layout.offsets[o]; }),
        i);
    change[block.begin] += static_cast<std::ptrdiff_t>(block.size_bytes);
    change[block.end + 1] -= static_cast<std::ptrdiff_t>(block.size_bytes);
  }
  std::ptrdiff_t live = 0;
  for (const auto& [time, bytes] : change) {
    live += bytes;
    layout.live_bytes = std::max(layout.live_bytes, static_cast<std::size_t>(live));
  }
  return layout;
}

// Operation i runs forward at time i and backward at time 2n - i; the caller computes the loss at time n.
class Model::PlanBuilder {
 public:
  PlanBuilder(Model& model, int batch, Mode mode)
      : model_(model),
        batch_(batch),
        mode_(mode),
        training_(mode == Mode::kTraining),
        n_(static_cast<int>(model.nodes_.size())),
        end_(2 * n_ + 1) {}

  Result<std::unique_ptr<Plan>> build() {
    find_gradients();
    choose_formats();
    MUSTER_OK(prepare());
    place_activations();
    place_gradients();
    return assemble();
  }

 private:
  template <class List>
  static decltype(auto) at(List& list, int index) {
    return list[static_cast<std::size_t>(index)];
  }
  const Operation* operation(int i) const { return at(model_.nodes_, i).operation.get(); }
  const std::vector<int>& inputs(int i) const { return at(model_.nodes_, i).inputs; }
  std::string name_of(int i) const {
    return operation_text(static_cast<std::size_t>(i), at(model_.nodes_, i).name);
  }
  bool is_view(int i) const { return operation(i) != nullptr && operation(i)->is_view(); }
  bool has_gradient(int value) const { return at(wanted_, value) && at(reached_, value); }
  bool has_backward(int i) const { return operation(i) != nullptr && has_gradient(i + 1); }
  int backward_time(int i) const { return 2 * n_ - i; }
  int time_of_producer(int value) const { return value == 0 ? end_ : backward_time(value - 1); }
  std::int64_t elements_in(int value) const { return elements_of(at(model_.shapes_, value), batch_); }
  std::size_t bytes_of(int value) const {
    return static_cast<std::size_t>(elements_in(value)) * size_of(at(kept_in_, value).dtype);
  }

  /// The operations that have a gradient to compute: those behind a parameter on whose output the loss
  /// depends.
  void find_gradients() {
    wanted_.assign(model_.shapes_.size(), false);
    reached_ = wanted_;
    if (!training_) return;
    wanted_[0] = model_.input_gradient_;
    for (int i = 0; i < n_; ++i) {
      bool any = operation(i) != nullptr && !operation(i)->parameters().empty();
      for (const int input : inputs(i)) any = any || at(wanted_, input);
      at(wanted_, i + 1) = any;
    }
    at(reached_, model_.output_) = true;
    for (int i = n_ - 1; i >= 0; --i)
      if (at(reached_, i + 1))
        for (const int input : inputs(i)) at(reached_, input) = true;
  }

  /// A format of one value: what lies in memory alike is NCHW.
  TensorFormat format_of(int value, const TensorFormat& format) const {
    const Shape& shape = at(model_.shapes_, value);
    const bool alike = shape.size() != 3 || shape[0] == 1 || shape[1] * shape[2] == 1;
    return {format.dtype, alike ? Layout::kNCHW : format.layout};
  }

  /// What each operation computes in, and each value is kept in: as the operation that makes it computes it,
  /// but in the type that autocast says; NCHW where a view reads it. The model's input and output are float32
  /// NCHW.
  void choose_formats() {
    kept_in_.assign(model_.shapes_.size(), {});
    computed_in_.assign(static_cast<std::size_t>(n_), {});
    rounded_to_.assign(static_cast<std::size_t>(n_), kF32);
    std::vector<bool> is_viewed(model_.shapes_.size(), false);
    for (int i = 0; i < n_; ++i)
      if (is_view(i)) at(is_viewed, inputs(i)[0]) = true;
    for (int i = 0; i < n_; ++i) {
      if (operation(i) == nullptr) continue;
      const Autocast policy = operation(i)->autocast();
      const bool lower =
          policy == Autocast::kLower ||
          (policy == Autocast::kPromote && std::none_of(inputs(i).begin(), inputs(i).end(), [&](int input) {
             return at(kept_in_, input).dtype == kF32;
           }));
      const TensorFormat offered{lower ? model_.autocast_ : kF32, at(kept_in_, inputs(i)[0]).layout};
      const TensorFormat format = is_view(i) ? offered : operation(i)->format(*model_.compute_, offered);
      at(computed_in_, i) = format;
      if (format.dtype != offered.dtype) at(rounded_to_, i) = offered.dtype;
      at(kept_in_, i + 1) =
          format_of(i + 1, {offered.dtype, at(is_viewed, i + 1) ? Layout::kNCHW : format.layout});
    }
    for (int value = model_.output_;; value = inputs(value - 1)[0]) {
      at(kept_in_, value) = {};
      if (value == 0 || !is_view(value - 1)) break;
    }
    for (int i = 0; i < n_; ++i)
      if (is_view(i)) at(kept_in_, i + 1) = at(kept_in_, inputs(i)[0]);
  }

  Result<void> prepare() {
    prepared_.resize(static_cast<std::size_t>(n_));
    for (int i = 0; i < n_; ++i)
      if (operation(i) != nullptr && !is_view(i)) {
        auto prepared = operation(i)->prepare(*model_.compute_, batch_, at(computed_in_, i));
        if (!prepared) return fail(name_of(i), std::move(prepared).error());
        at(prepared_, i) = *std::move(prepared);
      }
    return {};
  }

  /// From the operation that writes them to the last that reads them. A view is its input's memory.
  void place_activations() {
    block_of_.resize(model_.shapes_.size());
    block_of_[0] = memory_.add(bytes_of(0), -1, -1);
    labels_ = memory_.add(static_cast<std::size_t>(batch_) * sizeof(std::int32_t), -1, end_);
    saved_of_.assign(static_cast<std::size_t>(n_), kNever);
    forward_workspace_ = backward_workspace_ = saved_of_;
    for (int i = 0; i < n_; ++i) {
      if (operation(i) == nullptr) continue;
      const int output = i + 1;
      const bool reads = has_backward(i) && !is_view(i);
      at(block_of_, output) = is_view(i) ? at(block_of_, inputs(i)[0]) : memory_.add(bytes_of(output), i, i);
      if (reads && operation(i)->backward_reads_y()) memory_.use(at(block_of_, output), backward_time(i));
      for (const int input : inputs(i)) {
        memory_.use(at(block_of_, input), i);
        if (reads && operation(i)->backward_reads_x()) memory_.use(at(block_of_, input), backward_time(i));
      }
      at(saved_of_, i) =
          memory_.add(operation(i)->saved_bytes(batch_), i, has_backward(i) ? backward_time(i) : i);
      if (is_view(i)) continue;
      at(forward_workspace_, i) = memory_.add(workspace_bytes(i, false), i, i);
      if (has_backward(i))
        at(backward_workspace_, i) =
            memory_.add(workspace_bytes(i, true), backward_time(i), backward_time(i));
    }
    memory_.use(at(block_of_, model_.output_), end_);
  }

  /// From the first operation backward that writes one to the one whose output it is. The gradient of a view
  /// is its input's, if it is the first to write that one. Who writes after the first does so elsewhere, and
  /// it is added.
  void place_gradients() {
    gradient_of_.assign(model_.shapes_.size(), kNever);
    dx_of_.resize(static_cast<std::size_t>(n_));
    sum_of_.resize(static_cast<std::size_t>(n_));
    const int output = model_.output_;
    if (training_)
      at(gradient_of_, output) =
          memory_.add(bytes_of(output), n_, has_gradient(output) ? time_of_producer(output) : end_);
    for (int i = n_ - 1; i >= 0; --i) {
      at(dx_of_, i).assign(inputs(i).size(), kNever);
      at(sum_of_, i).assign(inputs(i).size(), kNever);
      if (!has_backward(i)) continue;
      for (std::size_t k = 0; k < inputs(i).size(); ++k) {
        const int input = inputs(i)[k];
        if (!has_gradient(input)) continue;
        const int now = backward_time(i);
        const int written = is_view(i) ? at(gradient_of_, i + 1) : memory_.add(bytes_of(input), now, now);
        at(dx_of_, i)[k] = written;
        if (at(gradient_of_, input) != kNever) {
          at(sum_of_, i)[k] = at(gradient_of_, input);
          continue;
        }
        at(gradient_of_, input) = written;
        memory_.use(written, time_of_producer(input));
      }
    }
  }

  /// Whether an operation that reads a value, or else writes it, does so in a copy: of another format, or
  /// rounded.
  bool is_copied(int i, int value, bool reads) const {
    return at(kept_in_, value) != format_of(value, at(computed_in_, i)) ||
           (reads && at(rounded_to_, i) != kF32);
  }
  std::size_t copy_bytes(int i, int value) const {
    return aligned(static_cast<std::size_t>(elements_in(value)) * size_of(at(computed_in_, i).dtype));
  }
  bool rounds_parameters(int i) const {
    return at(rounded_to_, i) != kF32 && operation(i)->autocast() == Autocast::kLower;
  }
  static std::size_t aligned(std::size_t bytes) {
    constexpr std::size_t kAlignment = MemoryPlan::kAlignment;
    return (bytes + kAlignment - 1) / kAlignment * kAlignment;
  }
  static std::size_t float_bytes(std::int64_t count) {
    return aligned(static_cast<std::size_t>(count) * sizeof(float));
  }
  std::size_t own_workspace_bytes(int i) const {
    const Prepared* const prepared = at(prepared_, i).get();
    return aligned(operation(i)->workspace_bytes(batch_)) +
           (prepared != nullptr ? aligned(prepared->workspace_bytes) : 0);
  }
  /// The operation's own, and behind it the copies that stage() hands out.
  std::size_t workspace_bytes(int i, bool backward) const {
    std::size_t bytes = own_workspace_bytes(i);
    for (const int input : inputs(i)) {
      if (is_copied(i, input, true) && (!backward || operation(i)->backward_reads_x()))
        bytes += copy_bytes(i, input);
      if (backward && is_copied(i, input, false)) bytes += copy_bytes(i, input);
    }
    if (is_copied(i, i + 1, false) && (!backward || operation(i)->backward_reads_y()))
      bytes += copy_bytes(i, i + 1);
    if (backward && is_copied(i, i + 1, true)) bytes += copy_bytes(i, i + 1);
    if (rounds_parameters(i))
      for (const ParameterSpec& spec : operation(i)->parameters())
        bytes += float_bytes(elements_of(spec.shape));
    return bytes;
  }

  std::uint8_t* place(int block) const { return base_ + at(layout_.offsets, block); }
  float* floats(int block) const { return reinterpret_cast<float*>(place(block)); }
  Tensor tensor(int value, int block) const {
    Tensor made;
    if (block != kNever) made.data = place(block);
    made.device = model_.compute_->type();
    made.dtype = at(kept_in_, value).dtype;
    made.layout = at(kept_in_, value).layout;
    const Shape& shape = at(model_.shapes_, value);
    made.rank = static_cast<int>(shape.size()) + 1;
    made.dims[0] = batch_;
    std::copy(shape.begin(), shape.end(), made.dims.begin() + 1);
    return made;
  }

  Result<std::unique_ptr<Plan>> assemble() {
    layout_ = memory_.lay_out();
    if (layout_.size_bytes > model_.activations_.size()) {
      const auto arena = model_.compute_->allocate(layout_.size_bytes);
      if (!arena) {
        int largest = 0;
        for (int i = 1; i < n_; ++i)
          if (bytes_of(i + 1) > bytes_of(largest + 1)) largest = i;
        return fail("activations of a batch of " + std::to_string(batch_) + ", most of them of " +
                        name_of(largest) + " " + to_text(at(model_.shapes_, largest + 1)),
                    arena.error());
      }
      model_.activations_ = {static_cast<std::uint8_t*>(*arena), layout_.size_bytes};
    }
    base_ = model_.activations_.data();  // plans run one after another
    auto plan = std::make_unique<Plan>();
    plan->device_ = model_.compute_.get();
    plan->mode_ = mode_;
    plan->batch_ = batch_;
    plan->size_bytes_ = layout_.size_bytes;
    plan->live_bytes_ = layout_.live_bytes;
    plan->input_ = floats(block_of_[0]);
    plan->labels_ = reinterpret_cast<std::int32_t*>(place(labels_));
    plan->output_ = floats(at(block_of_, model_.output_));
    if (training_) plan->output_gradient_ = floats(at(gradient_of_, model_.output_));
    if (gradient_of_[0] != kNever) plan->input_gradient_ = floats(gradient_of_[0]);
    plan->steps_.resize(static_cast<std::size_t>(n_));
    plan->first_operation_ = n_;
    for (int i = 0; i < n_; ++i) {
      if (operation(i) == nullptr) continue;
      Plan::Step& step = at(plan->steps_, i);
      const std::string& name = at(model_.nodes_, i).name;
      step.name = (name.empty() ? "" : name + " ") + std::string(operation(i)->type());
      if (!is_view(i)) step.operation = operation(i);
      fill_frame(i, step);
      if (training_ && operation(i)->draws_random_numbers()) plan->random_ = step.forward;
      if (!is_view(i)) {
        step.backward = step.forward;
        stage(i, false, step);
        if (has_backward(i)) stage(i, true, step);
      }
      step.prepared = std::move(at(prepared_, i));
      for (std::size_t k = 0; k < inputs(i).size(); ++k)
        if (const int into = at(sum_of_, i)[k]; into != kNever) {
          const DType dtype = at(kept_in_, inputs(i)[k]).dtype;
          step.after_backward.push_back(
              {place(at(dx_of_, i)[k]), place(into), dtype, dtype, kF32, true, 1, elements_in(inputs(i)[k])});
        }
      step.has_backward = has_backward(i) && (step.operation != nullptr || !step.after_backward.empty());
      if (step.has_backward) plan->first_operation_ = std::min(plan->first_operation_, i);
    }
    return plan;
  }

  void fill_frame(int i, Plan::Step& step) {
    Frame& frame = step.forward;
    frame.mode = mode_;
    frame.prepared = at(prepared_, i).get();
    frame.device = model_.compute_.get();
    frame.random = model_.random_;
    frame.operation = static_cast<std::uint32_t>(i);
    frame.stream = model_.compute_->stream();
    frame.y = tensor(i + 1, at(block_of_, i + 1));
    frame.dy = tensor(i + 1, has_backward(i) ? at(gradient_of_, i + 1) : kNever);
    frame.saved = place(at(saved_of_, i));
    for (std::size_t k = 0; k < inputs(i).size(); ++k) {
      const int input = inputs(i)[k];
      frame.x.push_back(tensor(input, at(block_of_, input)));
      frame.dx.push_back(tensor(input, at(dx_of_, i)[k]));
    }
    for (; next_parameter_ < model_.parameters_.size() && model_.parameters_[next_parameter_].operation == i;
         ++next_parameter_) {
      const std::size_t offset = model_.parameters_[next_parameter_].offset;
      frame.params.push_back(model_.params_ + offset);
      frame.grads.push_back(model_.grads_ + offset);
      if (operation(i)->autocast() == Autocast::kLower && at(computed_in_, i).dtype != kF32)
        frame.half_params.push_back(model_.half_params_ + offset);
    }
    for (; next_buffer_ < model_.buffers_.size() && model_.buffers_[next_buffer_].operation == i;
         ++next_buffer_)
      frame.buffers.push_back(model_.buffer_arena_ + model_.buffers_[next_buffer_].offset);
  }

  /// Behind fill_frame(): replaces a frame's tensors by copies where workspace_bytes() counts one, and says
  /// when to convert.
  void stage(int i, bool backward, Plan::Step& step) const {
    Frame& frame = backward ? step.backward : step.forward;
    std::vector<Cast>& before = backward ? step.before_backward : step.before_forward;
    std::vector<Cast>& after = backward ? step.after_backward : step.after_forward;
    const DType through = at(rounded_to_, i);
    frame.workspace = place(at(backward ? backward_workspace_ : forward_workspace_, i));
    std::uint8_t* next = frame.workspace + own_workspace_bytes(i);
    const auto copy_of = [&](Tensor& tensor, int value) {
      const TensorFormat format = format_of(value, at(computed_in_, i));
      tensor.data = next;
      tensor.dtype = format.dtype;
      tensor.layout = format.layout;
      next += copy_bytes(i, value);
    };
    const auto read = [&](Tensor& tensor, int value) {
      const Tensor kept = tensor;
      if (!is_copied(i, value, true)) return;
      copy_of(tensor, value);
      before.push_back(conversion(kept, tensor, through));
    };
    const auto written = [&](Tensor& tensor, int value) {
      const Tensor kept = tensor;
      if (!kept || !is_copied(i, value, true)) return;
      if (is_copied(i, value, false)) copy_of(tensor, value);
      after.push_back(conversion(tensor, kept, through));
    };
    for (std::size_t k = 0; k < inputs(i).size(); ++k)
      if (!backward || operation(i)->backward_reads_x()) read(frame.x[k], inputs(i)[k]);
    if (!backward) written(frame.y, i + 1);
    if (backward && operation(i)->backward_reads_y() && is_copied(i, i + 1, false)) read(frame.y, i + 1);
    if (backward) {
      read(frame.dy, i + 1);
      for (std::size_t k = 0; k < inputs(i).size(); ++k) written(frame.dx[k], inputs(i)[k]);
    }
    if (!rounds_parameters(i)) return;
    const std::size_t first = next_parameter_ - frame.params.size();
    for (std::size_t k = 0; k < frame.params.size(); ++k) {
      const auto count = static_cast<std::int64_t>(model_.parameters_[first + k].count);
      auto* const copy = reinterpret_cast<float*>(next);
      next += float_bytes(count);
      before.push_back({model_.half_params_ + model_.parameters_[first + k].offset, copy, through, kF32, kF32,
                        false, 1, count});
      frame.params[k] = copy;
      if (backward) after.push_back({frame.grads[k], frame.grads[k], kF32, kF32, through, false, 1, count});
    }
  }

  Model& model_;
  const int batch_;
  const Mode mode_;
  const bool training_;
  const int n_, end_;
  MemoryPlan memory_;
  MemoryPlan::Layout layout_;
  std::uint8_t* base_ = nullptr;
  std::vector<bool> wanted_, reached_;     // per value
  std::vector<TensorFormat> kept_in_;      // per value
  std::vector<TensorFormat> computed_in_;  // per operation
  std::vector<DType> rounded_to_;  // per operation: what its float32 values are rounded to, if to anything
  std::vector<int> block_of_, gradient_of_;                  // per value
  std::vector<int> saved_of_;                                // per operation
  std::vector<std::vector<int>> dx_of_, sum_of_;             // per operation and input
  std::vector<int> forward_workspace_, backward_workspace_;  // per operation
  std::vector<std::unique_ptr<Prepared>> prepared_;          // per operation, until it is the plan's
  int labels_ = kNever;
  std::size_t next_parameter_ = 0, next_buffer_ = 0;
};

Result<Plan*> Model::plan(int batch, Mode mode) {
  MUSTER_CHECK(params_ != nullptr, "plan() before allocate()");
  if (batch < 1) return invalid("a batch of {} samples; it has at least 1", batch);
  for (const auto& plan : plans_)
    if (plan->batch_ == batch && plan->mode_ == mode) return plan.get();
  MUSTER_TRY(std::unique_ptr<Plan> made, PlanBuilder(*this, batch, mode).build());
  plans_.push_back(std::move(made));
  return plans_.back().get();
}

std::string Plan::backends() const {
  std::map<std::string_view, int> counts;
  for (const Step& step : steps_)
    if (step.operation != nullptr) ++counts[step.prepared != nullptr ? step.prepared->backend : "muster"];
  std::string text;
  for (const auto& [backend, count] : counts)
    text += (text.empty() ? "" : ", ") + std::to_string(count) + " " + std::string(backend);
  return text;
}

void Plan::forward() const {
  if (random_.random != nullptr) device_->enqueue_call(random_, [](const Frame& frame) { advance(frame); });
  for (const Step& step : steps_)
    if (step.operation != nullptr) {
      const TraceRange range(*device_, step.name, "forward");
      device_->enqueue_call(step, [](const Step& s) {
        for (const Cast& before : s.before_forward) cast(*s.forward.device, before);
        s.operation->forward(s.forward);
        for (const Cast& after : s.after_forward) cast(*s.forward.device, after);
      });
    }
}

void Plan::backward_operation(int operation) const {
  const Step& step = steps_[static_cast<std::size_t>(operation)];
  if (!step.has_backward) return;
  const TraceRange range(*device_, step.name, "backward");
  device_->enqueue_call(step, [](const Step& s) {
    for (const Cast& before : s.before_backward) cast(*s.forward.device, before);
    if (s.operation != nullptr) s.operation->backward(s.backward);
    for (const Cast& after : s.after_backward) cast(*s.forward.device, after);
  });
}

void Plan::backward() const {
  for (int operation = last_operation(); operation >= first_operation(); --operation)
    backward_operation(operation);
}

}  // namespace muster::nn
