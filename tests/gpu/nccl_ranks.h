// SPDX-License-Identifier: Apache-2.0
// Ranks of the real NCCL: one, or two or three that share one GPU. NCCL refuses two
// ranks on a GPU unless it believes them on different hosts, which a different NCCL_HOSTID per process makes
// it do; the data then goes through sockets on loopback: slow, and a true multi-rank run. Each rank is a
// process that starts CUDA itself; the test program's own process never does, as CUDA does not survive a
// fork. On emulated CUDA: ranks of the test NCCL.
#pragma once

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <muster/file_store.h>

#include "rendezvous/base/clock.h"
#include "tests/support/catch.h"
#include "tests/support/kernels.h"
#include "tests/support/ranks.h"
#include "tests/support/temporary_directory.h"
#include "worker_runtime/device/device.h"
#include "worker_runtime/groups/nccl/nccl_group.h"

namespace muster::testing {

inline constexpr const char* kNoGpu = "no GPU here";

inline std::string text_of(const Error& error) {
  return std::string(to_string(error.code)) + ": " + error.message;
}

#define STEP(expression)                                                  \
  do {                                                                    \
    if (auto step_ = (expression); !step_) return text_of(step_.error()); \
  } while (false)
#define EXPECT(condition)                                                                       \
  do {                                                                                          \
    if (!(condition)) return std::string("line ") + std::to_string(__LINE__) + ": " #condition; \
  } while (false)

inline void share_one_gpu(int rank) {
  const std::string host = "muster-rank-" + std::to_string(rank);
  const std::pair<const char*, const char*> settings[] = {
      {"NCCL_HOSTID", host.c_str()}, {"NCCL_P2P_DISABLE", "1"},    {"NCCL_SHM_DISABLE", "1"},
      {"NCCL_NET", "Socket"},        {"NCCL_SOCKET_IFNAME", "lo"}, {"NCCL_IB_DISABLE", "1"},
      {"NCCL_MNNVL_ENABLE", "0"},    {"NCCL_NVLS_ENABLE", "0"},    {"NCCL_MAX_CTAS", "1"},
      {"NCCL_RAS_ENABLE", "0"},      {"NCCL_ALGO", "Ring"},        {"NCCL_PROTO", "Simple"}};
  for (const auto& [name, value] : settings) ::setenv(name, value, 1);
}

struct Member {
  std::shared_ptr<testing::Kernels> kernels;
  std::unique_ptr<Store> store;
  std::unique_ptr<ProcessGroup> group;

  Result<void> join(const TemporaryDirectory& directory, int rank, int size,
                    Millis timeout = Millis(60'000)) {
    MUSTER_TRY(kernels, testing::make_cuda_kernels(0));
    MUSTER_TRY(store, open_file_store(directory.file("store")));
    MUSTER_TRY(group, make_nccl_group(*store, rank, size, 0, kernels->stream(), timeout));
    return {};
  }

  Result<float*> filled(std::size_t count, float value) {
    MUSTER_TRY(void* memory, group->allocate(count * sizeof(float)));
    const std::vector<float> values(count, value);
    kernels->copy_to_device(memory, values.data(), count * sizeof(float));
    return static_cast<float*>(memory);
  }

  std::vector<float> read(const float* memory, std::size_t count) {
    std::vector<float> values(count);
    kernels->copy_to_host(values.data(), memory, count * sizeof(float));
    return values;
  }
};

inline bool all_equal(const std::vector<float>& values, float value) {
  return std::all_of(values.begin(), values.end(), [value](float v) { return v == value; });
}

inline void run(int size, const std::function<std::string(int rank)>& body, int gone = -1) {
  const auto outcomes =
      run_ranks({.world_size = size, .deadline = std::chrono::seconds(150)}, [&](int rank) -> std::string {
        if (size > 1) share_one_gpu(rank);
#ifdef EMULATED_NCCL
        ::setenv("MUSTER_NCCL_LIBRARY", EMULATED_NCCL, 1);
#endif
        if (gpu_count() == 0) return kNoGpu;
        return body(rank);
      });
  if (outcomes[0].text == kNoGpu) {
    std::puts("SKIP: no GPU here");
    std::fflush(stdout);
    std::_Exit(77);
  }
  for (int rank = 0; rank < size; ++rank) {
    if (rank == gone) continue;
    const RankOutcome& outcome = outcomes[static_cast<std::size_t>(rank)];
    INFO("rank " << rank << ": " << outcome.text);
    CHECK(outcome.ended);
    CHECK(outcome.status == 0);
    CHECK(outcome.text.empty());
  }
}

}  // namespace muster::testing
