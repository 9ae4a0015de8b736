// SPDX-License-Identifier: Apache-2.0
// What the vector kernels share, compiled once per Highway target (hence the toggled guard): tags, register
// budget, horizontal sums. No kernel reads or writes past a tensor: remainders are done by a last vector that
// ends exactly at the end and computes some elements twice with the same bits, or by a narrower vector.
#if defined(MUSTER_OPS_VECTOR_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MUSTER_OPS_VECTOR_INL_H_
#undef MUSTER_OPS_VECTOR_INL_H_
#else
#define MUSTER_OPS_VECTOR_INL_H_
#endif

#include <hwy/highway.h>

// Loops over registers: they have to be unrolled whatever the optimisation level, or the registers become
// memory. Sanitizers check each access instead, and unrolled checks take minutes to compile.
#ifndef MUSTER_UNROLL
#if defined(MUSTER_SANITIZED) || !defined(__OPTIMIZE__)
#define MUSTER_UNROLL
#elif defined(__clang__)
#define MUSTER_UNROLL _Pragma("clang loop unroll(full)")
#else
#define MUSTER_UNROLL _Pragma("GCC unroll 32")
#endif
#endif

HWY_BEFORE_NAMESPACE();
namespace muster::nn::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#if HWY_TARGET <= HWY_AVX3 || HWY_TARGET == HWY_NEON
inline constexpr bool kManyRegisters = true;  // 32 vector registers
#else
inline constexpr bool kManyRegisters = false;  // 16
#endif

using Wide = hn::ScalableTag<float>;
// Rows of small images are rarely multiples of 16. Zen 4 executes one 512-bit or two 256-bit FMAs a cycle, so
// eight lanes lose nothing there.
using Row = hn::CappedTag<float, 8>;

template <class D>
inline constexpr int kLanes = static_cast<int>(hn::MaxLanes(D()));

/// out[k] = the sum of all lanes of v_k, for four vectors at once: 13 instructions instead of 4 times 8 at 16
/// lanes.
template <class D, class V = hn::Vec<D>>
HWY_INLINE void sums_of_four(D d, V v0, V v1, V v2, V v3, float* HWY_RESTRICT out) {
#if HWY_TARGET == HWY_SCALAR
  hn::StoreU(v0, d, out);
  hn::StoreU(v1, d, out + 1);
  hn::StoreU(v2, d, out + 2);
  hn::StoreU(v3, d, out + 3);
#else
  const hn::RepartitionToWide<D> d64;
  const V low = hn::Add(hn::InterleaveLower(d, v0, v1), hn::InterleaveUpper(d, v0, v1));
  const V high = hn::Add(hn::InterleaveLower(d, v2, v3), hn::InterleaveUpper(d, v2, v3));
  const auto low64 = hn::BitCast(d64, low), high64 = hn::BitCast(d64, high);
  const V blocks = hn::Add(hn::BitCast(d, hn::InterleaveLower(d64, low64, high64)),
                           hn::BitCast(d, hn::InterleaveUpper(d64, low64, high64)));
  const hn::CappedTag<float, 4> d4;
  if constexpr (kLanes<D> == 16) {
    const hn::Half<D> half;
    const auto eight = hn::Add(hn::LowerHalf(half, blocks), hn::UpperHalf(half, blocks));
    hn::StoreU(hn::Add(hn::LowerHalf(d4, eight), hn::UpperHalf(d4, eight)), d4, out);
  } else if constexpr (kLanes<D> == 8) {
    hn::StoreU(hn::Add(hn::LowerHalf(d4, blocks), hn::UpperHalf(d4, blocks)), d4, out);
  } else {
    hn::StoreU(blocks, d4, out);
  }
#endif
}

/// The sum of all lanes.
template <class D>
HWY_INLINE float sum_of_lanes(D d, hn::Vec<D> v) {
  return hn::GetLane(hn::SumOfLanes(d, v));
}

}  // namespace muster::nn::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // toggled guard
