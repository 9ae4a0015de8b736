// SPDX-License-Identifier: Apache-2.0
#include "tests/support/thread_group.h"

#include <cstdlib>
#include <cstring>
#include <thread>

namespace muster::test {
namespace {

class DeferredWork final : public Work {
 public:
  explicit DeferredWork(std::function<Result<void>()> run) : run_(std::move(run)) {}
  ~DeferredWork() override {
    if (run_) static_cast<void>(run_());
  }
  Result<void> wait() override {
    auto run = std::exchange(run_, nullptr);
    return run ? run() : Result<void>{};
  }

 private:
  std::function<Result<void>()> run_;
};

template <class T>
void reduce(const std::vector<void*>& inputs, T* out, std::size_t count, ReduceOp op) {
  for (std::size_t i = 0; i < count; ++i) {
    const T scale = op == ReduceOp::kAvg ? T{1} / static_cast<T>(inputs.size()) : T{1};
    T value = static_cast<T>(static_cast<const T*>(inputs[0])[i] * scale);
    for (std::size_t r = 1; r < inputs.size(); ++r) {
      const T other = static_cast<T>(static_cast<const T*>(inputs[r])[i] * scale);
      if (op == ReduceOp::kMin)
        value = std::min(value, other);
      else if (op == ReduceOp::kMax)
        value = std::max(value, other);
      else if (op == ReduceOp::kProduct)
        value *= other;
      else
        value += other;
    }
    out[i] = value;
  }
}

void reduce_any(const std::vector<void*>& inputs, void* out, std::size_t count, DType dtype, ReduceOp op) {
  if (dtype == DType::kFloat32)
    reduce(inputs, static_cast<float*>(out), count, op);
  else if (dtype == DType::kFloat64)
    reduce(inputs, static_cast<double*>(out), count, op);
  else if (dtype == DType::kInt32)
    reduce(inputs, static_cast<std::int32_t*>(out), count, op);
  else if (dtype == DType::kInt64)
    reduce(inputs, static_cast<std::int64_t*>(out), count, op);
  else
    std::abort();
}

}  // namespace

ThreadGroup::~ThreadGroup() {
  for (void* block : blocks_) std::free(block);
}

Result<void> ThreadGroup::meet(const std::string& op, void* pointer, const std::function<void()>& body) {
  if (failed_) return fail(ErrorCode::kFailed, "the group has failed before");
  const auto me = static_cast<std::size_t>(rank_);
  world_->pointers[me] = pointer;
  world_->ops[me] = op;
  if (!world_->barrier()) {
    failed_ = true;
    return fail(ErrorCode::kPeerGone, op + ": a rank is gone");
  }
  for (const std::string& other : world_->ops)
    if (other != op) {
      failed_ = true;
      return fail(ErrorCode::kMismatch,
                  "rank " + std::to_string(rank_) + " does " + op + ", another " + other);
    }
  body();
  if (!world_->barrier()) {
    failed_ = true;
    return fail(ErrorCode::kPeerGone, op + ": a rank is gone");
  }
  return {};
}

Result<void> ThreadGroup::all_reduce(Buffer buffer, ReduceOp op) {
  calls.push_back("reduce " + std::to_string(buffer.count));
  if (reductions_until_failure == 0) {
    failed_ = true;
    world_->break_up();
    return fail(ErrorCode::kPeerGone, "all_reduce: told to fail");
  }
  if (reductions_until_failure > 0) --reductions_until_failure;
  std::vector<char> result(buffer.size_bytes());
  MUSTER_OK(meet("all_reduce " + std::to_string(buffer.count), buffer.data,
                 [&] { reduce_any(world_->pointers, result.data(), buffer.count, buffer.dtype, op); }));
  std::memcpy(buffer.data, result.data(), result.size());
  return {};
}

Result<std::unique_ptr<Work>> ThreadGroup::start_all_reduce(Buffer buffer, ReduceOp op) {
  calls.push_back("start " + std::to_string(buffer.count));
  return std::make_unique<DeferredWork>([this, buffer, op] { return all_reduce(buffer, op); });
}

Result<void> ThreadGroup::broadcast(Buffer buffer, int root) {
  return meet("broadcast " + std::to_string(buffer.count), buffer.data, [&] {
    if (rank_ != root)
      std::memcpy(buffer.data, world_->pointers[static_cast<std::size_t>(root)], buffer.size_bytes());
  });
}

Result<void> ThreadGroup::all_gather(ConstBuffer input, Buffer output) {
  return meet("all_gather " + std::to_string(input.count), const_cast<void*>(input.data), [&] {
    for (std::size_t r = 0; r < world_->pointers.size(); ++r)
      std::memcpy(static_cast<char*>(output.data) + r * input.size_bytes(), world_->pointers[r],
                  input.size_bytes());
  });
}

Result<void> ThreadGroup::reduce_scatter(ConstBuffer input, Buffer output, ReduceOp op) {
  std::vector<char> all(input.size_bytes());
  MUSTER_OK(meet("reduce_scatter " + std::to_string(input.count), const_cast<void*>(input.data),
                 [&] { reduce_any(world_->pointers, all.data(), input.count, input.dtype, op); }));
  std::memcpy(output.data, all.data() + static_cast<std::size_t>(rank_) * output.size_bytes(),
              output.size_bytes());
  return {};
}

Result<void> ThreadGroup::barrier() {
  return meet("barrier", nullptr, [] {});
}

Result<void*> ThreadGroup::allocate(std::size_t size_bytes) {
  const std::size_t rounded = (size_bytes + 63) / 64 * 64;
  void* block = std::aligned_alloc(64, rounded);
  std::memset(block, 0, rounded);
  blocks_.push_back(block);
  return block;
}

std::vector<std::string> run_ranks(int ranks, const std::function<std::string(ThreadGroup&)>& body) {
  const auto world = std::make_shared<ThreadWorld>(ranks);
  std::vector<std::string> errors(static_cast<std::size_t>(ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank)
    threads.emplace_back([&, rank] {
      ThreadGroup group(world, rank);
      std::string& error = errors[static_cast<std::size_t>(rank)];
      try {
        error = body(group);
      } catch (const std::exception& exception) {
        error = exception.what();
      }
      // A rank that gave up must not leave the others waiting.
      if (!error.empty()) world->break_up();
    });
  for (std::thread& thread : threads) thread.join();
  return errors;
}

}  // namespace muster::test
