// SPDX-License-Identifier: Apache-2.0
#include "worker_runtime/groups/base/meeting.h"

#include <algorithm>
#include <map>
#include <poll.h>
#include <random>
#include <sys/stat.h>
#include <unistd.h>

#include <fmt/format.h>

#include "rendezvous/base/fail.h"
#include "rendezvous/base/syscall.h"
#include "worker_runtime/groups/base/collective.h"

namespace muster::groups {
namespace {

std::string slot(int rank, std::size_t index) {
  return fmt::format("log/{}/{}", rank, index);
}

std::string answer_key(int rank, std::string_view nonce) {
  return fmt::format("answer/{}/{}", rank, nonce);
}

Millis left_until(Instant deadline) {
  return std::max(time_left(deadline, SteadyClock::now()), Millis(1));
}

/// Appends a message to this rank's log. A message is one write, so that a rank that dies leaves no gap for
/// rank 0 to wait at: the first free slot is taken by compare_set, as numbers handed out before would not do.
Result<void> post(Store& store, int rank, const std::string& message) {
  for (std::size_t index = 0;; ++index) {
    const std::string key = slot(rank, index);
    MUSTER_TRY(const std::string now, store.compare_set(key, "", message));
    if (now != message) continue;
    // PyTorch's threaded server wakes nobody at a compare_set.
    return store.set(key, message);
  }
}

tl::unexpected<Error> missing_ranks(const std::vector<int>& ranks, int world_size) {
  return fail(ErrorCode::kTimeout,
              "{} of {} ranks did not come in time: {}; did they start, and do they see the same store?",
              ranks.size(), world_size, rank_list(ranks));
}

tl::unexpected<Error> other_world(int rank, std::string_view theirs, int me, std::string_view mine) {
  return fail(
      ErrorCode::kMismatch,
      "rank {} came with world size {:.8}, rank {} with {}; start every rank with the same WORLD_SIZE", rank,
      theirs, me, mine);
}

std::string world_key(int rank) {
  return fmt::format("world/{}", rank);
}

/// The world size that a rank came with last; empty if it cannot be read.
std::string world_of(Store& store, int rank) {
  const std::string key = world_key(rank);
  const auto here = store.check(std::span(&key, 1));
  return here && *here ? store.get(key).value_or("") : "";
}

/// Rank 0: reads everybody's log from the start until each has acknowledged `name`. What earlier attempts
/// left there is answered too, and nobody reads it. A rank that is still awaited has always more to say: its
/// hello, or what it does with the answer.
Result<void> lead(Store& store, const std::string& name, int world_size, Instant deadline) {
  const std::string mine = std::to_string(world_size);
  std::vector<int> awaited = all_ranks(world_size);
  awaited.erase(awaited.begin());
  for (std::size_t index = 0; !awaited.empty(); ++index) {
    std::vector<std::string> slots;
    slots.reserve(awaited.size());
    for (const int rank : awaited) slots.push_back(slot(rank, index));
    const auto messages = store.multi_get(slots, left_until(deadline));
    if (!messages) {
      const auto missing = messages.error().code == ErrorCode::kTimeout
                               ? ranks_without_key(store, awaited, slots)
                               : std::vector<int>{};
      if (missing.empty()) return fail(messages.error());
      for (const int rank : awaited) {
        const bool came = std::find(missing.begin(), missing.end(), rank) == missing.end();
        const std::string theirs = came ? world_of(store, rank) : mine;
        if (!theirs.empty() && theirs != mine) return other_world(rank, theirs, 0, mine);
      }
      return missing_ranks(missing, world_size);
    }
    std::vector<int> still;
    std::vector<std::pair<std::string, std::string>> answers;
    for (std::size_t i = 0; i < awaited.size(); ++i) {
      const std::string_view message = (*messages)[i];
      if (message == "ack " + name) continue;
      if (message == "refuse " + name) return other_world(awaited[i], world_of(store, awaited[i]), 0, mine);
      still.push_back(awaited[i]);
      if (message.starts_with("hello "))
        answers.emplace_back(answer_key(awaited[i], message.substr(6)), fmt::format("{} {}", name, mine));
    }
    for (const auto& [key, value] : answers) MUSTER_OK(store.set(key, value));
    awaited = std::move(still);
  }
  return {};
}

}  // namespace

Result<std::string> meet(Store& store, int rank, int world_size, Instant deadline) {
  std::random_device random;
  const std::string nonce = fmt::format("{:08x}{:08x}{:08x}{:08x}", random(), random(), random(), random());
  const std::string mine = std::to_string(world_size);
  MUSTER_OK(store.set(world_key(rank), mine));
  MUSTER_OK(post(store, rank, "hello " + nonce));
  if (rank == 0) {
    MUSTER_OK(lead(store, nonce, world_size, deadline));
    return nonce;
  }
  // Before the answer: a rank 0 that does not wait for this one may end, and its store with it.
  std::string theirs = store.get(world_key(0), left_until(deadline)).value_or("");
  const auto answer = store.get(answer_key(rank, nonce), left_until(deadline));
  if (answer) {
    const std::size_t space = std::min(answer->find(' '), answer->size());
    const std::string name = answer->substr(0, space);
    const bool same = *answer == name + " " + mine;
    const auto told = post(store, rank, (same ? "ack " : "refuse ") + name);
    if (!same)
      return other_world(0, std::string_view(*answer).substr(std::min(space + 1, answer->size())), rank,
                         mine);
    MUSTER_OK(told);
    return name;
  }
  if (const std::string last = world_of(store, 0); !last.empty()) theirs = last;
  if (!theirs.empty() && theirs != mine) return other_world(0, theirs, rank, mine);
  if (answer.error().code != ErrorCode::kTimeout) return answer;
  const std::vector<int> everybody = all_ranks(world_size);
  std::vector<std::string> slots(everybody.size());
  for (const int other : everybody) slots[static_cast<std::size_t>(other)] = slot(other, 0);
  const auto missing = ranks_without_key(store, everybody, slots);
  if (!missing.empty()) return missing_ranks(missing, world_size);
  return fail(ErrorCode::kTimeout,
              "rank 0 did not answer in time: it, or a rank that it waits for, did not come; see its output");
}

TextExchange exchange_through_store(Store& store, std::string name, std::vector<int> ranks, int me,
                                    Instant deadline) {
  return [&store, name = std::move(name), ranks = std::move(ranks), me, deadline,
          round = 0](const std::string& mine) mutable -> Result<std::vector<std::string>> {
    std::vector<std::string> keys;
    for (const int rank : ranks) keys.push_back(fmt::format("{}/{}/{}", name, round, rank));
    ++round;
    MUSTER_OK(store.set(keys[static_cast<std::size_t>(me)], mine));
    const Millis left = left_until(deadline);
    auto texts = store.multi_get(keys, left);
    if (texts || texts.error().code != ErrorCode::kTimeout) return texts;
    const auto missing = ranks_without_key(store, ranks, keys);
    if (missing.empty()) return texts;
    return fail(ErrorCode::kTimeout,
                "{} of {} ranks did not come within {} ms while the group was made ({}): {}; did they start, "
                "and do they see the same store?",
                missing.size(), ranks.size(), left.count(), name, rank_list(missing));
  };
}

std::vector<int> ranks_without_key(Store& store, std::span<const int> ranks,
                                   std::span<const std::string> keys) {
  std::vector<int> missing;
  for (std::size_t i = 0; i < ranks.size(); ++i)
    if (const auto here = store.check(keys.subspan(i, 1)); here && !*here) missing.push_back(ranks[i]);
  return missing;
}

std::string host_id(const Environment& environment) {
  if (const auto set = lookup(environment, "MUSTER_HOST_ID"); set && !set->empty()) return std::string(*set);
  auto boot = read_file("/proc/sys/kernel/random/boot_id", 256);
  char name[256] = {};
  (void)::gethostname(name, sizeof name - 1);
  struct stat network {};
  const bool known = ::stat("/proc/self/ns/net", &network) == 0;
  std::string id = boot ? *std::move(boot) : std::string(name);
  while (!id.empty() && id.back() == '\n') id.pop_back();
  return fmt::format("{}/{}", id, known ? network.st_ino : 0);
}

std::vector<std::vector<int>> group_by_host(std::span<const std::string> ids) {
  std::vector<std::vector<int>> hosts;
  std::map<std::string, std::size_t> known;
  for (std::size_t rank = 0; rank < ids.size(); ++rank) {
    const auto [place, is_new] = known.emplace(ids[rank], hosts.size());
    if (is_new) hosts.emplace_back();
    hosts[place->second].push_back(static_cast<int>(rank));
  }
  return hosts;
}

std::uint64_t pid_namespace_inode() {
  struct stat info {};
  return ::stat("/proc/self/ns/pid", &info) == 0 ? info.st_ino : 0;
}

void PeerWatch::add(int member, pid_t pid) {
  if (UniqueFd pidfd = open_pidfd(pid)) peers_.push_back({member, std::move(pidfd)});
}

std::vector<int> PeerWatch::ended() const {
  std::vector<pollfd> entries;
  entries.reserve(peers_.size());
  for (const Peer& peer : peers_) entries.push_back({peer.pidfd.get(), POLLIN, 0});
  std::vector<int> out;
  if (::poll(entries.data(), entries.size(), 0) <= 0) return out;
  for (std::size_t i = 0; i < entries.size(); ++i)
    if ((entries[i].revents & POLLIN) != 0) out.push_back(peers_[i].member);
  return out;
}

}  // namespace muster::groups
