// SPDX-License-Identifier: Apache-2.0
#include "worker_runtime/core/sha256.h"

#include <array>
#include <memory>

#include <fmt/format.h>
#include <openssl/evp.h>

#include <muster/check.h>

namespace muster {

std::string sha256(std::span<const std::string_view> pieces) {
  const std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> evp(EVP_MD_CTX_new(), EVP_MD_CTX_free);
  // Fails only without memory or in a libcrypto that was configured without SHA-256.
  bool good = evp != nullptr && EVP_DigestInit_ex(evp.get(), EVP_sha256(), nullptr) == 1;
  for (const std::string_view piece : pieces)
    good = good && EVP_DigestUpdate(evp.get(), piece.data(), piece.size()) == 1;
  std::array<unsigned char, 32> digest{};
  good = good && EVP_DigestFinal_ex(evp.get(), digest.data(), nullptr) == 1;
  MUSTER_CHECK(good, "libcrypto computes no SHA-256");
  return fmt::format("{:02x}", fmt::join(digest, ""));
}

}  // namespace muster
