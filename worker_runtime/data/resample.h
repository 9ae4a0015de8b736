// SPDX-License-Identifier: Apache-2.0
// resample: PIL's antialiased bilinear resizing, bit for bit: horizontally, rounded to bytes, then
// vertically, in fixed point of 22 bits. Pure. Source: Pillow's Resample.c.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <muster/transforms.h>

namespace muster {

/// Part of an image, in pixels and parts of them.
struct Box {
  double left, top, right, bottom;
};

/// PIL's from.resize((width, height), BILINEAR, box).
void resample(const transforms::Image& from, const Box& box, int width, int height, transforms::Image& to);

/// Of one direction: of each result pixel its first source pixel, how many, and where their factors start.
struct ResampleWeights {
  struct Taps {
    int first, count;
    std::size_t factors;
  };
  std::vector<Taps> taps;
  std::vector<std::int32_t> factors;
};

}  // namespace muster
