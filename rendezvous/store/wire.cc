// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/store/wire.h"

#include <array>
#include <bit>
#include <cstring>

#include <fmt/format.h>

#include <muster/check.h>

namespace muster::wire {
namespace {

static_assert(std::endian::native == std::endian::little,
              "the protocol is little-endian; a big-endian host needs byte swaps in put_* and load_*");

// Indexed by Op.
constexpr std::array<OpInfo, kNumOps> kOps = {{
    {"VALIDATE", "u"},  {"SET", "kv"},      {"COMPARE_SET", "kvv"}, {"GET", "k"},        {"ADD", "ki"},
    {"CHECK", "K"},     {"WAIT", "K"},      {"GETNUMKEYS", ""},     {"DELETE_KEY", "k"}, {"APPEND", "kv"},
    {"MULTI_GET", "K"}, {"MULTI_SET", "P"}, {"CANCEL_WAIT", ""},    {"PING", "u"},       {"QUEUE_PUSH", "kv"},
    {"QUEUE_POP", "k"}, {"QUEUE_LEN", "k"}, {"LIST_KEYS", ""},      {"BARRIER", "ki"},
}};

}  // namespace

const OpInfo& op_info(Op op) {
  return kOps[static_cast<std::size_t>(op)];
}

std::string_view to_string(Generation generation) {
  switch (generation) {
    case Generation::kUndetected:
      return "undetected";
    case Generation::kLegacy:
      return "legacy (PyTorch up to 2.1)";
    case Generation::kTorch20:
      return "legacy (PyTorch up to 2.0)";
    case Generation::kTorch21:
      return "legacy (PyTorch 2.1)";
    case Generation::kModern:
      return "modern (PyTorch 2.2 or later)";
    case Generation::kRelayed:
      return "relayed by an agent";
  }
  return "?";
}

int opcode_byte(Op op, Generation generation) {
  const int modern = static_cast<int>(op);
  if (generation == Generation::kModern) return modern;
  if (op == Op::kValidate) return -1;
  if (generation == Generation::kRelayed) return modern;
  if (modern <= static_cast<int>(Op::kGetNumKeys)) return modern - 1;
  if (generation == Generation::kTorch20) return op == Op::kDeleteKey ? 8 : -1;
  if (generation == Generation::kTorch21 && op <= Op::kCancelWait) return modern - 1;
  return -1;
}

void put_u32(std::string& out, std::uint32_t value) {
  char bytes[sizeof value];
  std::memcpy(bytes, &value, sizeof value);
  out.append(bytes, sizeof value);
}

void put_i64(std::string& out, std::int64_t value) {
  char bytes[sizeof value];
  std::memcpy(bytes, &value, sizeof value);
  out.append(bytes, sizeof value);
}

void put_bytes(std::string& out, std::string_view bytes) {
  put_i64(out, static_cast<std::int64_t>(bytes.size()));
  out.append(bytes);
}

std::uint32_t load_u32(const char* at) {
  std::uint32_t value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

std::uint64_t load_u64(const char* at) {
  std::uint64_t value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

void encode(const Request& request, std::string& out, Generation generation) {
  const int opcode = opcode_byte(request.op, generation);
  MUSTER_CHECK(opcode >= 0, op_info(request.op).name);
  out.push_back(static_cast<char>(opcode));
  bool first_value = true;
  for (const char field : op_info(request.op).layout) {
    switch (field) {
      case 'k':
        put_bytes(out, request.key);
        break;
      case 'v':
        put_bytes(out, first_value ? request.value : request.desired);
        first_value = false;
        break;
      case 'i':
        put_i64(out, request.number);
        break;
      case 'u':
        put_u32(out, static_cast<std::uint32_t>(request.number));
        break;
      default:
        put_i64(out,
                static_cast<std::int64_t>(field == 'P' ? request.items.size() / 2 : request.items.size()));
        for (const std::string_view item : request.items) put_bytes(out, item);
    }
  }
}

}  // namespace muster::wire
