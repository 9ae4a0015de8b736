// SPDX-License-Identifier: Apache-2.0
// StoreRecorder: who has to hear of every change of a StoreCore, in order, as what became of it (a counter's
// new value, not the sum that was asked for). Told the same again, an empty store becomes the same. One
// thread.
#pragma once

#include <string_view>

namespace muster {

class StoreRecorder {
 public:
  virtual ~StoreRecorder() = default;
  virtual void set(std::string_view key, std::string_view value) = 0;
  virtual void append(std::string_view key, std::string_view bytes) = 0;
  virtual void erase(std::string_view key) = 0;
  virtual void push(std::string_view queue, std::string_view element) = 0;
  virtual void pop(std::string_view queue) = 0;
};

}  // namespace muster
