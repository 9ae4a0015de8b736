// SPDX-License-Identifier: Apache-2.0
#include "worker_runtime/core/step_graph.h"

namespace muster {
namespace {

class EagerSteps final : public StepGraph {
 public:
  Result<void> run(std::uint64_t /*key*/, const Step& step) override { return step(); }
  std::uint64_t num_replays() const override { return 0; }
};

}  // namespace

std::unique_ptr<StepGraph> make_eager_steps() {
  return std::make_unique<EagerSteps>();
}

std::unique_ptr<StepGraph> make_step_graph(Device device, void* stream, bool capture) {
  return device == Device::kCuda && capture ? make_cuda_step_graph(stream) : make_eager_steps();
}

std::uint64_t step_key(std::initializer_list<std::uint64_t> parts) {
  std::uint64_t key = 0x9e3779b97f4a7c15ULL;
  for (std::uint64_t part : parts) {
    // The finalizer of splitmix64: every bit of a part reaches every bit of the key.
    part += key;
    part = (part ^ (part >> 30)) * 0xbf58476d1ce4e5b9ULL;
    part = (part ^ (part >> 27)) * 0x94d049bb133111ebULL;
    key = part ^ (part >> 31);
  }
  return key;
}

}  // namespace muster
