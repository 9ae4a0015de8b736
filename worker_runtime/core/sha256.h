// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace muster {

/// The SHA-256 of the pieces one after another, as 64 hex digits (OpenSSL's libcrypto).
[[nodiscard]] std::string sha256(std::span<const std::string_view> pieces);

}  // namespace muster
