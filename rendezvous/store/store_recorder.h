// SPDX-License-Identifier: Apache-2.0
// StoreRecorder: who has to hear of every change of a StoreCore, in order, as what became of it (a counter's
// new value, not the sum that was asked for). Told the same again, an empty store becomes the same. One
// thread.
#pragma once

#include <cstdint>
#include <string_view>

namespace muster {

/// One change, as it is told. The views are the teller's.
struct StoreChange {
  /// Numbers of the state log.
  enum class Kind : std::uint8_t { kSet = 1, kAppend = 2, kErase = 3, kPush = 4, kPop = 5 };
  Kind kind = Kind::kSet;
  std::string_view key;    ///< or the queue's name
  std::string_view value;  ///< kSet, kAppend, kPush
};

class StoreRecorder {
 public:
  virtual ~StoreRecorder() = default;
  virtual void set(std::string_view key, std::string_view value) = 0;
  virtual void append(std::string_view key, std::string_view bytes) = 0;
  virtual void erase(std::string_view key) = 0;
  virtual void push(std::string_view queue, std::string_view element) = 0;
  virtual void pop(std::string_view queue) = 0;

  void apply(const StoreChange& change) {
    switch (change.kind) {
      case StoreChange::Kind::kSet:
        return set(change.key, change.value);
      case StoreChange::Kind::kAppend:
        return append(change.key, change.value);
      case StoreChange::Kind::kErase:
        return erase(change.key);
      case StoreChange::Kind::kPush:
        return push(change.key, change.value);
      case StoreChange::Kind::kPop:
        return pop(change.key);
    }
  }
};

}  // namespace muster
