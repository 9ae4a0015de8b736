// SPDX-License-Identifier: Apache-2.0
// Store: the key-value interface through which ranks find each other, with the semantics of PyTorch's c10d
// stores. Keys and values are byte strings. All calls block the calling thread; those that can wait do so for
// at most the given timeout, else timeout(). Implementations are thread-safe unless they say otherwise. A
// store whose connection or file failed keeps its first error and returns it from every later call. Source:
// torch/csrc/distributed/c10d/{Store,TCPStore,FileStore,PrefixStore}.cpp (behaviour).
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <muster/result.h>

namespace muster {

class Store {
 public:
  using Timeout = std::chrono::milliseconds;
  static constexpr Timeout kDefaultTimeout = std::chrono::minutes(5);

  virtual ~Store() = default;
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;

  /// Creates or replaces the key and wakes those who wait for it.
  [[nodiscard]] virtual Result<void> set(std::string_view key, std::string_view value) = 0;

  /// Stores `desired` if the current value equals `expected`, or if the key is absent and `expected` is
  /// empty. Returns the value afterwards; for an absent key with a non-empty `expected` that is `expected`
  /// itself.
  [[nodiscard]] virtual Result<std::string> compare_set(std::string_view key, std::string_view expected,
                                                        std::string_view desired) = 0;

  /// Waits for the key, then returns its value. kTimeout if it does not appear.
  [[nodiscard]] virtual Result<std::string> get(std::string_view key, std::optional<Timeout> timeout = {}) {
    const std::string keys[] = {std::string(key)};
    return multi_get(keys, timeout).map([](auto&& values) { return std::move(values.front()); });
  }

  /// Adds to a decimal counter (absent counts as 0) and returns the new value. Kept as decimal text.
  [[nodiscard]] virtual Result<std::int64_t> add(std::string_view key, std::int64_t delta) = 0;

  /// True if every key exists now. Never waits.
  [[nodiscard]] virtual Result<bool> check(std::span<const std::string> keys) = 0;

  /// Waits until every key exists.
  [[nodiscard]] virtual Result<void> wait(std::span<const std::string> keys,
                                          std::optional<Timeout> timeout = {}) {
    return multi_get(keys, timeout).map([](const auto&) {});
  }

  [[nodiscard]] virtual Result<std::int64_t> num_keys() = 0;

  /// True if the key existed.
  [[nodiscard]] virtual Result<bool> delete_key(std::string_view key) = 0;

  /// Appends to the value; creates the key if it is absent.
  [[nodiscard]] virtual Result<void> append(std::string_view key, std::string_view value) = 0;

  /// Waits for all keys, then returns their values in the same order.
  [[nodiscard]] virtual Result<std::vector<std::string>> multi_get(std::span<const std::string> keys,
                                                                   std::optional<Timeout> timeout = {}) = 0;

  [[nodiscard]] virtual Result<void> multi_set(
      std::span<const std::pair<std::string, std::string>> pairs) = 0;

  /// The same keys seen in a way that waits there hold nobody up here: over a connection of its own, say.
  /// nullptr: waits on this one hold nobody up.
  [[nodiscard]] virtual Result<std::shared_ptr<Store>> apart() { return nullptr; }

  [[nodiscard]] Timeout timeout() const { return timeout_; }
  virtual void set_timeout(Timeout timeout) { timeout_ = timeout; }

 protected:
  Store() = default;

 private:
  Timeout timeout_ = kDefaultTimeout;
};

}  // namespace muster
