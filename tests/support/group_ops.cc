// SPDX-License-Identifier: Apache-2.0
#include "tests/support/group_ops.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include <fmt/format.h>

namespace muster::testing {
namespace {

constexpr std::size_t kPeriod = 23;

float bf16_to_float(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

std::uint16_t float_to_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if (std::isnan(value)) return static_cast<std::uint16_t>((bits >> 16) | 0x40);
  return static_cast<std::uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

float half_to_float(std::uint16_t bits) {
  const int exponent = (bits >> 10) & 31;
  const int mantissa = bits & 1023;
  const double sign = (bits & 0x8000) != 0 ? -1.0 : 1.0;
  if (exponent == 31) return mantissa != 0 ? std::nanf("") : static_cast<float>(sign * INFINITY);
  if (exponent == 0) return static_cast<float>(sign * std::ldexp(mantissa, -24));
  return static_cast<float>(sign * std::ldexp(1024 + mantissa, exponent - 25));
}

std::uint16_t float_to_half(float value) {
  const std::uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  const double magnitude = std::fabs(static_cast<double>(value));
  if (std::isnan(value)) return sign | 0x7e00;
  if (magnitude >= 65520.0) return sign | 0x7c00;
  if (magnitude == 0) return sign;
  int exponent = 0;
  std::frexp(magnitude, &exponent);
  // In units of the last place; nearbyint rounds to nearest even.
  const int unit = std::max(exponent - 11, -24);
  const auto scaled = static_cast<int>(std::nearbyint(std::ldexp(magnitude, -unit)));
  if (unit == -24) return static_cast<std::uint16_t>(sign + scaled);
  return static_cast<std::uint16_t>(sign + ((unit + 24) << 10) + scaled);
}

template <class T>
void put(void* element, T value) {
  std::memcpy(element, &value, sizeof value);
}
template <class T>
T take(const void* element) {
  T value;
  std::memcpy(&value, element, sizeof value);
  return value;
}

/// Exactly representable; with kAvg so are the values divided by world_size, which sum up alike in any order.
double input_value(const OpSpec& spec, int rank, int world_size, std::size_t i) {
  if (spec.reduce == ReduceOp::kProduct) {
    // At most 2^8 over 8 ranks, with all signs.
    constexpr double kFactors[] = {1, -1, 2};
    return kFactors[(i + static_cast<std::size_t>(rank)) % 3];
  }
  if (spec.dtype == DType::kUInt8)
    return static_cast<double>((i * 31 + static_cast<std::size_t>(rank) * 17) % 251);
  const double value = static_cast<double>((i * 5 + static_cast<std::size_t>(rank) * 7) % kPeriod) - 11.0;
  return spec.reduce == ReduceOp::kAvg ? value * world_size : value;
}

using Tile = std::array<std::array<std::byte, 8>, kPeriod>;

Tile input_tile(const OpSpec& spec, int rank, int world_size) {
  Tile tile{};
  for (std::size_t i = 0; i < kPeriod; ++i)
    encode(input_value(spec, rank, world_size, i), spec.dtype, tile[i].data());
  return tile;
}

Tile reduced_tile(const OpSpec& spec, int world_size) {
  Tile tile{};
  for (std::size_t i = 0; i < kPeriod; ++i) {
    const auto input = [&](int rank) {
      const double in = input_value(spec, rank, world_size, i);
      return spec.reduce == ReduceOp::kAvg ? in / world_size : in;
    };
    double value = input(0);
    for (int rank = 1; rank < world_size; ++rank) {
      const double other = input(rank);
      if (spec.reduce == ReduceOp::kMin)
        value = std::min(value, other);
      else if (spec.reduce == ReduceOp::kMax)
        value = std::max(value, other);
      else
        value = spec.reduce == ReduceOp::kProduct ? value * other : value + other;
    }
    encode(value, spec.dtype, tile[i].data());
  }
  return tile;
}

/// The tile's elements from `phase` on, again and again.
void fill(std::byte* data, const Tile& tile, std::size_t element, std::size_t count, std::size_t phase = 0) {
  std::size_t filled = std::min(count, kPeriod);
  for (std::size_t i = 0; i < filled; ++i)
    std::memcpy(data + i * element, tile[(i + phase) % kPeriod].data(), element);
  while (filled < count) {
    const std::size_t more = std::min(filled, count - filled);
    std::memcpy(data + filled * element, data, more * element);
    filled += more;
  }
}

}  // namespace

double decode(const void* element, DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return take<float>(element);
    case DType::kFloat64:
      return take<double>(element);
    case DType::kFloat16:
      return half_to_float(take<std::uint16_t>(element));
    case DType::kBFloat16:
      return bf16_to_float(take<std::uint16_t>(element));
    case DType::kInt32:
      return take<std::int32_t>(element);
    case DType::kInt64:
      return static_cast<double>(take<std::int64_t>(element));
    case DType::kUInt8:
      return take<std::uint8_t>(element);
  }
  return 0;
}

void encode(double value, DType dtype, void* element) {
  switch (dtype) {
    case DType::kFloat32:
      return put(element, static_cast<float>(value));
    case DType::kFloat64:
      return put(element, value);
    case DType::kFloat16:
      return put(element, float_to_half(static_cast<float>(value)));
    case DType::kBFloat16:
      return put(element, float_to_bf16(static_cast<float>(value)));
    case DType::kInt32:
      return put(element, static_cast<std::int32_t>(value));
    case DType::kInt64:
      return put(element, static_cast<std::int64_t>(value));
    case DType::kUInt8:
      return put(element, static_cast<std::uint8_t>(value));
  }
}

std::string describe(const OpSpec& spec) {
  static constexpr const char* kCalls[kNumCalls] = {
      "all_reduce", "start_all_reduce", "broadcast", "all_gather",    "reduce_scatter",
      "reduce",     "gather",           "scatter",   "send and recv", "barrier"};
  static constexpr const char* kReductions[] = {"sum", "avg", "min", "max", "product"};
  static constexpr const char* kWhere[] = {"private", "registered", "mixed"};
  return fmt::format("{} {} x {} {} root {} {}", kCalls[static_cast<int>(spec.call)], to_string(spec.dtype),
                     spec.count, kReductions[static_cast<int>(spec.reduce)], spec.root,
                     kWhere[static_cast<int>(spec.where)]);
}

OpRunner::OpRunner(ProcessGroup& group, std::size_t max_bytes) : group_(group) {
  for (int i = 0; i < 2; ++i) {
    const auto block = group.allocate(max_bytes);
    if (!block) throw std::runtime_error(block.error().message);
    registered_[i] = static_cast<std::byte*>(*block);
    if (std::any_of(registered_[i], registered_[i] + max_bytes,
                    [](std::byte b) { return b != std::byte{0}; }))
      throw std::runtime_error("allocated memory is not zero");
    private_[i].resize(max_bytes);
  }
}

std::byte* OpRunner::place(Where where, int which, std::size_t bytes, std::size_t offset) {
  const bool registered = where == Where::kRegistered || (where == Where::kMixed && group_.rank() % 2 == 0);
  auto& own = private_[which];
  if (own.size() < bytes + offset) own.resize(bytes + offset);
  return (registered ? registered_[which] : own.data()) + offset;
}

std::optional<std::string> OpRunner::compare(const OpSpec& spec, const std::byte* data, std::size_t count,
                                             std::size_t phase, int from) const {
  const Tile tile =
      from >= 0 ? input_tile(spec, from, group_.world_size()) : reduced_tile(spec, group_.world_size());
  const std::size_t element = size_of(spec.dtype);
  std::vector<std::byte> expected(count * element);
  fill(expected.data(), tile, element, count, phase);
  if (expected.empty() || std::memcmp(data, expected.data(), expected.size()) == 0) return std::nullopt;
  std::size_t at = 0;
  while (std::memcmp(data + at * element, &expected[at * element], element) == 0) ++at;
  return fmt::format("{}: element {} on rank {} is {}, not {}", describe(spec), at, group_.rank(),
                     decode(data + at * element, spec.dtype), decode(&expected[at * element], spec.dtype));
}

std::optional<std::string> OpRunner::run(const OpSpec& spec) {
  const std::size_t element = size_of(spec.dtype);
  const auto world = static_cast<std::size_t>(group_.world_size());
  const int rank = group_.rank();
  const Tile own = input_tile(spec, rank, group_.world_size());
  const auto failed = [&](const Error& error) { return describe(spec) + ": " + error.message; };
  switch (spec.call) {
    case Call::kBarrier:
      if (const auto done = group_.barrier(); !done) return failed(done.error());
      return std::nullopt;
    case Call::kAllReduce:
    case Call::kStartAllReduce: {
      std::byte* data = place(spec.where, 0, spec.count * element, 0);
      fill(data, own, element, spec.count);
      const Buffer buffer{data, spec.count, spec.dtype};
      if (spec.call == Call::kAllReduce) {
        if (const auto done = group_.all_reduce(buffer, spec.reduce); !done) return failed(done.error());
      } else {
        auto work = group_.start_all_reduce(buffer, spec.reduce);
        if (!work) return failed(work.error());
        if (const auto done = (*work)->wait(); !done) return failed(done.error());
      }
      return compare(spec, data, spec.count, 0, -1);
    }
    case Call::kBroadcast: {
      std::byte* data = place(spec.where, 0, spec.count * element, 0);
      fill(data, own, element, spec.count);
      if (const auto done = group_.broadcast({data, spec.count, spec.dtype}, spec.root); !done)
        return failed(done.error());
      return compare(spec, data, spec.count, 0, spec.root);
    }
    case Call::kAllGather: {
      std::byte* output = place(spec.where, 1, spec.count * element * world, 0);
      // Every third size in place.
      const bool in_place = spec.count % 3 == 0;
      std::byte* input = in_place ? output + static_cast<std::size_t>(rank) * spec.count * element
                                  : place(spec.where, 0, spec.count * element, 0);
      fill(input, own, element, spec.count);
      if (const auto done =
              group_.all_gather({input, spec.count, spec.dtype}, {output, spec.count * world, spec.dtype});
          !done)
        return failed(done.error());
      for (std::size_t from = 0; from < world; ++from)
        if (auto wrong =
                compare(spec, output + from * spec.count * element, spec.count, 0, static_cast<int>(from)))
          return wrong;
      return std::nullopt;
    }
    case Call::kReduceScatter: {
      std::byte* input = place(spec.where, 0, spec.count * element * world, 0);
      std::byte* output = place(spec.where, 1, spec.count * element, 0);
      fill(input, own, element, spec.count * world);
      if (const auto done = group_.reduce_scatter({input, spec.count * world, spec.dtype},
                                                  {output, spec.count, spec.dtype}, spec.reduce);
          !done)
        return failed(done.error());
      return compare(spec, output, spec.count, static_cast<std::size_t>(rank) * spec.count, -1);
    }
    case Call::kReduce: {
      std::byte* data = place(spec.where, 0, spec.count * element, 0);
      fill(data, own, element, spec.count);
      if (const auto done = group_.reduce({data, spec.count, spec.dtype}, spec.root, spec.reduce); !done)
        return failed(done.error());
      return rank == spec.root ? compare(spec, data, spec.count, 0, -1) : std::nullopt;
    }
    case Call::kGather: {
      std::byte* input = place(spec.where, 0, spec.count * element, 0);
      fill(input, own, element, spec.count);
      Buffer output;
      if (rank == spec.root)
        output = {place(spec.where, 1, spec.count * element * world, 0), spec.count * world, spec.dtype};
      if (const auto done = group_.gather({input, spec.count, spec.dtype}, output, spec.root); !done)
        return failed(done.error());
      for (std::size_t from = 0; rank == spec.root && from < world; ++from)
        if (auto wrong = compare(spec, static_cast<std::byte*>(output.data) + from * spec.count * element,
                                 spec.count, 0, static_cast<int>(from)))
          return wrong;
      return std::nullopt;
    }
    case Call::kScatter: {
      ConstBuffer input;
      if (rank == spec.root) {
        std::byte* all = place(spec.where, 0, spec.count * element * world, 0);
        for (std::size_t to = 0; to < world; ++to)
          fill(all + to * spec.count * element, input_tile(spec, static_cast<int>(to), group_.world_size()),
               element, spec.count);
        input = {all, spec.count * world, spec.dtype};
      }
      std::byte* output = place(spec.where, 1, spec.count * element, 0);
      if (const auto done = group_.scatter(input, {output, spec.count, spec.dtype}, spec.root); !done)
        return failed(done.error());
      return compare(spec, output, spec.count, 0, rank);
    }
    case Call::kSendAndRecv: {
      std::byte* input = place(spec.where, 0, spec.count * element, 0);
      std::byte* output = place(spec.where, 1, spec.count * element, 0);
      fill(input, own, element, spec.count);
      const int next = (rank + 1) % group_.world_size();
      const int before = (rank + group_.world_size() - 1) % group_.world_size();
      const auto send = [&] { return group_.send({input, spec.count, spec.dtype}, next); };
      const auto recv = [&] { return group_.recv({output, spec.count, spec.dtype}, before); };
      if (const auto done = rank % 2 == 0 ? send() : recv(); !done) return failed(done.error());
      if (const auto done = rank % 2 == 0 ? recv() : send(); !done) return failed(done.error());
      return compare(spec, output, spec.count, 0, before);
    }
  }
  return "no such call";
}

std::optional<std::string> OpRunner::run_overlapping(const std::vector<OpSpec>& specs) {
  std::vector<std::unique_ptr<Work>> works;
  std::vector<std::byte*> places;
  std::size_t offset = 0;
  for (const OpSpec& spec : specs) {
    const std::size_t bytes = (spec.count * size_of(spec.dtype) + 63) / 64 * 64;
    std::byte* data = place(spec.where, 0, bytes, offset);
    // Growing private memory would move what is in flight.
    if (!places.empty() && private_[0].size() < offset + bytes) return "the test's memory is too small";
    offset += bytes;
    fill(data, input_tile(spec, group_.rank(), group_.world_size()), size_of(spec.dtype), spec.count);
    places.push_back(data);
    auto work = group_.start_all_reduce({data, spec.count, spec.dtype}, spec.reduce);
    if (!work) return work.error().message;
    works.push_back(*std::move(work));
  }
  if (const auto done = group_.barrier(); !done) return done.error().message;
  for (std::size_t i = 0; i < specs.size(); ++i) {
    if (const auto done = works[i]->wait(); !done) return done.error().message;
    if (auto wrong = compare(specs[i], places[i], specs[i].count, 0, -1)) return wrong;
  }
  return std::nullopt;
}

OpSpec random_spec(std::mt19937& random, int world_size, std::size_t max_bytes) {
  const auto draw = [&](std::size_t n) { return static_cast<std::size_t>(random() % n); };
  OpSpec spec;
  spec.call = static_cast<Call>(draw(kNumCalls));
  const bool reduces = spec.call == Call::kAllReduce || spec.call == Call::kStartAllReduce ||
                       spec.call == Call::kReduceScatter || spec.call == Call::kReduce;
  spec.dtype = static_cast<DType>(draw(reduces ? 6 : 7));
  const bool integer = spec.dtype == DType::kInt32 || spec.dtype == DType::kInt64;
  do spec.reduce = static_cast<ReduceOp>(reduces ? draw(5) : 0);
  while (integer && spec.reduce == ReduceOp::kAvg);
  spec.root = static_cast<int>(draw(static_cast<std::size_t>(world_size)));
  spec.where = static_cast<Where>(draw(3));
  const std::size_t most = max_bytes / size_of(spec.dtype) / static_cast<std::size_t>(world_size);
  // Small, around a slice's or slot's edge, or anything.
  const std::size_t kind = draw(3);
  spec.count = kind == 0 ? draw(65) : kind == 1 ? draw(most / 16 + 1) : draw(most + 1);
  spec.count = std::min(spec.count, most);
  return spec;
}

}  // namespace muster::testing
