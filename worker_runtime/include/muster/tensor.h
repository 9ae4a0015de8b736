// SPDX-License-Identifier: Apache-2.0
// Tensor: a view of contiguous memory with its element type, device, shape and layout. A value without
// ownership: the memory belongs to an arena (nn::Model, nn::Plan) that outlives it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include <muster/dtype.h>

namespace muster {

/// How a tensor of four dimensions (batch, channels, height, width) lies in memory, the last one densest.
enum class Layout : std::uint8_t { kNCHW, kNHWC };

/// What a tensor's memory means.
struct TensorFormat {
  DType dtype = DType::kFloat32;
  Layout layout = Layout::kNCHW;
  friend bool operator==(const TensorFormat&, const TensorFormat&) = default;
};

struct Tensor {
  void* data = nullptr;  ///< nullptr: there is none, as a gradient that nobody needs
  DType dtype = DType::kFloat32;
  DeviceType device = DeviceType::kCpu;
  Layout layout = Layout::kNCHW;
  int rank = 0;               ///< dimensions in use, at most 4
  std::array<int, 4> dims{};  ///< the first is the batch

  [[nodiscard]] explicit operator bool() const { return data != nullptr; }
  [[nodiscard]] std::int64_t count() const {
    std::int64_t product = 1;
    for (int i = 0; i < rank; ++i) product *= dims[static_cast<std::size_t>(i)];
    return product;
  }
  [[nodiscard]] std::size_t size_bytes() const { return static_cast<std::size_t>(count()) * size_of(dtype); }
  [[nodiscard]] float* f32() const { return static_cast<float*>(data); }

  // Of four dimensions; height and width of fewer are 1.
  [[nodiscard]] int batch() const { return dims[0]; }
  [[nodiscard]] int channels() const { return dims[1]; }
  [[nodiscard]] int height() const { return rank > 2 ? dims[2] : 1; }
  [[nodiscard]] int width() const { return rank > 3 ? dims[3] : 1; }
};

/// A conversion between tensors of float32, bfloat16 and float16 and between layouts, done beside the
/// operations of a plan.
struct Cast {
  const void* from = nullptr;
  void* to = nullptr;
  DType from_dtype = DType::kFloat32, to_dtype = DType::kFloat32;
  DType through = DType::kFloat32;  ///< float32 to float32: what the values are rounded to
  bool adds = false;                ///< to what is there
  float scale = 1;                  ///< the values are multiplied with it first
  std::int64_t count = 0;
  int rows = 1, columns = 1;  ///< `from` is matrices (rows, columns), `to` their transposes
};

}  // namespace muster
