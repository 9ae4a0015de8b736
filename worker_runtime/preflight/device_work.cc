// SPDX-License-Identifier: Apache-2.0
#include "worker_runtime/preflight/device_work.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <numeric>
#include <vector>

#include <muster/rng.h>

#include "rendezvous/base/fail.h"
#include "worker_runtime/ops/linear/linear.h"

namespace muster::preflight {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::size_t kMiB = std::size_t{1} << 20;
constexpr std::chrono::milliseconds kMeasured{250};  // of each kind, at least
constexpr std::uint64_t kSeed = 20;

struct Sizes {
  std::size_t copy_bytes, reduce_bytes;
  int gemm;      // rows and columns
  int in_a_row;  // calls between two looks at the clock: a GPU runs ahead of them
};

/// More than caches hold, and done within a second.
Sizes sizes_of(DeviceType device) {
  if (device == DeviceType::kCuda) return {256 * kMiB, 64 * kMiB, 4096, 10};
  return {32 * kMiB, 8 * kMiB, 512, 1};
}

/// The shortest time of one call, in seconds, so that a moment's guest on the device does not count.
template <class Call>
Result<double> best_time(Device& device, int in_a_row, const Call& call) {
  const Clock::time_point until = Clock::now() + kMeasured;
  double best = 1e9;
  for (int round = 0; round < 3 || Clock::now() < until; ++round) {
    const Clock::time_point begin = Clock::now();
    for (int i = 0; i < in_a_row; ++i) MUSTER_OK(call());
    MUSTER_OK(device.synchronize());
    const std::chrono::duration<double> took = Clock::now() - begin;
    best = std::min(best, std::max(took.count(), 1e-9) / in_a_row);
  }
  return best;
}

/// `expected(i)` of each element.
template <class Expected>
Result<void> compare(const std::vector<float>& found, const char* what, const Expected& expected) {
  std::size_t wrong = 0;
  std::size_t first = 0;
  for (std::size_t i = 0; i < found.size(); ++i)
    if (found[i] != expected(i) && wrong++ == 0) first = i;
  if (wrong == 0) return {};
  return fail(ErrorCode::kCorrupt, "{} of {} elements {} are wrong, the first is number {}: {} instead of {}",
              wrong, found.size(), what, first, found[first], expected(first));
}

/// Of 1 and 2 and their negatives.
std::vector<float> small_integers(int count, Generator& numbers) {
  std::vector<float> out(static_cast<std::size_t>(count));
  for (float& each : out)
    each = static_cast<float>(1 + numbers.next32() % 2) * (numbers.next32() % 2 == 0 ? 1 : -1);
  return out;
}

/// The matrix of all products of an element of each.
std::vector<float> outer_product(const std::vector<float>& column, const std::vector<float>& row) {
  std::vector<float> out;
  out.reserve(column.size() * row.size());
  for (const float of_row : column)
    for (const float each : row) out.push_back(of_row * each);
  return out;
}

}  // namespace

Result<double> measure_copies(Device& device) {
  const Sizes sizes = sizes_of(device.type());
  std::vector<float> host(sizes.copy_bytes / sizeof(float));
  const auto pattern = [](std::size_t i) { return static_cast<float>(i % 16'777'213); };
  for (std::size_t i = 0; i < host.size(); ++i) host[i] = pattern(i);
  MUSTER_TRY(void* const from, device.allocate(sizes.copy_bytes));
  MUSTER_TRY(void* const to, device.allocate(sizes.copy_bytes));
  device.copy_to_device(from, host.data(), sizes.copy_bytes);
  MUSTER_TRY(const double seconds, best_time(device, sizes.in_a_row, [&]() -> Result<void> {
               device.copy_on_device(to, from, sizes.copy_bytes);
               return {};
             }));
  std::fill(host.begin(), host.end(), 0.0F);
  device.copy_to_host(host.data(), to, sizes.copy_bytes);
  MUSTER_OK(device.synchronize());
  MUSTER_OK(compare(host, "copied in memory", pattern));
  return static_cast<double>(sizes.copy_bytes) / seconds;
}

Result<double> measure_gemm(Device& device) {
  const Sizes sizes = sizes_of(device.type());
  const int n = sizes.gemm;
  // Matrices of rank 1, so that each element of the product is known: every sum of integers as small as these
  // is exact in float32, in any order and of inputs rounded to TF32.
  Generator numbers(kSeed);
  const std::vector<float> column = small_integers(n, numbers), row = small_integers(n, numbers),
                           out_column = small_integers(n, numbers), out_row = small_integers(n, numbers),
                           bias = small_integers(n, numbers);
  const float inner = std::inner_product(row.begin(), row.end(), out_row.begin(), 0.0F);
  const auto expected = [&](std::size_t i) {
    const std::size_t feature = i % bias.size();
    return column[i / bias.size()] * out_column[feature] * inner + bias[feature];
  };
  const auto upload = [&](const std::vector<float>& host) -> Result<float*> {
    MUSTER_TRY(void* const out, device.allocate(host.size() * sizeof(float)));
    device.copy_to_device(out, host.data(), host.size() * sizeof(float));
    return static_cast<float*>(out);
  };
  MUSTER_TRY(const float* const x, upload(outer_product(column, row)));
  MUSTER_TRY(const float* const w, upload(outer_product(out_column, out_row)));
  MUSTER_TRY(const float* const b, upload(bias));
  std::vector<float> result(column.size() * column.size());
  MUSTER_TRY(float* const y, upload(result));
  MUSTER_TRY(const auto layer, nn::PreparedLinear::make(device, {n, n, n}));
  MUSTER_TRY(void* const workspace, device.allocate(layer->workspace_bytes));
  const auto multiply = [&]() -> Result<void> {
    layer->forward(x, w, b, y, false, workspace);
    return {};
  };
  // Cold and warm: a device may fail once it is hot.
  double seconds = 0;
  for (const bool timed : {false, true}) {
    if (timed) {
      MUSTER_TRY(seconds, best_time(device, sizes.in_a_row, multiply));
    } else {
      MUSTER_OK(multiply());
    }
    device.copy_to_host(result.data(), y, result.size() * sizeof(float));
    MUSTER_OK(device.synchronize());
    MUSTER_OK(compare(result, "of the GEMM", expected));
    device.zero(y, result.size() * sizeof(float));
  }
  return 2.0 * n * n * n / seconds;
}

Result<double> measure_all_reduce(Device& device, ProcessGroup& group) {
  const Sizes sizes = sizes_of(device.type());
  const std::size_t count = sizes.reduce_bytes / sizeof(float);
  const int ranks = group.world_size();
  const auto own = [&](std::size_t i) {
    return static_cast<float>(i % 251) + static_cast<float>(group.rank());
  };
  const std::int64_t of_ranks = std::int64_t{ranks} * (ranks - 1) / 2;
  const auto sum = [&](std::size_t i) {
    return static_cast<float>(static_cast<std::int64_t>(i % 251) * ranks + of_ranks);
  };
  std::vector<float> host(count);
  MUSTER_TRY(void* const buffer, device.allocate(sizes.reduce_bytes));
  const auto reduce = [&] { return group.all_reduce({buffer, count, DType::kFloat32}); };
  double seconds = 1e9;
  // All ranks have to call it as often, whatever their clocks say.
  for (int round = 0; round < 6; ++round) {
    for (std::size_t i = 0; i < count; ++i) host[i] = own(i);
    device.copy_to_device(buffer, host.data(), sizes.reduce_bytes);
    MUSTER_OK(device.synchronize());
    MUSTER_OK(group.barrier());
    const Clock::time_point begin = Clock::now();
    MUSTER_OK(reduce());
    MUSTER_OK(device.synchronize());
    const std::chrono::duration<double> took = Clock::now() - begin;
    seconds = std::min(seconds, std::max(took.count(), 1e-9));
    device.copy_to_host(host.data(), buffer, sizes.reduce_bytes);
    MUSTER_OK(device.synchronize());
    MUSTER_OK(compare(host, "of the all-reduce", sum));
  }
  MUSTER_OK(group.barrier());
  return 2.0 * (ranks - 1) / ranks * static_cast<double>(sizes.reduce_bytes) / seconds;
}

}  // namespace muster::preflight
