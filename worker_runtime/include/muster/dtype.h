// SPDX-License-Identifier: Apache-2.0
// Element types, devices and untyped views of contiguous memory: the words in which collectives and layers
// talk.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace muster {

enum class DType : std::uint8_t { kFloat32, kFloat64, kFloat16, kBFloat16, kInt32, kInt64, kUInt8 };
enum class DeviceType : std::uint8_t { kCpu, kCuda };

/// Bytes per element.
[[nodiscard]] constexpr std::size_t size_of(DType dtype) {
  switch (dtype) {
    case DType::kFloat64:
    case DType::kInt64:
      return 8;
    case DType::kFloat32:
    case DType::kInt32:
      return 4;
    case DType::kFloat16:
    case DType::kBFloat16:
      return 2;
    case DType::kUInt8:
      return 1;
  }
  return 0;
}

/// safetensors' names: "F32", "F64", "F16", "BF16", "I32", "I64", "U8".
[[nodiscard]] constexpr std::string_view to_string(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return "F32";
    case DType::kFloat64:
      return "F64";
    case DType::kFloat16:
      return "F16";
    case DType::kBFloat16:
      return "BF16";
    case DType::kInt32:
      return "I32";
    case DType::kInt64:
      return "I64";
    case DType::kUInt8:
      return "U8";
  }
  return "?";
}

/// `count` contiguous elements at `data`; host memory for CPU groups, device memory for NCCL groups.
struct Buffer {
  void* data = nullptr;
  std::size_t count = 0;  // elements, not bytes
  DType dtype = DType::kFloat32;

  [[nodiscard]] std::size_t size_bytes() const { return count * size_of(dtype); }
};

struct ConstBuffer {
  const void* data = nullptr;
  std::size_t count = 0;
  DType dtype = DType::kFloat32;

  ConstBuffer() = default;
  ConstBuffer(const void* d, std::size_t n, DType t) : data(d), count(n), dtype(t) {}
  ConstBuffer(const Buffer& b)
      : data(b.data), count(b.count), dtype(b.dtype) {}  // NOLINT(google-explicit-constructor)
  [[nodiscard]] std::size_t size_bytes() const { return count * size_of(dtype); }
};

}  // namespace muster
