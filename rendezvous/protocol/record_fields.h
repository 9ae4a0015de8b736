// SPDX-License-Identifier: Apache-2.0
// Fields of the state log's records as bytes: integers as i64, strings and lists as a u64 count and that many
// bytes or elements, all little-endian. A struct's fields are listed once, in a function fields(io, value),
// for both directions. Sans-IO. Failure of a reader is sticky: ok() is false, and what is read afterwards is
// empty.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "rendezvous/base/clock.h"
#include "rendezvous/store/wire.h"

namespace muster {

template <class T>
concept Number = std::is_integral_v<T> || std::is_enum_v<T>;

class FieldWriter {
 public:
  explicit FieldWriter(std::string& out) : out_(out) {}

  template <class... T>
  void operator()(const T&... values) {
    (put(values), ...);
  }

 private:
  template <Number T>
  void put(T value) {
    wire::put_i64(out_, static_cast<std::int64_t>(value));
  }
  void put(Millis value) { wire::put_i64(out_, value.count()); }
  void put(const std::string& value) { wire::put_bytes(out_, value); }
  template <class T>
  void put(const std::optional<T>& value) {
    put(value.has_value());
    if (value) put(*value);
  }
  void put(const std::vector<std::string>& values) {
    put(values.size());
    for (const std::string& value : values) put(value);
  }
  template <class T>
  void put(const std::vector<T>& values) {
    put(values.size());
    // fields() serves reading too and so takes its argument without const; a writer changes nothing.
    for (const T& value : values) fields(*this, const_cast<T&>(value));
  }

  std::string& out_;
};

class FieldReader {
 public:
  explicit FieldReader(std::string_view in) : in_(in) {}

  template <class... T>
  void operator()(T&... values) {
    (take(values), ...);
  }
  [[nodiscard]] std::uint8_t byte() {
    const std::string_view at = bytes(1);
    return at.empty() ? std::uint8_t{0} : static_cast<std::uint8_t>(at[0]);
  }
  [[nodiscard]] std::int64_t number() {
    const std::string_view at = bytes(8);
    return at.empty() ? 0 : static_cast<std::int64_t>(wire::load_u64(at.data()));
  }
  /// Into the reader's input.
  [[nodiscard]] std::string_view text() {
    const std::int64_t size = number();
    if (size < 0) return fail();
    return bytes(static_cast<std::size_t>(size));
  }

  [[nodiscard]] bool ok() const { return ok_; }
  [[nodiscard]] bool at_end() const { return in_.empty(); }

 private:
  std::string_view fail() {
    ok_ = false;
    in_ = {};
    return {};
  }
  [[nodiscard]] std::string_view bytes(std::size_t size) {
    if (in_.size() < size) return fail();
    const std::string_view out = in_.substr(0, size);
    in_.remove_prefix(size);
    return out;
  }
  template <Number T>
  void take(T& value) {
    const std::int64_t read = number();
    value = static_cast<T>(read);
    if (static_cast<std::int64_t>(value) != read) (void)fail();
  }
  void take(Millis& value) { value = Millis(number()); }
  void take(std::string& value) { value = text(); }
  template <class T>
  void take(std::optional<T>& value) {
    bool there = false;
    take(there);
    value.reset();
    if (there) take(value.emplace());
  }
  void take(std::vector<std::string>& values) {
    const std::int64_t count = number();
    values.clear();
    for (std::int64_t i = 0; i < count && ok_; ++i) take(values.emplace_back());
    if (count < 0) (void)fail();
  }
  template <class T>
  void take(std::vector<T>& values) {
    const std::int64_t count = number();
    values.clear();
    // Grown as the elements come: a count may be nonsense.
    for (std::int64_t i = 0; i < count && ok_; ++i) fields(*this, values.emplace_back());
    if (count < 0) (void)fail();
  }

  std::string_view in_;
  bool ok_ = true;
};

}  // namespace muster
