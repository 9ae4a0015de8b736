// SPDX-License-Identifier: Apache-2.0
// parse_idx on arbitrary bytes: an array whose data has the size its dimensions say, or an error with a text.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <span>

#include "worker_runtime/data/idx_reader.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::span<const std::uint8_t> rest(data, size);
  const auto source = [&rest](std::span<std::uint8_t> into) -> muster::Result<std::size_t> {
    const std::size_t count = std::min(into.size(), rest.size());
    std::copy_n(rest.begin(), count, into.begin());
    rest = rest.subspan(count);
    return count;
  };
  const auto array = muster::parse_idx("input", source, std::size_t{1} << 20);
  if (!array) {
    if (array.error().message.empty()) std::abort();
    return 0;
  }
  std::size_t product = 1;
  for (const std::uint32_t dim : array->dims) product *= dim;
  if (product != array->data.size()) std::abort();
  return 0;
}
