// SPDX-License-Identifier: Apache-2.0
// safetensors: named tensors in one file, readable by every framework. Pure: bytes to values and back.
// Reading treats the bytes as hostile: the header's length is capped before it is parsed, every offset, shape
// and product is checked, and tensors must cover the data exactly, without holes, overlaps or duplicate
// names. Writing puts the data on a 64-byte boundary, tensors sorted by alignment (largest first), then name.
// Source: the format section of the README of huggingface/safetensors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <muster/dtype.h>
#include <muster/nn.h>
#include <muster/result.h>

namespace muster::safetensors {

inline constexpr std::size_t kMaxHeaderBytes = 100'000'000;
inline constexpr std::size_t kMaxDims = 16;

using Metadata = std::map<std::string, std::string>;

struct TensorView {
  std::string name;
  DType dtype = DType::kFloat32;
  std::vector<std::int64_t> shape;
  std::string_view bytes;  // into the file's bytes; not necessarily aligned
};

struct FileView {
  std::vector<TensorView> tensors;  // in order of their data
  Metadata metadata;

  /// nullptr when there is none of that name.
  [[nodiscard]] const TensorView* find(std::string_view name) const;
};

/// `bytes` must outlive the view. kCorrupt says what is wrong and where.
[[nodiscard]] Result<FileView> parse(std::string_view bytes);

inline constexpr std::string_view kMetadataKey = "__metadata__";

/// Of the JSON header: its bytes are not yet checked against the data, from whose start they count.
struct HeaderEntry {
  std::string name;
  DType dtype = DType::kFloat32;
  std::vector<std::int64_t> shape = {};
  std::uint64_t begin = 0, end = 0;
};
struct Header {
  std::vector<HeaderEntry> entries;
  Metadata metadata;
};
/// The grammar is narrow: an object of objects with three known keys, and one object of strings. Anything
/// else is refused; what is deeper or longer than that takes no memory.
[[nodiscard]] Result<Header> parse_header(std::string_view json);

/// The part of the file in front of the data, and the order in which the tensors' bytes follow it.
/// kInvalidArgument: a duplicate name, or bytes that do not fit the shape.
struct Layout {
  std::string header;              // length and JSON, padded
  std::vector<std::size_t> order;  // indices into the tensors given
};
[[nodiscard]] Result<Layout> lay_out(const std::vector<TensorView>& tensors, const Metadata& metadata);

/// The file's bytes in order: the header, then the tensors'. Both arguments outlive them.
[[nodiscard]] std::vector<std::string_view> pieces_of(const std::vector<TensorView>& tensors,
                                                      const Layout& layout);

/// Adds a view of each parameter (or buffer) as prefix + name; `arena` outlives them.
void append_tensors(std::vector<TensorView>& tensors, const std::vector<nn::Parameter>& parameters,
                    std::span<const float> arena, const std::string& prefix = "");

/// Copies the tensors prefix + name into an arena of `elements`. kMismatch: one is missing, or is not F32 of
/// the parameter's shape.
[[nodiscard]] Result<std::vector<float>> read_arena(const FileView& file,
                                                    const std::vector<nn::Parameter>& parameters,
                                                    std::size_t elements, const std::string& prefix = "");

}  // namespace muster::safetensors
