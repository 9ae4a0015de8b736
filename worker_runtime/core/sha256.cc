// SPDX-License-Identifier: Apache-2.0
#include "worker_runtime/core/sha256.h"

#include <array>

#include <openssl/evp.h>

#include <muster/check.h>

namespace muster {

struct Sha256::Context {
  EVP_MD_CTX* evp = EVP_MD_CTX_new();
};

Sha256::Sha256() : context_(std::make_unique<Context>()) {
  // Fails only without memory or in a libcrypto that was configured without SHA-256.
  MUSTER_CHECK(context_->evp != nullptr && EVP_DigestInit_ex(context_->evp, EVP_sha256(), nullptr) == 1,
               "libcrypto offers no SHA-256");
}

Sha256::~Sha256() {
  EVP_MD_CTX_free(context_->evp);
}

void Sha256::update(std::string_view bytes) {
  MUSTER_CHECK(EVP_DigestUpdate(context_->evp, bytes.data(), bytes.size()) == 1, "SHA-256 update");
}

std::string Sha256::finish() {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned size = 0;
  MUSTER_CHECK(EVP_DigestFinal_ex(context_->evp, digest.data(), &size) == 1, "SHA-256 finish");
  constexpr std::string_view kHex = "0123456789abcdef";
  std::string text;
  for (unsigned i = 0; i < size; ++i) {
    text.push_back(kHex[digest[i] >> 4U]);
    text.push_back(kHex[digest[i] & 15U]);
  }
  return text;
}

}  // namespace muster
