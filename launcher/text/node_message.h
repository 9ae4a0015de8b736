// SPDX-License-Identifier: Apache-2.0
// What the agents of a job send each other as the payload of a Report or a Hang: values as bytes
// (rendezvous/base/archive.h) behind a version. Nothing from another node is trusted to be small or
// printable: texts and lists are cut and control bytes become spaces, on both sides. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include <boost/pfr/core.hpp>
#include <fmt/format.h>

#include <muster/result.h>

#include "launcher/text/line_splitter.h"
#include "rendezvous/base/archive.h"
#include "rendezvous/base/fail.h"
#include "rendezvous/base/split.h"
#include "rendezvous/base/text.h"

namespace muster::launcher {

/// Agents and coordinator take no message over 1 MiB.
inline constexpr std::size_t kMaxNodeMessageBytes = std::size_t{512} << 10;

/// Cleans each text of a value, and cuts its lists.
class TextCleaner {
 public:
  static constexpr std::size_t kMaxTextBytes = 16384;
  static constexpr std::size_t kMaxList = 4096;

  template <class T>
  void operator()(T& value) const {
    if constexpr (std::is_same_v<T, TextLines>) {
      std::vector<std::string> out;
      for (const std::string_view line : split(std::string_view(value).substr(0, kMaxTextBytes), '\n'))
        out.push_back(muster::one_line(line, kMaxTextBytes));
      value = fmt::format("{}", fmt::join(out, "\n"));
    } else if constexpr (std::is_same_v<T, std::string>) {
      value = muster::one_line(value, kMaxTextBytes);
    } else if constexpr (is_instance_of<T, std::vector>) {
      if (value.size() > kMaxList) value.resize(kMaxList);
      for (auto& each : value) (*this)(each);
    } else if constexpr (is_instance_of<T, std::optional>) {
      if (value) (*this)(*value);
    } else if constexpr (std::is_aggregate_v<T>) {
      boost::pfr::for_each_field(value, *this);
    } else {
      static_assert(std::is_arithmetic_v<T> || std::is_enum_v<T> || std::is_same_v<T, Millis>);
    }
  }
};

inline constexpr char kNodeMessageVersion = 6;

template <class Value>
[[nodiscard]] std::string to_node_message(Value value) {
  std::string out(1, kNodeMessageVersion);
  TextCleaner()(value);
  ArchiveWriter{out}(value);
  return out;
}

/// `what`: "a node's part of the report", for the error (kProtocol).
template <class Value>
[[nodiscard]] Result<Value> from_node_message(std::string_view bytes, std::string_view what) {
  ArchiveReader reader(bytes.substr(0, kMaxNodeMessageBytes + 1), TextCleaner::kMaxList);
  std::uint8_t version = 0;
  Value out;
  reader(version);
  if (version != kNodeMessageVersion) reader.fail("it is of another version");
  reader(out);
  if (!reader.at_end()) reader.fail("it is too long");
  if (!reader.error().empty())
    return fail(ErrorCode::kProtocol, "{} cannot be read: {}", what, reader.error());
  TextCleaner()(out);
  return out;
}

}  // namespace muster::launcher
