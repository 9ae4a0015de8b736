// SPDX-License-Identifier: Apache-2.0
// parse_manifest and step_of on arbitrary text: a value that is written as it was read, or an error of one
// line. The text is tried as it is, and as to_text() would lay it out, with the CRC-32C that is right for it.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "worker_runtime/checkpoint/step_directory.h"
#include "worker_runtime/core/crc32c.h"

namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

void parse(std::string_view text) {
  const auto read = muster::parse_manifest(text);
  if (!read) {
    require(!read.error().message.empty() && read.error().message.find('\n') == std::string::npos);
    return;
  }
  require(muster::to_text(*read) == text);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  parse(text);
  // dump() goes as deep as the text.
  auto json = std::count_if(text.begin(), text.end(), [](char c) { return c == '[' || c == '{'; }) < 100
                  ? nlohmann::json::parse(text, nullptr, false)
                  : nlohmann::json();
  if (json.is_object()) {
    json.erase("crc32c");
    json["crc32c"] = muster::crc32c(json.dump());
    parse(json.dump(2) + "\n");
  }
  const auto step = muster::step_of(text);
  require(!step || muster::step_name(*step) == text);
  return 0;
}
