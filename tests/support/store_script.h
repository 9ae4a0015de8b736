// SPDX-License-Identifier: Apache-2.0
// StoreScript: what one client asks of a store, at random, over names of its own, so that what any prefix of
// it leaves behind and answers is known to the byte. The model is two standard maps and shares nothing with
// the store that is tested. For tests of what outlives a daemon. Pure; one thread.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "rendezvous/store/wire.h"

namespace muster::test {

/// What there is under some names.
struct StoreContents {
  std::map<std::string, std::string> keys;
  std::map<std::string, std::deque<std::string>> queues;  // none is empty

  friend bool operator==(const StoreContents&, const StoreContents&) = default;
};

/// A wire::Request that owns its words: key, value, desired; or the items.
struct ScriptedRequest {
  wire::Op op = wire::Op::kPing;
  std::vector<std::string> words;
  std::int64_t number = 0;
};

void encode(const ScriptedRequest& request, std::string& out);

/// Does it to `contents`; the answer, which is empty where the protocol has none.
[[nodiscard]] std::string apply(const ScriptedRequest& request, StoreContents& contents);

class StoreScript {
 public:
  /// Every name begins with `prefix`.
  explicit StoreScript(std::string prefix) : prefix_(std::move(prefix)) {}

  /// So many requests, of every operation that changes a store, and some that read. Values of up to
  /// `longest` bytes.
  [[nodiscard]] std::vector<ScriptedRequest> write(int count, std::mt19937& random, std::size_t longest);

  [[nodiscard]] const std::string& prefix() const { return prefix_; }
  [[nodiscard]] std::vector<std::string> queues() const { return {prefix_ + "q0", prefix_ + "q1"}; }
  /// Grows with every few requests and is never deleted: whoever reads it has seen what came before.
  [[nodiscard]] std::string progress() const { return prefix_ + "progress"; }

 private:
  std::string prefix_;
};

/// The names that an operation of this list changes; for counting that each was there.
inline constexpr wire::Op kChanging[] = {wire::Op::kSet,       wire::Op::kCompareSet, wire::Op::kAdd,
                                         wire::Op::kDeleteKey, wire::Op::kAppend,     wire::Op::kMultiSet,
                                         wire::Op::kQueuePush, wire::Op::kQueuePop,   wire::Op::kBarrier};

}  // namespace muster::test
