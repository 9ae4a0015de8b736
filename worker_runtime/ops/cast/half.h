// SPDX-License-Identifier: Apache-2.0
// bfloat16 and IEEE half precision by their bits, rounding to nearest even: the same on every CPU and GPU,
// where one instruction does it. What computes on any of the types is a template of float, Bf16 or F16.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include <muster/dtype.h>

#include "worker_runtime/ops/portable.h"

namespace muster::nn {

template <class To, class From>
MUSTER_HD To bits_as(From value) {
  static_assert(sizeof(To) == sizeof(From));
  To out;
  memcpy(&out, &value, sizeof out);
  return out;
}

MUSTER_HD float from_bf16(std::uint16_t half) {
  return bits_as<float>(std::uint32_t{half} << 16U);
}

MUSTER_HD std::uint16_t to_bf16(float value) {
#ifdef __CUDA_ARCH__
  std::uint16_t half;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(half) : "f"(value));
  return half;
#endif
  const auto bits = bits_as<std::uint32_t>(value);
  if ((bits & 0x7fff'ffffU) > 0x7f80'0000U) return static_cast<std::uint16_t>(bits >> 16U | 0x40U);  // NaN
  return static_cast<std::uint16_t>((bits + 0x7fffU + (bits >> 16U & 1U)) >> 16U);
}

MUSTER_HD float from_f16(std::uint16_t half) {
#ifdef __CUDA_ARCH__
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(half));
  return value;
#endif
  const std::uint32_t sign = (half & 0x8000U) << 16U, rest = half & 0x7fffU;
  if (rest >= 0x7c00U) return bits_as<float>(sign | 0x7f80'0000U | (rest & 0x3ffU) << 13U);
  const float small = static_cast<float>(rest) * 0x1p-24F;  // exact; the value of a subnormal
  return bits_as<float>(sign |
                        (rest < 0x400U ? bits_as<std::uint32_t>(small) : (rest << 13U) + (112U << 23U)));
}

MUSTER_HD std::uint16_t to_f16(float value) {
#ifdef __CUDA_ARCH__
  std::uint16_t half;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half) : "f"(value));
  return half;
#endif
  const auto bits = bits_as<std::uint32_t>(value);
  const std::uint32_t sign = bits >> 16U & 0x8000U, rest = bits & 0x7fff'ffffU;
  if (rest > 0x7f80'0000U) return static_cast<std::uint16_t>(sign | 0x7e00U);   // NaN
  if (rest >= 0x477f'f000U) return static_cast<std::uint16_t>(sign | 0x7c00U);  // 65520 and more: infinity
  // Below the least normal: a sum with 0.5 rounds to multiples of 2^-24, the subnormals' unit.
  if (rest < 0x3880'0000U)
    return static_cast<std::uint16_t>(
        sign | (bits_as<std::uint32_t>(bits_as<float>(rest) + 0.5F) - bits_as<std::uint32_t>(0.5F)));
  return static_cast<std::uint16_t>(sign | ((rest + 0xfffU + (rest >> 13U & 1U) - (112U << 23U)) >> 13U));
}

struct Bf16 {
  std::uint16_t bits;
};
struct F16 {
  std::uint16_t bits;
};
MUSTER_HD float to_float(float value) {
  return value;
}
MUSTER_HD float to_float(Bf16 value) {
  return from_bf16(value.bits);
}
MUSTER_HD float to_float(F16 value) {
  return from_f16(value.bits);
}
template <class T>
MUSTER_HD T from_float(float value) {
  if constexpr (sizeof(T) == sizeof(float))
    return value;
  else if constexpr (std::is_same_v<T, Bf16>)
    return {to_bf16(value)};
  else
    return {to_f16(value)};
}

/// A tensor's memory as T's.
template <class T>
MUSTER_HD const T* as(const void* memory) {
  return static_cast<const T*>(memory);
}
template <class T>
MUSTER_HD T* as(void* memory) {
  return static_cast<T*>(memory);
}

/// call(T()) of the T that `dtype` names: float, Bf16 or F16.
template <class Call>
auto with_type(DType dtype, Call call) {
  if (dtype == DType::kBFloat16) return call(Bf16{});
  return dtype == DType::kFloat16 ? call(F16{}) : call(float{});
}

/// Neighbouring values, in memory of type T (float, Bf16, F16), brought and written by one instruction: there
/// they lie at a multiple of their size.
template <int N>
struct Lanes {
  float v[N];
};
template <int N, class T>
struct alignas(N * sizeof(T)) Stored {
  T v[N];
};

template <int N, class T>
MUSTER_HD Lanes<N> load(const T* from) {
  const Stored<N, T> stored = *reinterpret_cast<const Stored<N, T>*>(from);
  Lanes<N> values;
  MUSTER_UNROLL
  for (int l = 0; l < N; ++l) values.v[l] = to_float(stored.v[l]);
  return values;
}

template <int N, class T>
MUSTER_HD void store(T* to, const Lanes<N>& values) {
  Stored<N, T> stored;
  MUSTER_UNROLL
  for (int l = 0; l < N; ++l) stored.v[l] = from_float<T>(values.v[l]);
  *reinterpret_cast<Stored<N, T>*>(to) = stored;
}

/// Values i to i + N - 1.
template <int N>
MUSTER_HD Lanes<N> load(const void* from, DType dtype, std::int64_t i) {
  if (dtype == DType::kFloat32) return load<N>(as<float>(from) + i);
  return dtype == DType::kBFloat16 ? load<N>(as<Bf16>(from) + i) : load<N>(as<F16>(from) + i);
}

MUSTER_HD float rounded(float value, DType through) {
  if (through == DType::kFloat32) return value;
  return through == DType::kBFloat16 ? from_bf16(to_bf16(value)) : from_f16(to_f16(value));
}

template <int N>
MUSTER_HD void store(void* to, DType dtype, std::int64_t i, const Lanes<N>& values) {
  if (dtype == DType::kFloat32)
    store(as<float>(to) + i, values);
  else if (dtype == DType::kBFloat16)
    store(as<Bf16>(to) + i, values);
  else
    store(as<F16>(to) + i, values);
}

}  // namespace muster::nn
