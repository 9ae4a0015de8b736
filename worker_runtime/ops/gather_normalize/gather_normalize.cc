// SPDX-License-Identifier: Apache-2.0
#include "worker_runtime/ops/gather_normalize/gather_normalize.h"

#include <cmath>

#include "worker_runtime/device/device.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "worker_runtime/ops/gather_normalize/gather_normalize.cc"
// foreach_target.h compiles this file again for each target and has to come first.
// clang-format off
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
// clang-format on

#include "worker_runtime/ops/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace muster::nn::HWY_NAMESPACE {
namespace {

/// 4 images of 28x28: 0.19 us on one core of a Zen 4.
void gather(const GatherArgs& a) {
  const Wide d;
  const hn::RebindToSigned<Wide> di;
  const hn::Rebind<std::uint8_t, Wide> du8;
  constexpr int kL = kLanes<Wide>;
  // (v / 255 - mean) / stddev as one multiplication and addition.
  const float scale = static_cast<float>(1.0 / (255.0 * a.stddev)),
              shift = static_cast<float>(-1.0 * a.mean / a.stddev);
  const auto scales = hn::Set(d, scale), shifts = hn::Set(d, shift);
  float* HWY_RESTRICT x = a.x;
  for (int n = 0; n < a.batch; ++n, x += a.image_elements) {
    const std::uint8_t* HWY_RESTRICT image =
        a.images + static_cast<std::ptrdiff_t>(a.indices[n]) * a.image_elements;
    int k = 0;
    for (; k + kL <= a.image_elements; k += kL) {
      const auto pixels = hn::ConvertTo(d, hn::PromoteTo(di, hn::LoadU(du8, image + k)));
      hn::StoreU(hn::MulAdd(pixels, scales, shifts), d, x + k);
    }
    for (; k < a.image_elements; ++k) x[k] = std::fma(static_cast<float>(image[k]), scale, shift);
    a.out_labels[n] = a.labels[a.indices[n]];
  }
}

}  // namespace
}  // namespace muster::nn::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace muster::nn {

HWY_EXPORT(gather);

void gather_normalize([[maybe_unused]] Device& device, const GatherArgs& args) {
#ifdef MUSTER_HAS_CUDA
  if (void* const stream = device.stream(); stream != nullptr)
    return device.report_cuda(cuda::gather_normalize(args, stream), "gather_normalize");
#endif
  HWY_DYNAMIC_DISPATCH(gather)(args);
}

}  // namespace muster::nn
#endif
