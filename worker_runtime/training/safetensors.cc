// SPDX-License-Identifier: Apache-2.0
// Writing, and the checks of the data's layout. The header's JSON is read in safetensors_header.cc.
#include "worker_runtime/training/safetensors.h"

#include <algorithm>
#include <limits>
#include <set>

#include <nlohmann/json.hpp>

namespace muster::safetensors {
namespace {

constexpr std::size_t kDataAlignment = 64;
constexpr std::size_t kLengthBytes = 8;

tl::unexpected<Error> corrupt(const std::string& what) {
  return fail(ErrorCode::kCorrupt, "not a valid safetensors file: " + what);
}

/// Bytes of a tensor, or nothing where the product does not fit.
Result<std::uint64_t> bytes_of(const std::vector<std::int64_t>& shape, DType dtype) {
  std::uint64_t total = size_of(dtype);
  for (const std::int64_t dim : shape)
    if (dim < 0 || __builtin_mul_overflow(total, static_cast<std::uint64_t>(dim), &total))
      return fail(ErrorCode::kInvalidArgument, "its shape is too large");
  return total;
}

std::uint64_t little_endian(std::string_view bytes) {
  std::uint64_t value = 0;
  for (std::size_t i = kLengthBytes; i-- > 0;) value = value << 8U | static_cast<unsigned char>(bytes[i]);
  return value;
}

}  // namespace

const TensorView* FileView::find(std::string_view name) const {
  const auto found =
      std::find_if(tensors.begin(), tensors.end(), [&](const TensorView& t) { return t.name == name; });
  return found == tensors.end() ? nullptr : &*found;
}

Result<FileView> parse(std::string_view bytes) {
  if (bytes.size() < kLengthBytes) return corrupt("it has only " + std::to_string(bytes.size()) + " bytes");
  const std::uint64_t header_bytes = little_endian(bytes);
  const std::string_view rest = bytes.substr(kLengthBytes);
  if (header_bytes > kMaxHeaderBytes)
    return corrupt("a header of " + std::to_string(header_bytes) + " bytes is more than the limit of " +
                   std::to_string(kMaxHeaderBytes));
  if (header_bytes > rest.size())
    return corrupt("truncated: the header has " + std::to_string(header_bytes) + " bytes, " +
                   std::to_string(rest.size()) + " are there");
  const std::string_view data = rest.substr(header_bytes);

  auto header = parse_header(rest.substr(0, header_bytes));
  if (!header) return corrupt(header.error().message);
  std::sort(header->entries.begin(), header->entries.end(), [](const HeaderEntry& a, const HeaderEntry& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.end < b.end;
  });

  FileView view;
  view.metadata = std::move(header->metadata);
  std::uint64_t end = 0;
  for (HeaderEntry& entry : header->entries) {
    const std::string who = "tensor '" + entry.name + "': ";
    if (entry.begin > entry.end) return corrupt(who + "its data ends before it begins");
    if (entry.end > data.size())
      return corrupt(who + "its data ends at byte " + std::to_string(entry.end) + " of " +
                     std::to_string(data.size()));
    if (entry.begin < end) return corrupt(who + "its data overlaps another tensor's");
    if (entry.begin > end) return corrupt(who + "there is a hole in front of its data");
    const auto size = bytes_of(entry.shape, entry.dtype);
    if (!size) return corrupt(who + size.error().message);
    if (*size != entry.end - entry.begin)
      return corrupt(who + "its shape needs " + std::to_string(*size) + " bytes, its data has " +
                     std::to_string(entry.end - entry.begin));
    end = entry.end;
    view.tensors.push_back({std::move(entry.name), entry.dtype, std::move(entry.shape),
                            data.substr(entry.begin, entry.end - entry.begin)});
  }
  if (end != data.size())
    return corrupt(std::to_string(data.size() - end) + " bytes at its end belong to no tensor");
  return view;
}

Result<Layout> lay_out(const std::vector<TensorView>& tensors, const Metadata& metadata) {
  Layout layout;
  std::set<std::string_view> names;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const TensorView& tensor = tensors[i];
    if (tensor.name == kMetadataKey || !names.insert(tensor.name).second)
      return fail(ErrorCode::kInvalidArgument, "safetensors: two tensors named '" + tensor.name + "'");
    MUSTER_TRY(const std::uint64_t size, bytes_of(tensor.shape, tensor.dtype));
    if (size != tensor.bytes.size())
      return fail(ErrorCode::kInvalidArgument, "safetensors: tensor '" + tensor.name + "' has " +
                                                   std::to_string(tensor.bytes.size()) +
                                                   " bytes, its shape needs " + std::to_string(size));
    layout.order.push_back(i);
  }
  std::sort(layout.order.begin(), layout.order.end(), [&](std::size_t a, std::size_t b) {
    const std::size_t align_a = size_of(tensors[a].dtype);
    const std::size_t align_b = size_of(tensors[b].dtype);
    return align_a != align_b ? align_a > align_b : tensors[a].name < tensors[b].name;
  });

  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  if (!metadata.empty()) json[std::string(kMetadataKey)] = metadata;
  std::uint64_t offset = 0;
  for (const std::size_t i : layout.order) {
    const TensorView& tensor = tensors[i];
    const std::uint64_t end = offset + tensor.bytes.size();
    json[tensor.name] = {
        {"dtype", to_string(tensor.dtype)}, {"shape", tensor.shape}, {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string text;
  try {
    text = json.dump();
  } catch (const nlohmann::json::exception&) {
    return fail(ErrorCode::kInvalidArgument, "safetensors: a name or metadata value is not UTF-8 text");
  }
  text.append((kDataAlignment - (kLengthBytes + text.size()) % kDataAlignment) % kDataAlignment, ' ');
  for (std::size_t i = 0; i < kLengthBytes; ++i)
    layout.header.push_back(static_cast<char>(static_cast<std::uint64_t>(text.size()) >> (8 * i) & 0xffU));
  layout.header += text;
  return layout;
}

Result<std::string> serialize(const std::vector<TensorView>& tensors, const Metadata& metadata) {
  MUSTER_TRY(Layout layout, lay_out(tensors, metadata));
  std::string out = std::move(layout.header);
  for (const std::size_t i : layout.order) out += tensors[i].bytes;
  return out;
}

}  // namespace muster::safetensors
