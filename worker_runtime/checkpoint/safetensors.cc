// SPDX-License-Identifier: Apache-2.0
#include "worker_runtime/checkpoint/safetensors.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <optional>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "rendezvous/base/fail.h"
#include "rendezvous/base/text.h"

namespace muster::safetensors {
namespace {

constexpr std::size_t kDataAlignment = 64;
constexpr std::size_t kLengthBytes = 8;

template <class... Args>
tl::unexpected<Error> corrupt(fmt::format_string<Args...> what, Args&&... args) {
  return fail(ErrorCode::kCorrupt, "not a valid safetensors file: {}",
              fmt::format(what, std::forward<Args>(args)...));
}

/// Bytes of a tensor, or nothing where the product does not fit.
Result<std::uint64_t> bytes_of(const std::vector<std::int64_t>& shape, DType dtype) {
  std::uint64_t total = size_of(dtype);
  for (const std::int64_t dim : shape)
    if (dim < 0 || __builtin_mul_overflow(total, static_cast<std::uint64_t>(dim), &total))
      return invalid("its shape is too large");
  return total;
}

std::uint64_t little_endian(std::string_view bytes) {
  std::uint64_t value = 0;
  for (std::size_t i = kLengthBytes; i-- > 0;) value = value << 8U | static_cast<unsigned char>(bytes[i]);
  return value;
}

std::optional<DType> dtype_of(std::string_view text) {
  for (const DType dtype : {DType::kFloat32, DType::kFloat64, DType::kFloat16, DType::kBFloat16,
                            DType::kInt32, DType::kInt64, DType::kUInt8})
    if (to_string(dtype) == text) return dtype;
  return std::nullopt;
}

/// "6x1x5x5".
std::string shape_text(const std::vector<std::int64_t>& shape) {
  return shape.empty() ? "scalar" : fmt::format("{}", fmt::join(shape, "x"));
}

}  // namespace

Result<Header> parse_header(std::string_view text) {
  // The format wants the object first; space may follow it.
  if (text.empty() || text.front() != '{')
    return fail(ErrorCode::kCorrupt, "its header does not start with '{'");
  // What a parsed value does not show, or would take much memory for: a key that comes twice, lists longer or
  // deeper than any of the format.
  using Json = nlohmann::json;
  constexpr int kOfEntry = 2, kOfList = 3;
  std::string wrong;
  std::set<std::string> keys[kOfEntry];
  std::size_t numbers = 0;
  const auto look = [&](int depth, Json::parse_event_t event, Json& value) {
    using Event = Json::parse_event_t;
    if (event == Event::object_start && depth < kOfEntry) keys[depth].clear();
    if (event == Event::key && depth <= kOfEntry && !keys[depth - 1].insert(value).second)
      wrong = "'" + value.get<std::string>().substr(0, 80) + "' appears twice";
    if (event == Event::array_start) numbers = 0;
    if (event == Event::value && depth == kOfList && ++numbers > kMaxDims) wrong = "a list is too long";
    if (depth > kOfList) wrong = "it is nested too deeply";
    return wrong.empty();
  };
  Json json;
  try {
    json = Json::parse(text.begin(), text.end(), look);
  } catch (const Json::exception& error) {
    if (wrong.empty()) wrong = "it is not JSON: " + std::string(error.what()).substr(0, 160);
  }
  if (!wrong.empty()) return fail(ErrorCode::kCorrupt, "in its header: {}", one_line(wrong));

  Header header;
  for (const auto& [name, entry] : json.items()) {
    const auto refuse = [&, &name = name](const std::string& what) {
      return fail(ErrorCode::kCorrupt, "in its header, at '{}': {}", one_line(name.substr(0, 80)),
                  one_line(what));
    };
    if (!entry.is_object()) return refuse("it is no object");
    if (name == kMetadataKey) {
      for (const auto& [key, value] : entry.items()) {
        if (!value.is_string()) return refuse("metadata must be text");
        header.metadata.emplace(key, value);
      }
      continue;
    }
    for (const auto* const key : {"dtype", "shape", "data_offsets"})
      if (entry.size() != 3 || !entry.contains(key))
        return refuse("it must have dtype, shape and data_offsets and nothing else");
    const Json &shape = entry["shape"], &offsets = entry["data_offsets"];
    for (const Json* const list : {&shape, &offsets})
      if (!list->is_array() || !std::all_of(list->begin(), list->end(),
                                            [](const Json& number) { return number.is_number_unsigned(); }))
        return refuse("shape and data_offsets must be lists of whole numbers, none below 0");
    if (offsets.size() != 2) return refuse("data_offsets must be two numbers");
    HeaderEntry& made = header.entries.emplace_back();
    made.name = name;
    made.begin = offsets[0];
    made.end = offsets[1];
    for (const std::uint64_t dim : shape) {
      if (dim > std::numeric_limits<std::int64_t>::max()) return refuse("its shape is too large");
      made.shape.push_back(static_cast<std::int64_t>(dim));
    }
    const std::optional<DType> dtype =
        entry["dtype"].is_string() ? dtype_of(entry["dtype"].get<std::string>()) : std::nullopt;
    if (!dtype) return refuse("unknown dtype " + entry["dtype"].dump().substr(0, 80));
    made.dtype = *dtype;
  }
  return header;
}

const TensorView* FileView::find(std::string_view name) const {
  const auto found =
      std::find_if(tensors.begin(), tensors.end(), [&](const TensorView& t) { return t.name == name; });
  return found == tensors.end() ? nullptr : &*found;
}

Result<FileView> parse(std::string_view bytes) {
  if (bytes.size() < kLengthBytes) return corrupt("it has only {} bytes", bytes.size());
  const std::uint64_t header_bytes = little_endian(bytes);
  const std::string_view rest = bytes.substr(kLengthBytes);
  if (header_bytes > kMaxHeaderBytes)
    return corrupt("a header of {} bytes is more than the limit of {}", header_bytes, kMaxHeaderBytes);
  if (header_bytes > rest.size())
    return corrupt("truncated: the header has {} bytes, {} are there", header_bytes, rest.size());
  const std::string_view data = rest.substr(header_bytes);

  auto header = parse_header(rest.substr(0, header_bytes));
  if (!header) return corrupt("{}", header.error().message);
  std::sort(header->entries.begin(), header->entries.end(), [](const HeaderEntry& a, const HeaderEntry& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.end < b.end;
  });

  FileView view;
  view.metadata = std::move(header->metadata);
  std::uint64_t end = 0;
  for (HeaderEntry& entry : header->entries) {
    const std::string who = "tensor '" + entry.name + "'";
    if (entry.begin > entry.end) return corrupt("{}: its data ends before it begins", who);
    if (entry.end > data.size())
      return corrupt("{}: its data ends at byte {} of {}", who, entry.end, data.size());
    if (entry.begin < end) return corrupt("{}: its data overlaps another tensor's", who);
    if (entry.begin > end) return corrupt("{}: there is a hole in front of its data", who);
    const auto size = bytes_of(entry.shape, entry.dtype);
    if (!size) return corrupt("{}: {}", who, size.error().message);
    if (*size != entry.end - entry.begin)
      return corrupt("{}: its shape needs {} bytes, its data has {}", who, *size, entry.end - entry.begin);
    end = entry.end;
    view.tensors.push_back({std::move(entry.name), entry.dtype, std::move(entry.shape),
                            data.substr(entry.begin, entry.end - entry.begin)});
  }
  if (end != data.size()) return corrupt("{} bytes at its end belong to no tensor", data.size() - end);
  return view;
}

Result<Layout> lay_out(const std::vector<TensorView>& tensors, const Metadata& metadata) {
  Layout layout;
  std::set<std::string_view> names;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const TensorView& tensor = tensors[i];
    if (tensor.name == kMetadataKey || !names.insert(tensor.name).second)
      return invalid("safetensors: two tensors named '{}'", tensor.name);
    MUSTER_TRY(const std::uint64_t size, bytes_of(tensor.shape, tensor.dtype));
    if (size != tensor.bytes.size())
      return invalid("safetensors: tensor '{}' has {} bytes, its shape needs {}", tensor.name,
                     tensor.bytes.size(), size);
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
    return invalid("safetensors: a name or metadata value is not UTF-8 text");
  }
  text.append((kDataAlignment - (kLengthBytes + text.size()) % kDataAlignment) % kDataAlignment, ' ');
  for (std::size_t i = 0; i < kLengthBytes; ++i)
    layout.header.push_back(static_cast<char>(static_cast<std::uint64_t>(text.size()) >> (8 * i) & 0xffU));
  layout.header += text;
  return layout;
}

std::vector<std::string_view> pieces_of(const std::vector<TensorView>& tensors, const Layout& layout) {
  std::vector<std::string_view> pieces{layout.header};
  pieces.reserve(1 + layout.order.size());
  for (const std::size_t i : layout.order) pieces.push_back(tensors[i].bytes);
  return pieces;
}

void append_tensors(std::vector<TensorView>& tensors, const std::vector<nn::Parameter>& parameters,
                    std::span<const float> arena, const std::string& prefix) {
  for (const nn::Parameter& parameter : parameters) {
    const auto values = arena.subspan(parameter.offset, parameter.count);
    tensors.push_back({prefix + parameter.name,
                       DType::kFloat32,
                       parameter.shape,
                       {reinterpret_cast<const char*>(values.data()), values.size_bytes()}});
  }
}

Result<std::vector<float>> read_arena(const FileView& file, const std::vector<nn::Parameter>& parameters,
                                      std::size_t elements, const std::string& prefix) {
  std::vector<float> arena(elements, 0.0F);
  for (const nn::Parameter& parameter : parameters) {
    const std::string name = prefix + parameter.name;
    const TensorView* tensor = file.find(name);
    if (tensor == nullptr)
      return fail(ErrorCode::kMismatch, "it has no tensor '{}'; these are the weights of another model",
                  name);
    if (tensor->dtype != DType::kFloat32 || tensor->shape != parameter.shape)
      return fail(ErrorCode::kMismatch, "tensor '{}' is {} {}, the model's is F32 {}{}", name,
                  to_string(tensor->dtype), shape_text(tensor->shape), shape_text(parameter.shape),
                  (tensor->shape == parameter.shape ? "; save it as F32"
                                                    : "; these are the weights of another model"));
    std::memcpy(arena.data() + parameter.offset, tensor->bytes.data(), tensor->bytes.size());
  }
  return arena;
}

}  // namespace muster::safetensors
