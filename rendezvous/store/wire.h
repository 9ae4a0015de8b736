// SPDX-License-Identifier: Apache-2.0
// The vocabulary of the TCPStore wire protocol and its encoding; decoding is wire_decoder.h. No I/O, no
// clocks. A request is one opcode byte and its arguments, little-endian, with no framing; a reply has no
// header, its shape follows from the request. Strings and values are a u64 length and that many bytes.
// Source: torch/csrc/distributed/c10d/TCPStoreBackend.hpp (opcodes), TCPStore.cpp (argument layouts).
// What real clients sent: tests/data/wire, with where that differs from the expected.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace muster::wire {

/// Numbers of PyTorch >= 2.2 on the wire. WATCH_KEY, 7 up to PyTorch 2.0, is not served: its clients open a
/// second connection for it that stays silent unless a program asks for callbacks.
enum class Op : std::uint8_t {
  kValidate = 0,
  kSet = 1,
  kCompareSet = 2,
  kGet = 3,
  kAdd = 4,
  kCheck = 5,
  kWait = 6,
  kGetNumKeys = 7,
  kDeleteKey = 8,
  kAppend = 9,
  kMultiGet = 10,
  kMultiSet = 11,
  kCancelWait = 12,
  kPing = 13,
  kQueuePush = 14,
  kQueuePop = 15,
  kQueueLen = 16,
  kListKeys = 17,
  kBarrier = 18,
};
inline constexpr std::size_t kNumOps = 19;

/// Which PyTorch speaks on a connection. The opcodes differ, the argument layouts do not.
enum class Generation : std::uint8_t {
  kUndetected,  ///< no byte, or not enough of them, seen yet
  kLegacy,      ///< no VALIDATE: up to 2.1; what was seen so far is common to 2.0 and 2.1
  kTorch20,     ///< up to 2.0: 7 is WATCH_KEY, 8 is DELETE_KEY
  kTorch21,     ///< 2.1: 7 is DELETE_KEY, 8 to 11 are APPEND, MULTI_GET, MULTI_SET, CANCEL_WAIT
  kModern,      ///< 2.2 and later, announced by VALIDATE
  kRelayed,     ///< an agent speaks for its workers: every Op but VALIDATE, as numbered above
};

inline constexpr std::uint32_t kMagic = 0x3C85F7CE;

// One-byte replies.
inline constexpr char kReady = 0;         // CHECK: all keys exist
inline constexpr char kNotReady = 1;      // CHECK
inline constexpr char kStopWaiting = 0;   // WAIT, BARRIER: done
inline constexpr char kWaitCanceled = 1;  // CANCEL_WAIT

/// The caps of PyTorch's libuv daemon, inclusive, checked against the announced length before any byte is
/// stored.
struct Limits {
  std::size_t max_key_bytes = 8192;  ///< as sent, prefixes included
  std::size_t max_value_bytes = std::size_t{8} << 20;
  std::size_t max_keys = 131072;  ///< in one CHECK, WAIT, MULTI_GET or MULTI_SET
  std::size_t max_request_bytes = std::size_t{1}
                                  << 30;  ///< one whole request (ours: bounds a large MULTI_SET)
};

/// One request. The views point into memory of whoever made it.
struct Request {
  Op op = Op::kPing;
  std::string_view key = {};
  std::string_view value = {};    ///< SET, APPEND, QUEUE_PUSH; COMPARE_SET: the expected value
  std::string_view desired = {};  ///< COMPARE_SET
  std::int64_t number = 0;        ///< ADD: delta; BARRIER: world size; PING: nonce; VALIDATE: magic
  /// CHECK, WAIT, MULTI_GET: keys. MULTI_SET: key, value, key, value, ...
  std::span<const std::string_view> items = {};
};

enum class OpKind : std::uint8_t {
  kSilentChange,  ///< it has no answer
  kChange,
  kRead,   ///< with a short answer, or that of one value
  kOther,  ///< a WAIT and its end, VALIDATE, or a read whose answer has no limit but the store's
};
/// Name and argument layout: k key, v value, i i64, u u32, K count then keys, P count then (key, value)
/// pairs.
struct OpInfo {
  std::string_view name;
  std::string_view layout;
  OpKind kind;
};
[[nodiscard]] const OpInfo& op_info(Op op);

/// The opcode byte of `op` in a generation; -1 where it has none.
[[nodiscard]] int opcode_byte(Op op, Generation generation);

/// Appends the bytes of a request.
void encode(const Request& request, std::string& out, Generation generation = Generation::kModern);

void put_u32(std::string& out, std::uint32_t value);
void put_i64(std::string& out, std::int64_t value);
/// Length and bytes: a key or a value.
void put_bytes(std::string& out, std::string_view bytes);

[[nodiscard]] std::uint32_t load_u32(const char* at);
[[nodiscard]] std::uint64_t load_u64(const char* at);

}  // namespace muster::wire
