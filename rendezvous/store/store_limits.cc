// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/store/store_limits.h"

#include <algorithm>
#include <unordered_map>

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
  void operator+=(const Growth& more) {
    keys += more.keys;
    bytes += more.bytes;
    waits += more.waits;
  }
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

Growth of_wait(const StoreCore& core, std::string_view key) {
  if (core.check({&key, 1})) return {};
  return {0, StoreCore::kEntryBytes + key.size(), 1};
}

// Calls `add(name, growth)` for each name.
template <class Add>
void exactly(const StoreCore& core, const wire::Request& request, Add add) {
  switch (request.op) {
    case Op::kSet:
      return add(request.key, of_value(core, request.key, request.value.size()));
    case Op::kAppend: {
      const auto found = core.keys().find(request.key);
      if (found == core.keys().end())
        return add(request.key, of_value(core, request.key, request.value.size()));
      return add(request.key, Growth{0, request.value.size(), 0});
    }
    case Op::kCompareSet: {
      const auto found = core.keys().find(request.key);
      const bool sets = found == core.keys().end() ? request.value.empty() : found->second == request.value;
      return add(request.key, sets ? of_value(core, request.key, request.desired.size()) : Growth{});
    }
    case Op::kAdd:
      return add(request.key, of_value(core, request.key, kNumberBytes));
    case Op::kBarrier: {
      Growth out = of_value(core, request.key, kNumberBytes);
      out += {0, StoreCore::kEntryBytes + request.key.size(), 1};
      return add(request.key, out);
    }
    case Op::kMultiSet:
      for (std::size_t i = 0; i + 1 < request.items.size(); i += 2)
        add(request.items[i], of_value(core, request.items[i], request.items[i + 1].size()));
      return;
    case Op::kWait:
    case Op::kSharedWait:
      for (const std::string_view key : request.items) add(key, of_wait(core, key));
      return;
    case Op::kQueuePush: {
      Growth out{0, StoreCore::kElementBytes + request.value.size(), 0};
      if (core.queue_len(request.key) == 0)
        out += {1, StoreCore::kEntryBytes + StoreCore::kQueueBytes + request.key.size(), 0};
      return add(request.key, out);
    }
    default:
      return add(request.key, at_most(request));
  }
}

bool fits(std::size_t present, std::size_t more, std::size_t limit) {
  return more == 0 || (more <= limit && present <= limit - more);
}

// A request that would bring `what` ("the store", "job a") beyond one of the limits.
struct Bounds {
  std::size_t max_keys;
  std::size_t max_bytes;
  std::size_t max_waits;
  std::string_view kind;  // "total" or "job": the word in the options' names
  std::string_view waits_option;
};

std::string excess_of(Op op, std::string_view what, const Growth& present, const Growth& growth,
                      const Bounds& bounds) {
  const std::string_view name = op_info(op).name;
  if (!fits(present.keys, growth.keys, bounds.max_keys))
    return fmt::format("{} would bring {} to {} keys, the limit is {} (--max-{}-keys)", name, what,
                       present.keys + growth.keys, bounds.max_keys, bounds.kind);
  if (!fits(present.bytes, growth.bytes, bounds.max_bytes))
    return fmt::format("{} would bring {} to {} bytes, the limit is {} (--max-{}-bytes)", name, what,
                       present.bytes + growth.bytes, bounds.max_bytes, bounds.kind);
  if (!fits(present.waits, growth.waits, bounds.max_waits))
    return fmt::format("{} would bring {} to {} pending waits, the limit is {} ({})", name, what,
                       present.waits + growth.waits, bounds.max_waits, bounds.waits_option);
  return {};
}

constexpr std::string_view kJobWaits = "--max-job-waits";

std::string exceeds_total(const StoreCore& core, ClientId client, const wire::Request& request,
                          const StoreLimits& limits) {
  Growth growth;
  exactly(core, request, [&](std::string_view, const Growth& one) { growth += one; });
  // A wait takes the place of the client's last one.
  const std::size_t waits = core.num_waits() - (growth.waits > 0 ? core.num_waits(client) : 0);
  const Bounds bounds{limits.max_keys, limits.max_bytes, limits.max_waits,
                      limits.is_one_job ? "job" : "total", limits.is_one_job ? kJobWaits : "--max-waits"};
  return excess_of(request.op, limits.is_one_job ? "the job's store" : "the store",
                   {core.num_keys(), core.num_bytes(), waits}, growth, bounds);
}

// It names a job's key, perhaps keys of many jobs.
std::string exceeds_a_jobs(StoreCore& core, ClientId client, const wire::Request& request,
                           const JobLimits& limits) {
  std::unordered_map<std::string_view, Growth> jobs;  // by state
  std::string_view first;
  exactly(core, request, [&](std::string_view name, const Growth& one) {
    const std::string_view state = JobAccounts::state_of(name);
    if (state.empty()) return;
    if (first.empty()) first = state;
    jobs[state] += one;
  });
  if (first.empty()) return {};
  const auto title = [](std::string_view state) {
    return "torchrun job " + wire::printable(state.substr(TorchrunJobs::kPrefix.size()), 64);
  };
  const JobAccounts& accounts = core.accounts();
  const bool joins = !accounts.has_job(client);
  if (const std::size_t present = accounts.find(first).clients; joins && present >= limits.max_connections)
    return fmt::format("{}: {} has {} connections, the limit is {} (--max-job-connections)",
                       op_info(request.op).name, title(first), present, limits.max_connections);
  const Bounds bounds{limits.max_keys, limits.max_bytes, limits.max_waits, "job", kJobWaits};
  for (const auto& [state, growth] : jobs) {
    const JobAccount has = accounts.find(state);
    Growth present{has.keys, has.bytes, has.waits};
    // As above; counted only where it matters.
    if (!fits(present.waits, growth.waits, limits.max_waits))
      present.waits -= core.num_waits(client, core.accounts().of(state));
    if (std::string excess = excess_of(request.op, title(state), present, growth, bounds); !excess.empty())
      return excess;
  }
  if (joins) core.accounts().joined(client, first);
  return {};
}

bool names_a_job(const wire::Request& request) {
  switch (request.op) {
    case Op::kMultiSet: {
      for (std::size_t i = 0; i < request.items.size(); i += 2)
        if (JobAccounts::concerns(request.items[i])) return true;
      return false;
    }
    case Op::kWait:
    case Op::kSharedWait:
      return std::any_of(request.items.begin(), request.items.end(), JobAccounts::concerns);
    default:
      return JobAccounts::concerns(request.key);
  }
}

}  // namespace

StoreLimits of_one_job(const JobLimits& job) {
  return {job.max_keys, job.max_bytes, job.max_waits, job, true};
}

std::string admit(StoreCore& core, ClientId client, const wire::Request& request, const StoreLimits& limits) {
  const Growth bound = at_most(request);
  if (bound.bytes == 0) return {};  // it reads
  if (!fits(core.num_keys(), bound.keys, limits.max_keys) ||
      !fits(core.num_bytes(), bound.bytes, limits.max_bytes) ||
      !fits(core.num_waits(), bound.waits, limits.max_waits)) [[unlikely]]
    if (std::string excess = exceeds_total(core, client, request, limits); !excess.empty()) return excess;
  if (!limits.is_one_job && names_a_job(request)) [[unlikely]]
    return exceeds_a_jobs(core, client, request, limits.job);
  return {};
}

}  // namespace muster
