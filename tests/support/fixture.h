// SPDX-License-Identifier: Apache-2.0
// Fixture: a safetensors file of tests/data, written by tests/data/make_fixtures.py from PyTorch.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "rendezvous/base/syscall.h"
#include "tests/support/catch.h"
#include "worker_runtime/checkpoint/safetensors.h"

namespace muster::test {

class Fixture {
 public:
  explicit Fixture(const std::string& name) {
    auto bytes = read_file(std::string(MUSTER_TEST_DATA) + "/" + name);
    REQUIRE_OK(bytes);
    bytes_ = *std::move(bytes);
    auto view = safetensors::parse(bytes_);
    REQUIRE_OK(view);
    view_ = *std::move(view);
  }
  Fixture(const Fixture&) = delete;
  Fixture& operator=(const Fixture&) = delete;

  [[nodiscard]] const safetensors::FileView& view() const { return view_; }
  [[nodiscard]] bool has(const std::string& name) const { return view_.find(name) != nullptr; }

  template <class T>
  [[nodiscard]] std::vector<T> get(const std::string& name) const {
    const safetensors::TensorView* tensor = view_.find(name);
    INFO("tensor " << name);
    REQUIRE(tensor != nullptr);
    REQUIRE(size_of(tensor->dtype) == sizeof(T));
    std::vector<T> values(tensor->bytes.size() / sizeof(T));
    std::memcpy(values.data(), tensor->bytes.data(), tensor->bytes.size());
    return values;
  }

 private:
  std::string bytes_;
  safetensors::FileView view_;
};

/// CRC-32 of the values' bytes.
std::uint32_t crc32_of(std::span<const std::byte> bytes);

template <class T>
std::uint32_t crc32_of(const std::vector<T>& values) {
  return crc32_of(std::as_bytes(std::span(values)));
}

}  // namespace muster::test
