// SPDX-License-Identifier: Apache-2.0
#include "tests/support/fixture.h"

#include <libdeflate.h>

namespace muster::test {

std::uint32_t crc32_of(std::span<const std::byte> bytes) {
  return ::libdeflate_crc32(0, bytes.data(), bytes.size());
}

}  // namespace muster::test
