// SPDX-License-Identifier: Apache-2.0
#include "tests/support/fixture.h"

#include <zlib.h>

namespace muster::test {

std::uint32_t crc32_of(std::span<const std::byte> bytes) {
  return static_cast<std::uint32_t>(
      ::crc32_z(0, reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size()));
}

}  // namespace muster::test
