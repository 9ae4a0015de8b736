// SPDX-License-Identifier: Apache-2.0
#include "worker_runtime/checkpoint/safetensors.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <set>

#include <nlohmann/json.hpp>

#include "rendezvous/base/text.h"

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

std::optional<DType> dtype_of(std::string_view text) {
  for (const DType dtype : {DType::kFloat32, DType::kFloat64, DType::kFloat16, DType::kBFloat16,
                            DType::kInt32, DType::kInt64, DType::kUInt8})
    if (to_string(dtype) == text) return dtype;
  return std::nullopt;
}

/// Follows the parser's events through the grammar: by depth, the key at hand and what an entry has so far.
/// What does not fit is refused. Strings of a header are quoted in errors only up to a length.
class HeaderReader final : public nlohmann::json_sax<nlohmann::json> {
 public:
  Header header;
  std::string error;

  bool start_object(std::size_t /*size*/) override {
    if (depth_ == 2) return refuse("an object where none belongs");
    ++depth_;
    return true;
  }
  bool end_object() override {
    if (depth_-- == 2 && entry_.name != kMetadataKey) {
      if (fields_.size() != 3) return refuse("it lacks dtype, shape or data_offsets");
      header.entries.push_back(std::move(entry_));
    }
    return true;
  }
  bool key(std::string& text) override {
    key_ = text;
    if (depth_ == 1) {
      if (!names_.insert(text).second) return refuse("the name '" + text.substr(0, 80) + "' appears twice");
      entry_ = {.name = text};
      fields_.clear();
    } else if (entry_.name != kMetadataKey) {
      const bool known = text == "dtype" || text == "shape" || text == "data_offsets";
      if (!known || !fields_.insert(text).second)
        return refuse("unknown or repeated key '" + text.substr(0, 80) + "'");
    }
    return true;
  }
  bool string(std::string& text) override {
    if (depth_ == 2 && entry_.name == kMetadataKey) {
      if (header.metadata.emplace(key_, text).second) return true;
      return refuse("the metadata '" + key_.substr(0, 80) + "' appears twice");
    }
    if (depth_ != 2 || in_array_ || key_ != "dtype") return refuse("a string where none belongs");
    const std::optional<DType> dtype = dtype_of(text);
    if (!dtype) return refuse("unknown dtype '" + text.substr(0, 80) + "'");
    entry_.dtype = *dtype;
    return true;
  }
  bool start_array(std::size_t /*size*/) override {
    if (depth_ != 2 || in_array_ || entry_.name == kMetadataKey || key_ == "dtype")
      return refuse("an array where none belongs");
    in_array_ = true;
    numbers_.clear();
    return true;
  }
  bool end_array() override {
    in_array_ = false;
    if (key_ == "shape") {
      entry_.shape.assign(numbers_.begin(), numbers_.end());
    } else {
      if (numbers_.size() != 2) return refuse("data_offsets must be two numbers");
      entry_.begin = numbers_[0];
      entry_.end = numbers_[1];
    }
    return true;
  }
  bool number_unsigned(std::uint64_t value) override {
    if (!in_array_ || (key_ != "shape" && numbers_.size() == 2)) return refuse("a number where none belongs");
    if (key_ == "shape" && (numbers_.size() == kMaxDims || value > std::numeric_limits<std::int64_t>::max()))
      return refuse("its shape is too large");
    numbers_.push_back(value);
    return true;
  }
  bool number_integer(std::int64_t /*value*/) override { return refuse("a negative number"); }
  bool number_float(double /*value*/, const std::string& /*text*/) override {
    return refuse("a fractional number");
  }
  bool null() override { return refuse("null"); }
  bool boolean(bool /*value*/) override { return refuse("a truth value"); }
  bool binary(binary_t& /*value*/) override { return refuse("binary data"); }
  bool parse_error(std::size_t position, const std::string& /*last_token*/,
                   const nlohmann::detail::exception& /*exception*/) override {
    error = "its header is not JSON at byte " + std::to_string(position);
    return false;
  }

 private:
  bool refuse(const std::string& what) {
    error = (entry_.name.empty() ? "in its header: "
                                 : "in its header, at '" + entry_.name.substr(0, 80) + "': ") +
            what;
    return false;
  }

  int depth_ = 0;
  std::string key_;
  HeaderEntry entry_;
  std::set<std::string> names_, fields_;
  bool in_array_ = false;
  std::vector<std::uint64_t> numbers_;
};

}  // namespace

Result<Header> parse_header(std::string_view json) {
  // The format wants the object first; space may follow it.
  if (json.empty() || json.front() != '{')
    return fail(ErrorCode::kCorrupt, "its header does not start with '{'");
  HeaderReader reader;
  if (!nlohmann::json::sax_parse(json.begin(), json.end(), &reader))
    return fail(ErrorCode::kCorrupt, one_line(reader.error));
  return std::move(reader.header);
}

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

std::vector<std::string_view> pieces_of(const std::vector<TensorView>& tensors, const Layout& layout) {
  std::vector<std::string_view> pieces{layout.header};
  pieces.reserve(1 + layout.order.size());
  for (const std::size_t i : layout.order) pieces.push_back(tensors[i].bytes);
  return pieces;
}

Result<std::string> serialize(const std::vector<TensorView>& tensors, const Metadata& metadata) {
  MUSTER_TRY(const Layout layout, lay_out(tensors, metadata));
  std::string out;
  for (const std::string_view piece : pieces_of(tensors, layout)) out += piece;
  return out;
}

}  // namespace muster::safetensors
