// SPDX-License-Identifier: Apache-2.0
// The JSON header of a safetensors file as values. The grammar is narrow (an object of objects with three
// known keys, and one object of strings), so anything else is refused where it appears, whatever its depth.
// Pure; called by safetensors.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "worker_runtime/training/safetensors.h"

namespace muster::safetensors {

inline constexpr std::string_view kMetadataKey = "__metadata__";

struct HeaderEntry {
  std::string name;
  DType dtype = DType::kFloat32;
  std::vector<std::int64_t> shape;
  std::uint64_t begin = 0;  // bytes from the start of the data; not yet checked against it
  std::uint64_t end = 0;
};

struct Header {
  std::vector<HeaderEntry> entries;
  Metadata metadata;
};

[[nodiscard]] Result<Header> parse_header(std::string_view json);

}  // namespace muster::safetensors
