// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/store/wire.h"

#include <array>
#include <cstring>
#include <utility>

#include <muster/check.h>

namespace muster::wire {
namespace {

// Indexed by Op.
constexpr std::array<OpInfo, kNumOps> kOps = {{
    {"VALIDATE", "u", OpKind::kOther},
    {"SET", "kv", OpKind::kSilentChange},
    {"COMPARE_SET", "kvv", OpKind::kChange},
    {"GET", "k", OpKind::kRead},
    {"ADD", "ki", OpKind::kChange},
    {"CHECK", "K", OpKind::kRead},
    {"WAIT", "K", OpKind::kOther},
    {"GETNUMKEYS", "", OpKind::kRead},
    {"DELETE_KEY", "k", OpKind::kChange},
    {"APPEND", "kv", OpKind::kSilentChange},
    {"MULTI_GET", "K", OpKind::kOther},
    {"MULTI_SET", "P", OpKind::kSilentChange},
    {"CANCEL_WAIT", "", OpKind::kOther},
    {"PING", "u", OpKind::kRead},
    {"QUEUE_PUSH", "kv", OpKind::kSilentChange},
    {"QUEUE_POP", "k", OpKind::kChange},
    {"QUEUE_LEN", "k", OpKind::kRead},
    {"LIST_KEYS", "", OpKind::kOther},
    {"BARRIER", "ki", OpKind::kChange},
}};

}  // namespace

const OpInfo& op_info(Op op) {
  return kOps[static_cast<std::size_t>(op)];
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
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

void put_i64(std::string& out, std::int64_t value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
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
    if (field == 'k') {
      put_bytes(out, request.key);
    } else if (field == 'v') {
      put_bytes(out, std::exchange(first_value, false) ? request.value : request.desired);
    } else if (field == 'i') {
      put_i64(out, request.number);
    } else if (field == 'u') {
      put_u32(out, static_cast<std::uint32_t>(request.number));
    } else {
      put_i64(out, static_cast<std::int64_t>(field == 'P' ? request.items.size() / 2 : request.items.size()));
      for (const std::string_view item : request.items) put_bytes(out, item);
    }
  }
}

}  // namespace muster::wire
