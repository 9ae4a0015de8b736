// SPDX-License-Identifier: Apache-2.0
// Sha256: a digest over pieces, as 64 hex digits (OpenSSL's libcrypto). One use per object; not thread-safe.
#pragma once

#include <memory>
#include <string>
#include <string_view>

namespace muster {

class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(const Sha256&) = delete;
  Sha256& operator=(const Sha256&) = delete;

  void update(std::string_view bytes);
  [[nodiscard]] std::string finish();

 private:
  struct Context;
  std::unique_ptr<Context> context_;
};

}  // namespace muster
