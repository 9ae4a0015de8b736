// SPDX-License-Identifier: Apache-2.0
// RuntimePage: the 4 KiB in which the runtime of a worker tells, without a word of the program, which
// collective each of its groups began last and when the worker had come how far in its start. The file is
// beside the one that MUSTER_PROGRESS_FILE names. The worker maps it and stores into it without a system call
// (worker_runtime/core/runtime_page_map.h); the agent reads it when a worker hangs
// (launcher/progress/collective_state.h). Plain memory of one machine: no byte order. The fields of a slot
// are stored under a version that is odd meanwhile.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace muster {

/// What a slot says; the numbers are in the file.
enum class PageOperation : std::uint32_t {
  kNone = 0,
  kBarrier = 1,
  kAllReduce = 2,
  kBroadcast = 3,
  kAllGather = 4,
  kReduceScatter = 5,
  kAllocate = 6,
  kCaptured = 7,  // of a replayed CUDA graph, counted by the GPU
  kReduce = 8,
  kSend = 9,  // has the number of the collective that follows, as kRecv has
  kRecv = 10,
  kLast = kRecv
};
inline constexpr std::array<std::string_view, 11> kPageOperations = {
    "none",       "barrier",        "all_reduce", "broadcast",
    "all_gather", "reduce_scatter", "allocate",   "a captured collective",
    "reduce",     "send",           "recv"};

/// Between two ranks: the others have no part in it.
[[nodiscard]] constexpr bool is_point_to_point(PageOperation operation) {
  return operation == PageOperation::kSend || operation == PageOperation::kRecv;
}

enum class PageState : std::uint32_t {
  kNone = 0,
  kBegun = 1,
  kFinished = 2,
  kFailed = 3,
  kGone = 4,
  kLast = kGone
};

/// The last collective of one group.
struct PageSlot {
  std::uint64_t version;   // odd while it is being written; rises with every collective
  std::uint64_t sequence;  // as the group's error texts count
  std::uint64_t size_bytes;
  PageOperation operation;
  PageState state;  // stored alone when the collective ends
  std::int32_t root;
  std::uint32_t world_size;
  std::uint32_t owner;           // process; 0: the slot is free
  std::uint32_t program;         // of that process, which may have executed others before
  std::array<char, 16> backend;  // "shm"; padded with zeros, as the name is
  std::array<char, 64> name;
};
static_assert(sizeof(PageSlot) == 128);

/// How far the start of a worker has come. The numbers are places in RuntimePage::marks_ns.
enum class PageMark : std::uint32_t {
  kInitBegun = 0,       // init() was called
  kStoreConnected = 1,  // the store answers
  kGathered = 2,        // all ranks have come
  kNcclLoaded = 3,      // NCCL's library is there
  kNcclIdKnown = 4,     // rank 0 has made it and the store has brought it
  kGroupReady = 5,      // the default group can be used
  kFirstStepBegun = 6,
  kFirstStepDone = 7,  // the second one begins
};

struct RuntimePage {
  static constexpr std::size_t kMarks = 16;
  static constexpr std::size_t kSlots = 30;

  std::array<char, 16> magic;
  std::array<std::int64_t, kMarks> marks_ns;  // CLOCK_MONOTONIC; 0: not come so far
  std::array<char, 112> reserved;
  std::array<PageSlot, kSlots> slots;
};
static_assert(sizeof(RuntimePage) == 4096);

inline constexpr std::string_view kRuntimePageMagic{"muster-runtime\0\1", 16};

/// Where it is, given the file for words about progress.
[[nodiscard]] inline std::string runtime_page_file(std::string_view progress_file) {
  return std::string(progress_file) + ".runtime";
}

}  // namespace muster
