// SPDX-License-Identifier: Apache-2.0
#include <openssl/evp.h>

#include <array>
#include <memory>

#include <muster/check.h>
#include <muster/nn.h>

namespace muster::nn {

std::string parameters_sha256(const Model& model) {
  struct Free {
    void operator()(EVP_MD_CTX* context) const { EVP_MD_CTX_free(context); }
  };
  const std::unique_ptr<EVP_MD_CTX, Free> context(EVP_MD_CTX_new());
  bool ok = context != nullptr && EVP_DigestInit_ex(context.get(), EVP_sha256(), nullptr) == 1;
  const std::vector<float> arena = model.read_params();
  for (const Parameter& parameter : model.parameters())
    ok = ok && EVP_DigestUpdate(context.get(), arena.data() + parameter.offset, parameter.count * sizeof(float)) == 1;
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned size = 0;
  ok = ok && EVP_DigestFinal_ex(context.get(), digest.data(), &size) == 1;
  MUSTER_CHECK(ok, "libcrypto cannot compute SHA-256");
  std::string text;
  for (unsigned i = 0; i < size; ++i) {
    constexpr std::string_view kHex = "0123456789abcdef";
    text.push_back(kHex[digest[i] >> 4U]);
    text.push_back(kHex[digest[i] & 15U]);
  }
  return text;
}

}  // namespace muster::nn
