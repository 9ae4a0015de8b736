// SPDX-License-Identifier: Apache-2.0
// One collective with known inputs and its exact expected output, for tests of process groups. Inputs are
// small integers that repeat every 23 elements, so every sum is exactly representable in every element type
// and compared with ==.
#pragma once

#include <optional>
#include <random>
#include <string>
#include <vector>

#include <muster/process_group.h>

namespace muster::testing {

enum class Call {
  kAllReduce,
  kStartAllReduce,
  kBroadcast,
  kAllGather,
  kReduceScatter,
  kReduce,
  kGather,
  kScatter,
  kSendAndRecv,  // to the next rank and from the one before
  kBarrier
};
inline constexpr std::size_t kNumCalls = 10;
enum class Where { kPrivate, kRegistered, kMixed };  // kMixed: registered on even ranks only

struct OpSpec {
  Call call = Call::kAllReduce;
  DType dtype = DType::kFloat32;
  ReduceOp reduce = ReduceOp::kSum;
  std::size_t count = 0;  // of one rank's input; of the output for kReduceScatter and kScatter
  int root = 0;
  Where where = Where::kPrivate;
};

std::string describe(const OpSpec& spec);

/// Scalar conversions, the oracle for the vector kernels.
double decode(const void* element, DType dtype);
void encode(double value, DType dtype, void* element);  // rounds to nearest even

/// Runs operations of one group on memory that is kept between them.
class OpRunner {
 public:
  /// A collective: allocates `max_bytes` twice from the group.
  OpRunner(ProcessGroup& group, std::size_t max_bytes);

  /// Nothing, or what went wrong.
  std::optional<std::string> run(const OpSpec& spec);

  /// Several all_reduces in flight at once, then a direct one.
  std::optional<std::string> run_overlapping(const std::vector<OpSpec>& specs);

 private:
  std::byte* place(Where where, int which, std::size_t bytes, std::size_t offset);
  std::optional<std::string> compare(const OpSpec& spec, const std::byte* data, std::size_t count,
                                     std::size_t phase, int from) const;

  ProcessGroup& group_;
  std::byte* registered_[2] = {};
  std::vector<std::byte> private_[2];
};

/// A random operation that every rank draws alike.
OpSpec random_spec(std::mt19937& random, int world_size, std::size_t max_bytes);

}  // namespace muster::testing
