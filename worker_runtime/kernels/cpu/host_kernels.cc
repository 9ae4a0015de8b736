// SPDX-License-Identifier: Apache-2.0
#include "worker_runtime/kernels/cpu/host_kernels.h"

#include <cstdlib>
#include <cstring>
#include <limits>
#include <string>

namespace muster::kernels {
namespace {

constexpr std::size_t kAlignment = 256;
// No rank has this much; a larger request is a mistaken size, and some allocators abort on it.
constexpr std::size_t kLargestAllocation = std::size_t{1} << 40;

std::string describe(const ConvShape& shape) {
  return "conv2d " + std::to_string(shape.in_channels) + "->" + std::to_string(shape.out_channels) +
         ", kernel " + std::to_string(shape.kernel) + ", stride " + std::to_string(shape.stride) +
         ", padding " + std::to_string(shape.padding) + " on a batch of " + std::to_string(shape.batch) +
         " images of " + std::to_string(shape.height) + "x" + std::to_string(shape.width);
}

bool fits_int(std::int64_t a, std::int64_t b, std::int64_t c) {
  constexpr std::int64_t kLimit = std::numeric_limits<int>::max();
  return a * b <= kLimit && a * b * c <= kLimit;
}

}  // namespace

void AlignedDelete::operator()(void* memory) const {
  std::free(memory);
}

AlignedMemory allocate_aligned(std::size_t size_bytes) {
  if (size_bytes >= kLargestAllocation) return nullptr;
  // Rounded up: aligned_alloc wants a multiple, and malloc(0) would have no address of its own.
  const std::size_t rounded = (size_bytes / kAlignment + 1) * kAlignment;
  void* memory = std::aligned_alloc(kAlignment, rounded);
  if (memory != nullptr) std::memset(memory, 0, rounded);
  return AlignedMemory(memory);
}

Result<void*> HostKernels::allocate(std::size_t size_bytes) {
  AlignedMemory memory = allocate_aligned(size_bytes);
  if (!memory) {
    return fail(ErrorCode::kExhausted, "allocate " + std::to_string(size_bytes) +
                                           " bytes of CPU memory: none left; use a smaller batch or model");
  }
  allocations_.push_back(std::move(memory));
  return allocations_.back().get();
}

void HostKernels::copy_to_device(void* device, const void* host, std::size_t size_bytes) {
  if (size_bytes != 0) std::memcpy(device, host, size_bytes);
}

void HostKernels::copy_to_host(void* host, const void* device, std::size_t size_bytes) {
  if (size_bytes != 0) std::memcpy(host, device, size_bytes);
}

void HostKernels::copy_on_device(void* to, const void* from, std::size_t size_bytes) {
  if (size_bytes != 0) std::memcpy(to, from, size_bytes);
}

void HostKernels::zero(void* device, std::size_t size_bytes) {
  if (size_bytes != 0) std::memset(device, 0, size_bytes);
}

Result<void> check_shape(const ConvShape& s) {
  if (s.batch < 1 || s.in_channels < 1 || s.out_channels < 1 || s.height < 1 || s.width < 1 || s.kernel < 1 ||
      s.stride < 1 || s.padding < 0) {
    return fail(ErrorCode::kInvalidArgument,
                describe(s) + ": every size must be at least 1 and the padding not negative");
  }
  if (std::int64_t{s.height} + 2 * std::int64_t{s.padding} < s.kernel ||
      std::int64_t{s.width} + 2 * std::int64_t{s.padding} < s.kernel) {
    return fail(ErrorCode::kInvalidArgument, describe(s) + ": the kernel is larger than the padded image");
  }
  if (!fits_int(std::int64_t{s.batch} * s.in_channels, s.height, s.width) ||
      !fits_int(std::int64_t{s.batch} * s.out_channels, s.out_height(), s.out_width()) ||
      !fits_int(std::int64_t{s.in_channels} * s.out_channels, s.kernel, s.kernel)) {
    return fail(ErrorCode::kUnsupported,
                describe(s) + ": a tensor would exceed 2^31 elements; use a smaller batch");
  }
  return {};
}

Result<void> check_shape(const LinearShape& s) {
  const std::string text = "linear " + std::to_string(s.in_features) + "->" + std::to_string(s.out_features) +
                           " on a batch of " + std::to_string(s.batch);
  if (s.batch < 1 || s.in_features < 1 || s.out_features < 1) {
    return fail(ErrorCode::kInvalidArgument, text + ": every size must be at least 1");
  }
  if (!fits_int(s.batch, s.in_features, 1) || !fits_int(s.batch, s.out_features, 1) ||
      !fits_int(s.in_features, s.out_features, 1)) {
    return fail(ErrorCode::kUnsupported, text + ": a tensor would exceed 2^31 elements; use a smaller batch");
  }
  return {};
}

}  // namespace muster::kernels
