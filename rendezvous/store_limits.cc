// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/store_limits.h"

#include <algorithm>

#include <fmt/format.h>

namespace muster {
namespace {

using wire::Op;

constexpr std::size_t kNumberBytes = 20;  // of a counter's longest text

// What a request adds.
struct Growth {
  std::size_t keys = 0;
  std::size_t bytes = 0;
  std::size_t waits = 0;
};

// No lookup: as if nothing it names existed.
Growth at_most(const wire::Request& request) {
  constexpr std::size_t kEntry = StoreCore::kEntryBytes;
  switch (request.op) {
    case Op::kSet:
    case Op::kAppend:
      return {1, kEntry + request.key.size() + request.value.size(), 0};
    case Op::kCompareSet:
      return {1, kEntry + request.key.size() + request.desired.size(), 0};
    case Op::kAdd:
      return {1, kEntry + request.key.size() + kNumberBytes, 0};
    case Op::kBarrier:
      return {1, 2 * (kEntry + request.key.size()) + kNumberBytes, 1};
    case Op::kQueuePush:
      return {1,
              kEntry + StoreCore::kQueueBytes + request.key.size() + StoreCore::kElementBytes +
                  request.value.size(),
              0};
    case Op::kWatchKey:
      return {0, kEntry + request.key.size(), 1};
    case Op::kMultiSet:
    case Op::kWait:
    case Op::kSharedWait: {
      Growth out;
      for (const std::string_view item : request.items) out.bytes += kEntry + item.size();
      (request.op == Op::kMultiSet ? out.keys : out.waits) = request.items.size();
      return out;
    }
    default:
      return {};
  }
}

Growth of_value(const StoreCore& core, std::string_view key, std::size_t value_bytes) {
  const auto found = core.keys().find(key);
  if (found == core.keys().end()) return {1, StoreCore::kEntryBytes + key.size() + value_bytes, 0};
  return {0, value_bytes - std::min(value_bytes, found->second.size()), 0};
}

Growth exactly(const StoreCore& core, const wire::Request& request) {
  switch (request.op) {
    case Op::kSet:
      return of_value(core, request.key, request.value.size());
    case Op::kAppend: {
      const auto found = core.keys().find(request.key);
      if (found == core.keys().end()) return of_value(core, request.key, request.value.size());
      return {0, request.value.size(), 0};
    }
    case Op::kCompareSet: {
      const auto found = core.keys().find(request.key);
      const bool sets = found == core.keys().end() ? request.value.empty() : found->second == request.value;
      return sets ? of_value(core, request.key, request.desired.size()) : Growth{};
    }
    case Op::kAdd:
      return of_value(core, request.key, kNumberBytes);
    case Op::kBarrier: {
      Growth out = of_value(core, request.key, kNumberBytes);
      out.bytes += StoreCore::kEntryBytes + request.key.size();
      out.waits = 1;
      return out;
    }
    case Op::kMultiSet: {
      Growth out;
      for (std::size_t i = 0; i + 1 < request.items.size(); i += 2) {
        const Growth one = of_value(core, request.items[i], request.items[i + 1].size());
        out.keys += one.keys;
        out.bytes += one.bytes;
      }
      return out;
    }
    case Op::kWait:
    case Op::kSharedWait: {
      Growth out;
      for (const std::string_view& key : request.items) {
        if (core.check({&key, 1})) continue;
        ++out.waits;
        out.bytes += StoreCore::kEntryBytes + key.size();
      }
      return out;
    }
    case Op::kQueuePush: {
      Growth out{0, StoreCore::kElementBytes + request.value.size(), 0};
      if (core.queue_len(request.key) > 0) return out;
      out.keys = 1;
      out.bytes += StoreCore::kEntryBytes + StoreCore::kQueueBytes + request.key.size();
      return out;
    }
    default:
      return at_most(request);
  }
}

bool fits(std::size_t present, std::size_t more, std::size_t limit) {
  return more == 0 || (more <= limit && present <= limit - more);
}

}  // namespace

std::string exceeded_limit(const StoreCore& core, ClientId client, const wire::Request& request,
                           const StoreLimits& limits) {
  const Growth bound = at_most(request);
  if (fits(core.num_keys(), bound.keys, limits.max_keys) &&
      fits(core.num_bytes(), bound.bytes, limits.max_bytes) &&
      fits(core.num_waits(), bound.waits, limits.max_waits)) [[likely]]
    return {};
  const Growth growth = exactly(core, request);
  // A wait takes the place of the client's last one.
  const std::size_t waits = core.num_waits() - (growth.waits > 0 ? core.num_waits(client) : 0);
  const std::string_view op = op_info(request.op).name;
  if (!fits(core.num_keys(), growth.keys, limits.max_keys))
    return fmt::format("{} would bring the store to {} keys, the limit is {} (--max-total-keys)", op,
                       core.num_keys() + growth.keys, limits.max_keys);
  if (!fits(core.num_bytes(), growth.bytes, limits.max_bytes))
    return fmt::format("{} would bring the store to {} bytes, the limit is {} (--max-total-bytes)", op,
                       core.num_bytes() + growth.bytes, limits.max_bytes);
  if (!fits(waits, growth.waits, limits.max_waits))
    return fmt::format("{} would bring the store to {} pending waits, the limit is {} (--max-waits)", op,
                       waits + growth.waits, limits.max_waits);
  return {};
}

}  // namespace muster
