// SPDX-License-Identifier: Apache-2.0
// The group of one rank.
#include <cstdlib>
#include <cstring>
#include <vector>

#include <muster/process_group.h>

namespace muster {
namespace {

class DoneWork final : public Work {
 public:
  Result<void> wait() override { return {}; }
};

class SingleGroup final : public ProcessGroup {
 public:
  ~SingleGroup() override {
    for (void* block : blocks_) std::free(block);
  }
  int rank() const override { return 0; }
  int world_size() const override { return 1; }
  std::string_view backend() const override { return "single"; }
  Result<void> all_reduce(Buffer /*buffer*/, ReduceOp /*op*/) override { return {}; }
  Result<std::unique_ptr<Work>> start_all_reduce(Buffer /*buffer*/, ReduceOp /*op*/) override {
    return std::make_unique<DoneWork>();
  }
  Result<void> broadcast(Buffer /*buffer*/, int /*root*/) override { return {}; }
  Result<void> all_gather(ConstBuffer input, Buffer output) override { return copy(input, output); }
  Result<void> reduce_scatter(ConstBuffer input, Buffer output, ReduceOp /*op*/) override {
    return copy(input, output);
  }
  Result<void> barrier() override { return {}; }
  Result<void*> allocate(std::size_t size_bytes) override {
    const std::size_t rounded = (size_bytes + 63) / 64 * 64;
    void* block = std::aligned_alloc(64, rounded == 0 ? 64 : rounded);
    if (block == nullptr)
      return fail(ErrorCode::kExhausted, "allocate " + std::to_string(size_bytes) + " bytes: out of memory");
    std::memset(block, 0, rounded);
    blocks_.push_back(block);
    return block;
  }

 private:
  static Result<void> copy(ConstBuffer input, Buffer output) {
    if (input.size_bytes() != output.size_bytes())
      return fail(ErrorCode::kInvalidArgument, "collective in a world of 1: input has " +
                                                   std::to_string(input.size_bytes()) + " bytes, output " +
                                                   std::to_string(output.size_bytes()));
    if (input.data != output.data) std::memmove(output.data, input.data, input.size_bytes());
    return {};
  }

  std::vector<void*> blocks_;
};

}  // namespace

std::unique_ptr<ProcessGroup> make_single_group() {
  return std::make_unique<SingleGroup>();
}

}  // namespace muster
