// SPDX-License-Identifier: Apache-2.0
// Archive: values as bytes and back, for the messages between agents and coordinator and for the records of
// the state log. A struct is its members in their order (Boost.PFR finds them). Numbers have their own
// width (a double is IEEE 754's), times are milliseconds as i64, counts of bytes and elements u64, an
// enumerator is a u8 up to its type's kLast, a variant the number of its alternative from 1 as u8; all
// little-endian. Sans-IO. Failure of a reader is sticky: error() says what is wrong, and what is read
// afterwards is empty.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include <boost/pfr/core.hpp>

#include "rendezvous/base/clock.h"

namespace muster {

static_assert(std::endian::native == std::endian::little, "numbers go as they lie in memory");

template <class T, template <class...> class Of>
inline constexpr bool is_instance_of = false;
template <template <class...> class Of, class... Arguments>
inline constexpr bool is_instance_of<Of<Arguments...>, Of> = true;

class ArchiveWriter {
 public:
  explicit ArchiveWriter(std::string& out) : out_(out) {}

  template <class... T>
  void operator()(const T&... values) {
    (put(values), ...);
  }

 private:
  template <class T>
  void put(const T& value) {
    if constexpr (std::is_arithmetic_v<T>) {
      char bytes[sizeof value];
      std::memcpy(bytes, &value, sizeof value);
      out_.append(bytes, sizeof value);
    } else if constexpr (std::is_same_v<T, Millis>) {
      put(static_cast<std::int64_t>(value.count()));
    } else if constexpr (std::is_convertible_v<const T&, std::string_view>) {
      put(static_cast<std::uint64_t>(value.size()));
      out_ += value;
    } else if constexpr (is_instance_of<T, std::optional>) {
      put(value.has_value());
      if (value) put(*value);
    } else if constexpr (is_instance_of<T, std::variant>) {
      put(static_cast<std::uint8_t>(value.index() + 1));
      std::visit([this](const auto& each) { this->put(each); }, value);
    } else if constexpr (is_instance_of<T, std::pair>) {
      (*this)(value.first, value.second);
    } else if constexpr (is_instance_of<T, std::vector>) {
      put(static_cast<std::uint64_t>(value.size()));
      for (const auto& each : value) put(each);
    } else if constexpr (requires { std::tuple_size<T>::value; }) {
      for (const std::uint8_t byte : value) put(byte);
    } else if constexpr (std::is_enum_v<T>) {
      put(static_cast<std::uint8_t>(value));
    } else {
      boost::pfr::for_each_field(value, [this](const auto& each) { this->put(each); });
    }
  }

  std::string& out_;
};

class ArchiveReader {
 public:
  /// `max_list`: elements of one list.
  explicit ArchiveReader(std::string_view in, std::uint64_t max_list = ~std::uint64_t{0})
      : in_(in), max_list_(max_list) {}

  template <class... T>
  void operator()(T&... values) {
    (take(values), ...);
  }
  /// The first failure counts.
  void fail(std::string_view error) {
    if (error_.empty()) error_ = error;
    in_ = {};
  }
  /// Empty: none so far.
  [[nodiscard]] std::string_view error() const { return error_; }
  [[nodiscard]] std::size_t bytes_left() const { return in_.size(); }
  [[nodiscard]] bool at_end() const { return in_.empty(); }

 private:
  [[nodiscard]] std::string_view bytes(std::uint64_t size) {
    if (in_.size() < size) {
      fail("it ends within a field");
      return {};
    }
    const std::string_view out = in_.substr(0, size);
    in_.remove_prefix(size);
    return out;
  }
  template <class T>
  [[nodiscard]] T read() {
    T out{};
    take(out);
    return out;
  }
  template <class T>
  void take(T& value) {
    if constexpr (std::is_same_v<T, bool>) {
      const auto byte = read<std::uint8_t>();
      if (byte > 1) return fail("a yes or no that is neither");
      value = byte == 1;
    } else if constexpr (std::is_arithmetic_v<T>) {
      value = 0;
      if (const std::string_view from = bytes(sizeof value); !from.empty())
        std::memcpy(&value, from.data(), sizeof value);
    } else if constexpr (std::is_same_v<T, Millis>) {
      value = Millis(read<std::int64_t>());
    } else if constexpr (std::is_convertible_v<const T&, std::string_view>) {
      value = bytes(read<std::uint64_t>());  // of a string_view: into the reader's input
    } else if constexpr (is_instance_of<T, std::optional>) {
      value.reset();
      if (read<bool>()) take(value.emplace());
    } else if constexpr (is_instance_of<T, std::variant>) {
      const auto number = read<std::uint8_t>();
      [&]<std::size_t... I>(std::index_sequence<I...>) {
        // One of the same type keeps its buffers: all of its fields are read.
        const auto take_as = [&]<std::size_t N>() {
          if (value.index() != N) value.template emplace<N>();
          take(*std::get_if<N>(&value));
          return true;
        };
        if (!((I + 1 == number && take_as.template operator()<I>()) || ...)) fail("an unknown type");
      }
      (std::make_index_sequence<std::variant_size_v<T>>{});
    } else if constexpr (is_instance_of<T, std::pair>) {
      (*this)(value.first, value.second);
    } else if constexpr (is_instance_of<T, std::vector>) {
      const auto count = read<std::uint64_t>();
      if (count > max_list_) return fail("a list that is too long");
      value.clear();
      // Grown as the elements come: a count may be nonsense.
      for (std::uint64_t i = 0; i < count && error_.empty(); ++i) take(value.emplace_back());
    } else if constexpr (requires { std::tuple_size<T>::value; }) {
      for (std::uint8_t& byte : value) take(byte);
    } else if constexpr (std::is_enum_v<T>) {
      const auto number = read<std::uint8_t>();
      if (number > static_cast<std::uint8_t>(T::kLast)) return fail("a number that means nothing");
      value = static_cast<T>(number);
    } else {
      boost::pfr::for_each_field(value, [this](auto& each) { this->take(each); });
    }
  }

  std::string_view in_;
  std::uint64_t max_list_;
  std::string_view error_;
};

template <class T>
[[nodiscard]] std::string to_archive(const T& value) {
  std::string out;
  ArchiveWriter{out}(value);
  return out;
}
/// Nothing: the bytes are no such value, or more than one.
template <class T>
[[nodiscard]] std::optional<T> from_archive(std::string_view bytes) {
  std::optional<T> out(std::in_place);
  ArchiveReader reader(bytes);
  reader(*out);
  if (!reader.error().empty() || !reader.at_end()) out.reset();
  return out;
}

}  // namespace muster
