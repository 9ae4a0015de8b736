// SPDX-License-Identifier: Apache-2.0
// parse_idx on arbitrary bytes: an array whose data has the size its dimensions say, or an error with a text.
#include <cstdint>
#include <cstdlib>

#include "worker_runtime/data/idx_reader.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto array =
      muster::parse_idx("input", {reinterpret_cast<const char*>(data), size}, std::size_t{1} << 20);
  if (!array) {
    if (array.error().message.empty()) std::abort();
    return 0;
  }
  std::size_t product = 1;
  for (const std::uint32_t dim : array->dims) product *= dim;
  if (product != array->data.size()) std::abort();
  return 0;
}
