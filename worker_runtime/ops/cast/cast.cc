// SPDX-License-Identifier: Apache-2.0
#include "worker_runtime/ops/cast/cast.h"

#include <utility>

#include "worker_runtime/device/device.h"

namespace muster::nn {
namespace {

/// A loop per pair of types: one that asks each element for them is three times as slow.
template <DType kFrom, DType kTo, DType kThrough = DType::kFloat32>
void cast_all(const Cast& c) {
  const CastBody fixed{{c.from, c.to, kFrom, kTo, kThrough, c.adds, c.scale, c.count, c.rows, c.columns}};
  for (std::int64_t i = 0; i < c.count; ++i) fixed.at<1>(i);
}

template <DType kHalf>
void cast_half(const Cast& c) {
  constexpr DType kFloat = DType::kFloat32;
  if (c.from_dtype == kFloat)
    return c.to_dtype == kFloat ? cast_all<kFloat, kFloat, kHalf>(c) : cast_all<kFloat, kHalf>(c);
  return c.to_dtype == kFloat ? cast_all<kHalf, kFloat>(c) : cast_all<kHalf, kHalf>(c);
}

}  // namespace

Cast conversion(const Tensor& from, const Tensor& to, DType through) {
  Cast c{from.data, to.data, from.dtype, to.dtype, through, false, 1, from.count()};
  if (from.layout == to.layout) return c;
  c.rows = from.channels();
  c.columns = from.height() * from.width();
  if (from.layout == Layout::kNHWC) std::swap(c.rows, c.columns);
  return c;
}

void cast(Device& device, const Cast& c) {
  if constexpr (kHasCuda)
    if (void* const stream = device.stream(); stream != nullptr)
      return device.report_cuda(cuda::cast(c, stream), "cast");
  for (const DType dtype : {c.from_dtype, c.to_dtype, c.through}) {
    if (dtype == DType::kBFloat16) return cast_half<DType::kBFloat16>(c);
    if (dtype == DType::kFloat16) return cast_half<DType::kFloat16>(c);
  }
  cast_all<DType::kFloat32, DType::kFloat32>(c);
}

void enqueue(const DeviceCast& work) {
  work.device->enqueue_call(work, [](const DeviceCast& w) { cast(*w.device, w.cast); });
}

void add_on_device(Device& device, float* into, const float* from, std::size_t count) {
  enqueue({&device, {.from = from, .to = into, .adds = true, .count = static_cast<std::int64_t>(count)}});
}

}  // namespace muster::nn
