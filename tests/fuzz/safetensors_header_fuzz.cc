// SPDX-License-Identifier: Apache-2.0
// parse_header on arbitrary text: entries with names, or an error with a text.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "worker_runtime/checkpoint/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto header = muster::safetensors::parse_header(text);
  if (!header && header.error().message.empty()) std::abort();
  return 0;
}
