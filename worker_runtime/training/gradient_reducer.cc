// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <optional>
#include <string>

#include <muster/gradient_reducer.h>

#include "rendezvous/base/fail.h"
#include "worker_runtime/device/tracer.h"
#include "worker_runtime/ops/cast/cast.h"

namespace muster {

std::vector<Bucket> plan_buckets(std::span<const std::size_t> offsets, std::size_t elements,
                                 const ReducerOptions& options) {
  std::vector<Bucket> buckets;
  std::size_t end = elements;  // of the bucket being filled
  for (std::size_t i = offsets.size(); i-- > 0;) {
    const std::size_t limit = buckets.empty() ? options.first_bucket_bytes : options.bucket_bytes;
    if ((end - offsets[i]) * sizeof(float) < limit && i != 0) continue;
    buckets.push_back({offsets[i], end - offsets[i]});
    end = offsets[i];
  }
  return buckets;
}

namespace {

class BucketReducer final : public GradientReducer {
  using Clock = std::chrono::steady_clock;

 public:
  BucketReducer(ProcessGroup& group, float* gradients, std::vector<Bucket> buckets, Compute compute)
      : group_(&group), gradients_(gradients), buckets_(std::move(buckets)), compute_(std::move(compute)) {
    outstanding_.reserve(buckets_.size());
  }

  Result<void> compress(DType dtype, std::size_t elements) {
    dtype_ = dtype;
    MUSTER_TRY(void* const memory, group_->allocate(elements * size_of(dtype)));
    sent_ = static_cast<std::uint8_t*>(memory);
    const float share = 1.0F / static_cast<float>(group_->world_size());
    for (const Bucket& bucket : buckets_) {
      float* const own = gradients_ + bucket.offset;
      void* const sent = sent_ + bucket.offset * size_of(dtype);
      const auto count = static_cast<std::int64_t>(bucket.count);
      const Cast to{own, sent, DType::kFloat32, dtype, DType::kFloat32, false, share, count};
      const Cast back{sent, own, dtype, DType::kFloat32, DType::kFloat32, false, 1, count};
      casts_.push_back({{compute_.get(), to}, {compute_.get(), back}});
    }
    return {};
  }

  Result<void> ready(std::size_t offset) override { return or_reset(start(offset)); }
  Result<void> wait() override { return or_reset(finish()); }
  CommunicationTime communication() const override { return time_; }
  const std::vector<Bucket>& buckets() const override { return buckets_; }

 private:
  struct Casts {
    nn::DeviceCast to, back;
  };

  Result<void> start(std::size_t offset) {
    if (group_->world_size() == 1) return {};
    for (; next_ < buckets_.size() && buckets_[next_].offset >= offset; ++next_) {
      // Nothing is left to hide it behind: in the calling thread it saves the way to another thread and back,
      // which at 178 KB of gradients costs more than the reduction.
      if (next_ + 1 == buckets_.size() && group_->device() == DeviceType::kCpu) return {};
      const bool traces_gpu = traces() && group_->device() != DeviceType::kCpu;
      const Clock::time_point begun = traces_gpu ? Clock::now() : Clock::time_point{};
      const Buffer sent = to_send();
      if (traces_gpu) ready_.push_back(compute_->tracer()->mark());
      MUSTER_TRY(auto work, group_->start_all_reduce(sent, op()));
      if (traces_gpu) trace(next_, {begun, Clock::now(), false});
      outstanding_.push_back(std::move(work));
    }
    return {};
  }

  Result<void> finish() {
    MUSTER_OK(start(0));
    const bool measured = group_->world_size() > 1 && group_->device() == DeviceType::kCpu;
    const Clock::time_point begun = measured ? Clock::now() : Clock::time_point{};
    Result<void> result;
    for (const auto& work : outstanding_)
      if (auto done = work->wait(); !done && result) result = std::move(done);
    MUSTER_OK(result);
    trace_gpu();
    const Clock::time_point last = traces() ? Clock::now() : begun;
    if (group_->world_size() > 1 && next_ < buckets_.size()) MUSTER_OK(group_->all_reduce(to_send(), op()));
    if (measured) {
      const Clock::time_point ended = Clock::now();
      ++time_.steps;
      time_.exposed += ended - begun;
      for (std::size_t i = 0; i < outstanding_.size(); ++i) {
        const Work::Times times = outstanding_[i]->times();
        if (times.beside)
          time_.hidden += std::max(std::min(times.ended, begun) - times.begun, std::chrono::nanoseconds(0));
        if (traces()) trace(i, times);
      }
      if (traces() && next_ < buckets_.size()) trace(next_, {last, ended, false});
    }
    for (const Casts& casts : casts_) nn::enqueue(casts.back);
    reset();
    return {};
  }

  /// What was started must not meet the next step: one whose capture failed is called again.
  Result<void> or_reset(Result<void> done) {
    if (!done) reset();
    return done;
  }

  bool traces() const { return compute_ != nullptr && compute_->tracer() != nullptr; }
  void trace(std::size_t bucket, const Work::Times& times) {
    compute_->tracer()->events.push_back({"all_reduce bucket " + std::to_string(bucket), "communication",
                                          times.begun, times.ended, times.beside});
  }

  /// When each bucket was ready and when it was done, on the group's stream.
  void trace_gpu() {
    Tracer* const tracer = compute_ == nullptr ? nullptr : compute_->tracer();
    if (tracer == nullptr || tracer->timer == nullptr) return;
    for (std::size_t i = 0; i < ready_.size(); ++i) {
      const auto done = tracer->timer->mark_after(
          [&work = *outstanding_[i]](void* stream) { return work.wait_on(stream); });
      trace(i, {.begun = {}, .ended = {}, .beside = true});
      tracer->events.back().first = ready_[i];
      tracer->events.back().last = done;
    }
  }

  ReduceOp op() const { return casts_.empty() ? ReduceOp::kAvg : ReduceOp::kSum; }
  /// The next bucket as it is sent.
  Buffer to_send() {
    const Bucket& bucket = buckets_[next_];
    if (casts_.empty()) return {gradients_ + bucket.offset, bucket.count, DType::kFloat32};
    nn::enqueue(casts_[next_].to);
    return {sent_ + bucket.offset * size_of(dtype_), bucket.count, dtype_};
  }
  void reset() {
    outstanding_.clear();
    ready_.clear();
    next_ = 0;
  }

  ProcessGroup* group_;
  float* gradients_;
  std::vector<Bucket> buckets_;
  std::size_t next_ = 0;                            // bucket to start
  std::vector<std::unique_ptr<Work>> outstanding_;  // started, in order; empty between steps
  std::vector<std::optional<std::size_t>> ready_;   // on a GPU while a profiler records: its marks
  CommunicationTime time_;
  Compute compute_;
  DType dtype_ = DType::kFloat32;
  std::uint8_t* sent_ = nullptr;
  std::vector<Casts> casts_;  // per bucket; none without compress
};

}  // namespace

Result<std::unique_ptr<GradientReducer>> GradientReducer::create(ProcessGroup& group, float* gradients,
                                                                 std::size_t elements,
                                                                 std::span<const std::size_t> offsets,
                                                                 const ReducerOptions& options,
                                                                 const Compute& compute) {
  if (gradients == nullptr || offsets.empty() || offsets.front() != 0 ||
      !std::is_sorted(offsets.begin(), offsets.end()) || offsets.back() >= elements)
    return invalid("gradient reducer: tensors begin at ascending offsets, the first at 0, within {} elements",
                   elements);
  const bool halves = options.compress == DType::kBFloat16 || options.compress == DType::kFloat16;
  if (!halves && options.compress != DType::kFloat32)
    return invalid("gradient reducer: compressed to {}; it sends F32, BF16 or F16",
                   to_string(options.compress));
  auto made =
      std::make_unique<BucketReducer>(group, gradients, plan_buckets(offsets, elements, options), compute);
  if (halves && group.world_size() > 1) {
    if (compute == nullptr || compute->type() != group.device())
      return invalid("gradient reducer: compress needs the device that the group reduces on");
    MUSTER_OK(made->compress(options.compress, elements));
  }
  return made;
}

}  // namespace muster
