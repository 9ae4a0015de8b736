// SPDX-License-Identifier: Apache-2.0
// What the agents of a job send each other as the payload of a Report or a Hang: values as bytes
// (rendezvous/base/archive.h) behind a version. Nothing from another node is trusted to be small or
// printable: texts are cut and control bytes become spaces, on both sides. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <muster/result.h>

#include "launcher/text/split.h"
#include "rendezvous/base/archive.h"
#include "rendezvous/base/text.h"

namespace muster::launcher {

/// Agents and coordinator take no message over 1 MiB.
inline constexpr std::size_t kMaxNodeMessageBytes = std::size_t{512} << 10;

/// Cleans each text of a value that lists its fields.
class TextCleaner {
 public:
  static constexpr std::size_t kMaxTextBytes = 16384;

  template <class... T>
  void operator()(T&... values) {
    (clean(values), ...);
  }
  template <class E>
  void one_of(E&, E) {}

 private:
  template <class T>
  void clean(T& value) {
    if constexpr (std::is_same_v<T, std::string>) {
      std::string out;
      for (const std::string_view line : split(std::string_view(value).substr(0, kMaxTextBytes), '\n')) {
        out += muster::one_line(line, kMaxTextBytes);
        out += '\n';
      }
      out.pop_back();
      value = std::move(out);
    } else if constexpr (is_instance_of<T, std::vector>) {
      for (auto& each : value) clean(each);
    } else if constexpr (requires { value.fields(*this); }) {
      value.fields(*this);
    }
  }
};

template <class Value>
[[nodiscard]] std::string to_node_message(Value value) {
  std::string out(1, '\1');
  TextCleaner()(value);
  ArchiveWriter{out}(value);
  return out;
}

/// `what`: "a node's part of the report", for the error (kProtocol).
template <class Value>
[[nodiscard]] Result<Value> from_node_message(std::string_view bytes, std::string_view what) {
  constexpr std::uint64_t kMaxList = 4096;
  ArchiveReader reader(bytes.substr(0, kMaxNodeMessageBytes + 1), kMaxList);
  std::uint8_t version = 0;
  Value out;
  reader(version);
  if (version != 1) reader.fail("it is of another version");
  reader(out);
  if (!reader.at_end()) reader.fail("it is too long");
  if (!reader.error().empty())
    return fail(ErrorCode::kProtocol, fmt::format("{} cannot be read: {}", what, reader.error()));
  TextCleaner()(out);
  return out;
}

}  // namespace muster::launcher
