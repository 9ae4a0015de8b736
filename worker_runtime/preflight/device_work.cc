// SPDX-License-Identifier: Apache-2.0
#include "worker_runtime/preflight/device_work.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include <muster/rng.h>

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
  return fail(ErrorCode::kCorrupt, std::to_string(wrong) + " of " + std::to_string(found.size()) +
                                       " elements " + what + " are wrong, the first is number " +
                                       std::to_string(first) + ": " + std::to_string(found[first]) +
                                       " instead of " + std::to_string(expected(first)));
}

std::vector<float> small_integers(std::size_t count, Generator& numbers) {
  std::vector<float> out(count);
  for (float& each : out) each = static_cast<float>(numbers.next32() % 5) - 2;
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
  const ExactProduct product = make_exact_product(n, kSeed);
  const auto upload = [&](const std::vector<float>& host) -> Result<float*> {
    MUSTER_TRY(void* const out, device.allocate(host.size() * sizeof(float)));
    device.copy_to_device(out, host.data(), host.size() * sizeof(float));
    return static_cast<float*>(out);
  };
  MUSTER_TRY(const float* const x, upload(product.x));
  MUSTER_TRY(const float* const w, upload(product.w));
  MUSTER_TRY(const float* const b, upload(product.b));
  std::vector<float> result(product.x.size());
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
    if (const int wrong = count_wrong_rows(product, result, kSeed + (timed ? 1 : 2)); wrong > 0)
      return fail(ErrorCode::kCorrupt, "the GEMM's result is wrong in " + std::to_string(wrong) + " of " +
                                           std::to_string(n) + " rows");
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

ExactProduct make_exact_product(int n, std::uint64_t seed) {
  Generator numbers(seed);
  const auto size = static_cast<std::size_t>(n);
  ExactProduct out;
  out.n = n;
  out.x = small_integers(size * size, numbers);
  out.w = small_integers(size * size, numbers);
  out.b = small_integers(size, numbers);
  return out;
}

int count_wrong_rows(const ExactProduct& product, const std::vector<float>& y, std::uint64_t seed) {
  const auto n = static_cast<std::size_t>(product.n);
  if (y.size() != n * n) return product.n;
  Generator numbers(seed);
  std::vector<std::int64_t> r(n);
  std::vector<std::int64_t> w_r(n);  // W' r
  std::int64_t b_r = 0;
  for (std::size_t out = 0; out < n; ++out) {
    r[out] = 1 + numbers.next32() % 1000;
    b_r += static_cast<std::int64_t>(product.b[out]) * r[out];
    const float* row = product.w.data() + out * n;
    for (std::size_t in = 0; in < n; ++in) w_r[in] += static_cast<std::int64_t>(row[in]) * r[out];
  }
  constexpr float kMost = 1 << 24;
  int wrong = 0;
  for (std::size_t i = 0; i < n; ++i) {
    std::int64_t expected = b_r;
    std::int64_t found = 0;
    bool whole = true;
    for (std::size_t k = 0; k < n; ++k) {
      expected += static_cast<std::int64_t>(product.x[i * n + k]) * w_r[k];
      const float value = y[i * n + k];
      // A NaN compares as false.
      whole = whole && std::abs(value) <= kMost && value == std::trunc(value);
      if (whole) found += static_cast<std::int64_t>(value) * r[k];
    }
    if (!whole || found != expected) ++wrong;
  }
  return wrong;
}

}  // namespace muster::preflight
