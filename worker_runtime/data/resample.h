// SPDX-License-Identifier: Apache-2.0
// resample: PIL's antialiased bilinear resizing, bit for bit: horizontally, rounded to bytes, then vertically,
// in fixed point of 22 bits. Of the result any window can be computed, from no more of the source than it
// needs. Source: Pillow's Resample.c.
#pragma once

#include <cstdint>
#include <vector>

#include <muster/transforms.h>

namespace muster {

/// One direction of a resizing, of which a window is wanted.
struct ResampleAxis {
  double begin = 0, end = 0;       // what of the source becomes the whole result
  int source_size = 0;             // pixels
  int size = 0;                    // of the whole result
  int first = 0, count = 0;        // the window
};

/// Source pixels that the window is made of: [first, end).
struct SourceRange {
  int first = 0, end = 0;
};
[[nodiscard]] SourceRange source_range(const ResampleAxis& axis);

/// Keeps its memory from image to image. One per thread.
class Resampler {
 public:
  /// `from` is the part of the source that starts at (left, top) and has source_range() of both axes.
  void operator()(const transforms::Image& from, int left, int top, const ResampleAxis& horizontal,
                  const ResampleAxis& vertical, transforms::Image& to);

  /// Of one result pixel: its first source pixel, how many, and where their factors start.
  struct Taps {
    int first = 0, count = 0;
    std::size_t factors = 0;
  };
  struct Weights {
    std::vector<Taps> taps;
    std::vector<std::int32_t> factors;
  };

 private:
  Weights horizontal_, vertical_;
  std::vector<double> spare_;
  std::vector<std::uint8_t> rows_;
};

}  // namespace muster
