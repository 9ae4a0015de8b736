// SPDX-License-Identifier: Apache-2.0
// CRC-32C (Castagnoli), by the processor's instruction on x86-64 with SSE 4.2 (Boost.CRC takes thirty times
// as long), elsewhere by a table. Source: RFC 3720, appendix B.4.
#pragma once

#include <cstdint>
#include <string_view>

namespace muster {

/// Of `bytes`, or of those before and `bytes` when `before` is their sum.
[[nodiscard]] std::uint32_t crc32c(std::string_view bytes, std::uint32_t before = 0);

}  // namespace muster
