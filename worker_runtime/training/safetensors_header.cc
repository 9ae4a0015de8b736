// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <limits>
#include <optional>
#include <set>

#include <nlohmann/json.hpp>

#include "worker_runtime/training/safetensors.h"

namespace muster::safetensors {
namespace {

std::optional<DType> dtype_of(std::string_view text) {
  for (const DType dtype : {DType::kFloat32, DType::kFloat64, DType::kFloat16, DType::kBFloat16,
                            DType::kInt32, DType::kInt64, DType::kUInt8})
    if (to_string(dtype) == text) return dtype;
  return std::nullopt;
}

/// Follows the parser's events through the grammar. Where a token is expected is the state; every handler
/// that does not fit the state refuses. Strings of a header are quoted in errors only up to a length.
class HeaderReader final : public nlohmann::json_sax<nlohmann::json> {
 public:
  Header header;
  std::string error;

  bool start_object(std::size_t /*size*/) override {
    switch (state_) {
      case State::kStart:
        state_ = State::kName;
        return true;
      case State::kEntry:
        state_ = State::kField;
        return true;
      case State::kMetadata:
        state_ = State::kMetadataName;
        return true;
      default:
        return refuse("an object where none belongs");
    }
  }
  bool end_object() override {
    if (state_ == State::kName) {
      state_ = State::kEnd;
      return true;
    }
    if (state_ == State::kField) {
      if (!has_dtype_ || !has_shape_ || !has_offsets_) return refuse("it lacks dtype, shape or data_offsets");
      header.entries.push_back(std::move(entry_));
    }
    state_ = State::kName;
    return true;
  }
  bool key(std::string& text) override {
    switch (state_) {
      case State::kName:
        if (!names_.insert(text).second) return refuse("the name '" + text.substr(0, 80) + "' appears twice");
        entry_ = HeaderEntry{};
        entry_.name = text;
        has_dtype_ = has_shape_ = has_offsets_ = false;
        state_ = text == kMetadataKey ? State::kMetadata : State::kEntry;
        return true;
      case State::kField:
        if (text == "dtype" && !has_dtype_) {
          state_ = State::kDType;
          has_dtype_ = true;
        } else if (text == "shape" && !has_shape_) {
          state_ = State::kShape;
          has_shape_ = true;
        } else if (text == "data_offsets" && !has_offsets_) {
          state_ = State::kOffsets;
          has_offsets_ = true;
        } else {
          return refuse("unknown or repeated key '" + text.substr(0, 80) + "'");
        }
        return true;
      case State::kMetadataName:
        metadata_key_ = text;
        state_ = State::kMetadataValue;
        return true;
      default:
        return refuse("a key where none belongs");
    }
  }
  bool string(std::string& text) override {
    if (state_ == State::kMetadataValue) {
      if (!header.metadata.emplace(metadata_key_, text).second)
        return refuse("the metadata '" + metadata_key_.substr(0, 80) + "' appears twice");
      state_ = State::kMetadataName;
      return true;
    }
    if (state_ != State::kDType) return refuse("a string where none belongs");
    const std::optional<DType> dtype = dtype_of(text);
    if (!dtype) return refuse("unknown dtype '" + text.substr(0, 80) + "'");
    entry_.dtype = *dtype;
    state_ = State::kField;
    return true;
  }
  bool start_array(std::size_t /*size*/) override {
    if (state_ == State::kShape) {
      state_ = State::kDim;
    } else if (state_ == State::kOffsets) {
      state_ = State::kOffset;
      num_offsets_ = 0;
    } else {
      return refuse("an array where none belongs");
    }
    return true;
  }
  bool end_array() override {
    if (state_ == State::kOffset) {
      if (num_offsets_ != 2) return refuse("data_offsets must be two numbers");
      entry_.begin = offsets_[0];
      entry_.end = offsets_[1];
    }
    state_ = State::kField;
    return true;
  }
  bool number_unsigned(std::uint64_t value) override {
    if (state_ == State::kDim) {
      if (entry_.shape.size() == kMaxDims || value > std::uint64_t{std::numeric_limits<std::int64_t>::max()})
        return refuse("its shape is too large");
      entry_.shape.push_back(static_cast<std::int64_t>(value));
      return true;
    }
    if (state_ == State::kOffset && num_offsets_ < 2) {
      offsets_.at(num_offsets_++) = value;
      return true;
    }
    return refuse("a number where none belongs");
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
  enum class State {
    kStart,
    kName,
    kEntry,
    kField,
    kDType,
    kShape,
    kDim,
    kOffsets,
    kOffset,
    kMetadata,
    kMetadataName,
    kMetadataValue,
    kEnd
  };

  bool refuse(const std::string& what) {
    error = (entry_.name.empty() ? "in its header: "
                                 : "in its header, at '" + entry_.name.substr(0, 80) + "': ") +
            what;
    return false;
  }

  State state_ = State::kStart;
  HeaderEntry entry_;
  bool has_dtype_ = false;
  bool has_shape_ = false;
  bool has_offsets_ = false;
  std::array<std::uint64_t, 2> offsets_{};
  std::size_t num_offsets_ = 0;
  std::string metadata_key_;
  std::set<std::string> names_;
};

/// Text from a file goes into an error that is one line.
std::string printable(std::string text) {
  for (char& c : text)
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  return text;
}

}  // namespace

Result<Header> parse_header(std::string_view json) {
  // The format wants the object first; space may follow it.
  if (json.empty() || json.front() != '{')
    return fail(ErrorCode::kCorrupt, "its header does not start with '{'");
  HeaderReader reader;
  if (!nlohmann::json::sax_parse(json.begin(), json.end(), &reader))
    return fail(ErrorCode::kCorrupt, printable(std::move(reader.error)));
  return std::move(reader.header);
}

}  // namespace muster::safetensors
