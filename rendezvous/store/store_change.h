// SPDX-License-Identifier: Apache-2.0
// StoreChange: one change of a StoreCore, as what became of it (a counter's new value, not the sum that was
// asked for). Applied in order to an empty store, the changes make the same store (StoreCore::apply). A
// value; its views are the caller's.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>

namespace muster {

struct StoreChange {
  enum class Kind : std::uint8_t { kSet, kAppend, kErase, kPush, kPop, kLast = kPop };
  Kind kind = Kind::kSet;
  std::string_view key;         ///< or the queue's name
  std::string_view value = {};  ///< kSet, kAppend, kPush
};

/// Takes every change, in order.
using StoreSink = std::function<void(const StoreChange&)>;

}  // namespace muster
