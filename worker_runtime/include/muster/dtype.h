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
  constexpr std::size_t kSizes[] = {4, 8, 2, 2, 4, 8, 1};
  return kSizes[static_cast<std::size_t>(dtype)];
}

/// safetensors' names.
[[nodiscard]] constexpr std::string_view to_string(DType dtype) {
  constexpr std::string_view kNames[] = {"F32", "F64", "F16", "BF16", "I32", "I64", "U8"};
  return kNames[static_cast<std::size_t>(dtype)];
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
