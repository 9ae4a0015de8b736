// SPDX-License-Identifier: Apache-2.0
// One loop per element type and operation: load four vectors of every input, combine, store to every output.
// Memory is the limit at large sizes, so an element is read once and written once per output, and four
// vectors are in flight to hide latency when the data is in cache.
#include "worker_runtime/groups/base/reduce_kernels.h"

#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "worker_runtime/groups/base/reduce_kernels.cc"
#include <hwy/foreach_target.h>  // compiles this file once per instruction set
// clang-format off: highway.h comes after foreach_target.h
#include <hwy/highway.h>
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace muster::groups {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

struct SumOp {
  template <class D, class V>
  static V apply(D, V a, V b) {
    return hn::Add(a, b);
  }
};

struct ProductOp {
  template <class D, class V>
  static V apply(D d, V a, V b) {
    if constexpr (sizeof(hn::TFromD<D>) == 8 && !hwy::IsFloat<hn::TFromD<D>>()) {
      // Not every instruction set multiplies 64-bit lanes; this is no hot path.
      using U = std::uint64_t;
      HWY_ALIGN U x[hn::MaxLanes(D())];
      HWY_ALIGN U y[hn::MaxLanes(D())];
      const hn::RebindToUnsigned<D> du;
      hn::Store(hn::BitCast(du, a), du, x);
      hn::Store(hn::BitCast(du, b), du, y);
      for (std::size_t i = 0; i < hn::Lanes(d); ++i) x[i] *= y[i];
      return hn::BitCast(d, hn::Load(du, x));
    } else {
      return hn::Mul(a, b);
    }
  }
};

template <bool kMin>
struct ExtremeOp {
  template <class D, class V>
  static V apply(D, V a, V b) {
    V v = kMin ? hn::Min(a, b) : hn::Max(a, b);
    if constexpr (hwy::IsFloat<hn::TFromD<D>>()) {
      // What Min does with NaN differs between instruction sets: say it.
      v = hn::IfThenElse(hn::IsNaN(b), b, v);
      v = hn::IfThenElse(hn::IsNaN(a), a, v);
    }
    return v;
  }
};

/// Elements that are stored as they are computed with.
template <class T>
struct Plain {
  using Stored = T;
  using D = hn::ScalableTag<T>;
  static auto load(D d, const Stored* p) { return hn::LoadU(d, p); }
  template <class V>
  static void store(D d, V v, Stored* p) {
    hn::StoreU(v, d, p);
  }
};

using FloatTag = hn::ScalableTag<float>;

/// IEEE half precision by integer arithmetic on every instruction set: Highway 1.0's emulation for those
/// without conversions truncates and has no NaN, and results must not depend on the machine.
struct Half {
  using Stored = std::uint16_t;
  using D = FloatTag;
  static constexpr int kRebias = (127 - 15) << 23;

  static auto load(D d, const Stored* p) {
    const hn::Rebind<std::uint16_t, D> d16;
    const hn::RebindToUnsigned<D> d32;
    const auto bits = hn::PromoteTo(d32, hn::LoadU(d16, p));
    const auto sign = hn::ShiftLeft<16>(hn::And(bits, hn::Set(d32, 0x8000)));
    const auto shifted = hn::ShiftLeft<13>(hn::And(bits, hn::Set(d32, 0x7fff)));
    const auto exponent = hn::And(shifted, hn::Set(d32, 0x7c00 << 13));
    const auto rebias = hn::Set(d32, kRebias);
    const auto normal = hn::Add(shifted, rebias);
    const auto special = hn::Add(normal, rebias);  // infinity and NaN keep the highest exponent
    // Subnormal: give it an implicit one and take that away again as a float.
    const auto one = hn::Set(d32, 113 << 23);
    const auto subnormal = hn::BitCast(
        d32, hn::Sub(hn::BitCast(d, hn::Add(normal, hn::Set(d32, 1 << 23))), hn::BitCast(d, one)));
    auto out = hn::IfThenElse(hn::Eq(exponent, hn::Set(d32, 0x7c00 << 13)), special, normal);
    out = hn::IfThenElse(hn::Eq(exponent, hn::Zero(d32)), subnormal, out);
    return hn::BitCast(d, hn::Or(out, sign));
  }

  /// To nearest even.
  template <class V>
  static void store(D d, V v, Stored* p) {
    const hn::Rebind<std::uint16_t, D> d16;
    const hn::RebindToUnsigned<D> d32;
    const hn::RebindToSigned<D> ds32;
    const auto bits = hn::BitCast(d32, v);
    const auto sign = hn::And(bits, hn::Set(d32, 0x80000000u));
    const auto magnitude = hn::Xor(bits, sign);
    const auto odd = hn::And(hn::ShiftRight<13>(magnitude), hn::Set(d32, 1));
    const auto normal = hn::ShiftRight<13>(
        hn::Add(hn::Add(hn::Sub(magnitude, hn::Set(d32, kRebias)), hn::Set(d32, 0xfff)), odd));
    // Subnormal: adding 0.5 leaves exactly the bits that fit, rounded by the addition.
    const auto half = hn::Set(d32, 126 << 23);
    const auto subnormal =
        hn::Sub(hn::BitCast(d32, hn::Add(hn::BitCast(d, magnitude), hn::BitCast(d, half))), half);
    // Compared as signed numbers: the sign bit is off.
    const auto below = hn::Lt(hn::BitCast(ds32, magnitude), hn::Set(ds32, 113 << 23));
    const auto above = hn::Gt(hn::BitCast(ds32, magnitude), hn::Set(ds32, (143 << 23) - 1));
    auto out = hn::IfThenElse(hn::RebindMask(d32, below), subnormal, normal);
    out = hn::IfThenElse(hn::RebindMask(d32, above), hn::Set(d32, 0x7c00), out);
    out = hn::IfThenElse(hn::RebindMask(d32, hn::IsNaN(v)), hn::Set(d32, 0x7e00), out);
    out = hn::Or(out, hn::ShiftRight<16>(sign));
    hn::StoreU(hn::DemoteTo(d16, hn::BitCast(ds32, out)), d16, p);
  }
};

struct BrainHalf {
  using Stored = std::uint16_t;
  using D = FloatTag;
  static auto load(D d, const Stored* p) {
    const hn::Rebind<std::uint16_t, D> d16;
    const hn::RebindToUnsigned<D> d32;
    return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(d32, hn::LoadU(d16, p))));
  }
  /// Rounds to nearest even; Highway 1.0's own DemoteTo truncates. NaN stays NaN with its sign.
  template <class V>
  static void store(D, V v, Stored* p) {
    const hn::Rebind<std::uint16_t, D> d16;
    const hn::RebindToUnsigned<D> d32;
    const hn::RebindToSigned<D> ds32;
    const auto bits = hn::BitCast(d32, v);
    const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(d32, 1));
    auto rounded = hn::Add(bits, hn::Add(odd, hn::Set(d32, 0x7fff)));
    const auto quiet = hn::Or(bits, hn::Set(d32, 0x400000));
    rounded = hn::IfThenElse(hn::RebindMask(d32, hn::IsNaN(v)), quiet, rounded);
    hn::StoreU(hn::DemoteTo(d16, hn::BitCast(ds32, hn::ShiftRight<16>(rounded))), d16, p);
  }
};

struct Arguments {
  std::span<const void* const> inputs;
  std::span<void* const> outputs;
  std::size_t count;
  double scale;
};

template <class Element, class Op, bool kScaled>
void reduce_loop(const Arguments& a) {
  using Stored = typename Element::Stored;
  using D = typename Element::D;
  using T = hn::TFromD<D>;
  const D d;
  const std::size_t lanes = hn::Lanes(d);
  const auto scale = hn::Set(d, static_cast<T>(a.scale));
  const auto fetch = [&](const Stored* in) {
    if constexpr (kScaled)
      return hn::Mul(Element::load(d, in), scale);
    else
      return Element::load(d, in);
  };
  // waiting[k]: what 2^(k+1) inputs make, until as many others do.
  HWY_ALIGN T waiting[32][4 * hn::MaxLanes(D())];
  // Four vectors of every input, from input(p) on, to all outputs, to output(p).
  const auto block = [&](auto input, std::size_t num_outputs, auto output) {
    const std::size_t num_inputs = a.inputs.size();
    for (std::size_t p = 0; p < num_inputs; p += 2) {
      const Stored* in = input(p);
      auto v0 = fetch(in);
      auto v1 = fetch(in + lanes);
      auto v2 = fetch(in + 2 * lanes);
      auto v3 = fetch(in + 3 * lanes);
      const auto each = [&](auto body) {
        body(v0, 0);
        body(v1, lanes);
        body(v2, 2 * lanes);
        body(v3, 3 * lanes);
      };
      if (p + 1 < num_inputs) {
        in = input(p + 1);
        each([&](auto& v, std::size_t at) { v = Op::apply(d, v, fetch(in + at)); });
      }
      const bool last = p + 2 >= num_inputs;
      std::size_t level = 0;
      for (std::size_t pairs = p / 2; last ? pairs != 0 : pairs % 2 != 0; pairs /= 2, ++level) {
        const T* before = waiting[level];
        if (pairs % 2 != 0) each([&](auto& v, auto at) { v = Op::apply(d, hn::Load(d, before + at), v); });
      }
      if (!last) each([&](auto& v, std::size_t at) { hn::Store(v, d, waiting[level] + at); });
      for (std::size_t q = 0; last && q < num_outputs; ++q) {
        Stored* out = output(q);
        each([&](auto& v, std::size_t at) { Element::store(d, v, out + at); });
      }
    }
  };
  std::size_t i = 0;
  const auto input = [&](std::size_t p) { return static_cast<const Stored*>(a.inputs[p]) + i; };
  const auto output = [&](std::size_t p) { return static_cast<Stored*>(a.outputs[p]) + i; };
  for (; i + 4 * lanes <= a.count; i += 4 * lanes) block(input, a.outputs.size(), output);
  // The rest through padded copies, so that it is the same arithmetic.
  const std::size_t rest = (a.count - i) * sizeof(Stored);
  if (rest == 0) return;
  HWY_ALIGN Stored padded[4 * hn::MaxLanes(D())] = {};
  HWY_ALIGN Stored result[4 * hn::MaxLanes(D())];
  block([&](std::size_t p) { return static_cast<const Stored*>(std::memcpy(padded, input(p), rest)); }, 1,
        [&](std::size_t) { return result; });
  for (std::size_t p = 0; p < a.outputs.size(); ++p) std::memcpy(output(p), result, rest);
}

template <class Element>
void reduce_elements(const Arguments& a, ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAvg:
      if constexpr (hwy::IsFloat<hn::TFromD<typename Element::D>>()) {
        if (a.scale != 1.0) return reduce_loop<Element, SumOp, true>(a);
      }
      return reduce_loop<Element, SumOp, false>(a);
    case ReduceOp::kMin:
      return reduce_loop<Element, ExtremeOp<true>, false>(a);
    case ReduceOp::kMax:
      return reduce_loop<Element, ExtremeOp<false>, false>(a);
    case ReduceOp::kProduct:
      return reduce_loop<Element, ProductOp, false>(a);
  }
}

void reduce_on_target(std::span<const void* const> inputs, std::span<void* const> outputs, std::size_t count,
                      DType dtype, ReduceOp op, double scale) {
  const Arguments a{inputs, outputs, count, scale};
  switch (dtype) {
    case DType::kFloat32:
      return reduce_elements<Plain<float>>(a, op);
    case DType::kFloat64:
      return reduce_elements<Plain<double>>(a, op);
    case DType::kInt32:
      return reduce_elements<Plain<std::int32_t>>(a, op);
    case DType::kInt64:
      return reduce_elements<Plain<std::int64_t>>(a, op);
    case DType::kFloat16:
      return reduce_elements<Half>(a, op);
    case DType::kBFloat16:
      return reduce_elements<BrainHalf>(a, op);
    case DType::kUInt8:
      return;  // refused by describe_all_reduce
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace muster::groups
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace muster::groups {

HWY_EXPORT(reduce_on_target);

void reduce(std::span<const void* const> inputs, std::span<void* const> outputs, std::size_t count,
            DType dtype, ReduceOp op, double scale) {
  HWY_DYNAMIC_DISPATCH(reduce_on_target)(inputs, outputs, count, dtype, op, scale);
}

}  // namespace muster::groups
#endif  // HWY_ONCE
