// SPDX-License-Identifier: Apache-2.0
// GradientReducer: averages a program's own gradients over the ranks of a group, while its backward pass
// still runs. The second level of embedding: it needs a group and memory, no model. The gradients lie in one
// arena in the order of the forward pass; backward fills it from its end to its beginning, and what is
// complete is reduced in buckets of some size, in place. All ranks make it alike and call it equally often.
// Used by one thread. After an error of the group every later call returns one. Source:
// torch/csrc/distributed/c10d/reducer.cpp.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include <muster/compute.h>
#include <muster/process_group.h>

namespace muster {

struct ReducerOptions {
  std::size_t first_bucket_bytes = std::size_t{1} << 20;  ///< small, so that the first reduction starts early
  std::size_t bucket_bytes = std::size_t{25} << 20;       ///< PyTorch's bucket_cap_mb
  /// What is sent: kBFloat16 or kFloat16 sends half the bytes and rounds, as torch's bf16_compress_hook does.
  DType compress = DType::kFloat32;
};

/// Of all steps so far. On a GPU reductions are not measured, and no step counts.
struct CommunicationTime {
  std::int64_t steps = 0;
  std::chrono::nanoseconds hidden{0};   ///< reductions that ran while backward still did
  std::chrono::nanoseconds exposed{0};  ///< wait(): what was left of them, and the last bucket

  [[nodiscard]] double milliseconds_per_step() const {
    return steps == 0 ? 0
                      : static_cast<double>((hidden + exposed).count()) / 1e6 / static_cast<double>(steps);
  }
  [[nodiscard]] double hidden_share() const {
    const auto all = static_cast<double>((hidden + exposed).count());
    return all == 0 ? 0 : static_cast<double>(hidden.count()) / all;
  }
};

/// A contiguous range of the arena that is reduced at once.
struct Bucket {
  std::size_t offset = 0, count = 0;  // elements
  friend bool operator==(const Bucket&, const Bucket&) = default;
};

/// Cuts an arena of tensors that begin at `offsets` (ascending, the first at 0) into buckets, from its end to
/// its beginning: each closes when it has reached its limit, which it can exceed. Pure.
[[nodiscard]] std::vector<Bucket> plan_buckets(std::span<const std::size_t> offsets, std::size_t elements,
                                               const ReducerOptions& options);

class GradientReducer {
 public:
  virtual ~GradientReducer() = default;
  GradientReducer& operator=(GradientReducer&&) = delete;  // nor copied

  /// `gradients`: `elements` float32 of the group's device (of ProcessGroup::allocate() where speed counts),
  /// which outlive this. `compute`: the device, for compress alone. kInvalidArgument.
  [[nodiscard]] static Result<std::unique_ptr<GradientReducer>> create(ProcessGroup& group, float* gradients,
                                                                       std::size_t elements,
                                                                       std::span<const std::size_t> offsets,
                                                                       const ReducerOptions& options = {},
                                                                       const Compute& compute = nullptr);

  /// Every gradient at or behind this element is there (on a GPU: enqueued on the group's stream): starts the
  /// reductions that this completes. On the CPU the last bucket is left to wait(): nothing hides it.
  [[nodiscard]] virtual Result<void> ready(std::size_t offset) = 0;
  /// Everything is there. Afterwards the arena holds means over ranks; on a GPU the stream waits, the host
  /// does not.
  [[nodiscard]] virtual Result<void> wait() = 0;

  [[nodiscard]] virtual CommunicationTime communication() const = 0;
  /// In the order in which they are reduced.
  [[nodiscard]] virtual const std::vector<Bucket>& buckets() const = 0;
};

}  // namespace muster
