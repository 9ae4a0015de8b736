// SPDX-License-Identifier: Apache-2.0
// The protocols the store bench speaks, as a plug: what an operation's bytes are and where a reply ends.
// TCPStore as PyTorch <= 2.0 speaks it, as 2.2 and later do, and RESP (Redis). Values; no I/O. An operation
// is one or more exchanges, each a round trip. Source: rendezvous/store/wire.h; the Redis serialization
// protocol, v2.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace muster::bench {

struct Exchange {
  enum class Reply { kBytes, kOneValue };
  std::string request;
  Reply reply = Reply::kBytes;  ///< kOneValue: one RESP value, whatever its length
  std::size_t reply_bytes = 0;  ///< kBytes
  std::size_t num_values = 1;   ///< kOneValue: so many of them, where requests are batched
};

/// What the bench's keys and values look like.
struct Shape {
  std::string run = "0";  ///< fan-out waits for keys that no earlier run has set
  std::size_t value_bytes = 64;
  std::size_t keys_per_multi_get = 16;
};

class Protocol {
 public:
  virtual ~Protocol() = default;

  /// What a client says first.
  [[nodiscard]] virtual std::vector<Exchange> greeting() const = 0;
  /// set, get, wait_get, add, multi_get on key `number`; empty where the protocol has no such thing.
  /// TCPStore's SET has no reply: a GETNUMKEYS behind it, in the same segment, tells that it was done.
  [[nodiscard]] virtual std::vector<Exchange> operation(std::string_view name, std::size_t number) const = 0;

  /// Fan-out: what every waiter says before a round (its reply comes at once), what wakes them all, and
  /// how many bytes each then gets.
  struct FanOut {
    std::vector<Exchange> arm;
    Exchange fire;
    std::size_t wake_bytes = 0;
  };
  [[nodiscard]] virtual FanOut fan_out(std::size_t round, std::size_t num_waiters) const = 0;
};

/// "legacy", "modern" or "resp"; nullptr: none of them.
[[nodiscard]] std::unique_ptr<Protocol> make_protocol(std::string_view name, const Shape& shape);

/// Requests of one exchange each as a single one, sent together.
[[nodiscard]] Exchange batch(const std::vector<Exchange>& requests);

/// How many bytes from the front of `received` are the reply; 0 while it is incomplete, npos if it is not
/// what it has to be.
[[nodiscard]] std::size_t reply_size(const Exchange& exchange, std::string_view received);

}  // namespace muster::bench
