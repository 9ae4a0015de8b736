// SPDX-License-Identifier: Apache-2.0
// The NCCL group with the real NCCL: one rank, and two or three ranks that share one GPU. NCCL refuses two
// ranks on a GPU unless it believes them on different hosts, which a different NCCL_HOSTID per process makes
// it do; the data then goes through sockets on loopback: slow, and a true multi-rank run. Each rank is a
// process that starts CUDA itself; this program's own process never does, as CUDA does not survive a fork.
#include <csignal>
#include <cstdlib>
#include <unistd.h>

#include <muster/file_store.h>

#include "rendezvous/base/clock.h"
#include "tests/gpu/tiny_training.h"
#include "tests/support/catch.h"
#include "tests/support/ranks.h"
#include "worker_runtime/core/step_graph.h"
#include "worker_runtime/groups/nccl_group.h"

using namespace muster;
using namespace muster::testing;

namespace {

constexpr const char* kNoGpu = "no GPU here";

std::string text_of(const Error& error) {
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

void share_one_gpu(int rank) {
  const std::string host = "muster-rank-" + std::to_string(rank);
  const std::pair<const char*, const char*> settings[] = {
      {"NCCL_HOSTID", host.c_str()}, {"NCCL_P2P_DISABLE", "1"},    {"NCCL_SHM_DISABLE", "1"},
      {"NCCL_NET", "Socket"},        {"NCCL_SOCKET_IFNAME", "lo"}, {"NCCL_IB_DISABLE", "1"},
      {"NCCL_MNNVL_ENABLE", "0"},    {"NCCL_NVLS_ENABLE", "0"},    {"NCCL_MAX_CTAS", "1"},
      {"NCCL_RAS_ENABLE", "0"},      {"NCCL_ALGO", "Ring"},        {"NCCL_PROTO", "Simple"}};
  for (const auto& [name, value] : settings) ::setenv(name, value, 1);
}

struct Member {
  std::unique_ptr<kernels::Kernels> kernels;
  std::unique_ptr<Store> store;
  std::unique_ptr<ProcessGroup> group;

  Result<void> join(const TemporaryDirectory& directory, int rank, int size,
                    Millis timeout = Millis(60'000)) {
    MUSTER_TRY(kernels, kernels::make_cuda_kernels(0));
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

bool all_equal(const std::vector<float>& values, float value) {
  return std::all_of(values.begin(), values.end(), [value](float v) { return v == value; });
}

void run(int size, const std::function<std::string(int rank)>& body, int gone = -1) {
  const auto outcomes =
      run_ranks({.world_size = size, .deadline = std::chrono::seconds(150)}, [&](int rank) -> std::string {
        if (size > 1) share_one_gpu(rank);
        if (kernels::cuda_device_count() == 0) return kNoGpu;
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

std::string collectives(Member& member, int rank, int size) {
  for (const std::size_t count : {std::size_t{1}, std::size_t{1000}, std::size_t{1} << 20}) {
    auto values = member.filled(count, static_cast<float>(rank + 1));
    if (!values) return text_of(values.error());
    STEP(member.group->all_reduce({*values, count, DType::kFloat32}, ReduceOp::kSum));
    EXPECT(all_equal(member.read(*values, count), static_cast<float>(size * (size + 1) / 2)));
    STEP(member.group->all_reduce({*values, count, DType::kFloat32}, ReduceOp::kAvg));
    EXPECT(all_equal(member.read(*values, count), static_cast<float>(size * (size + 1) / 2)));

    auto mine = member.filled(count, static_cast<float>(rank));
    auto gathered = member.filled(count * static_cast<std::size_t>(size), -1.0F);
    if (!mine || !gathered) return "no memory";
    STEP(member.group->all_gather({*mine, count, DType::kFloat32},
                                  {*gathered, count * static_cast<std::size_t>(size), DType::kFloat32}));
    const auto all = member.read(*gathered, count * static_cast<std::size_t>(size));
    for (std::size_t i = 0; i < all.size(); ++i) EXPECT(all[i] == static_cast<float>(i / count));

    STEP(member.group->reduce_scatter({*gathered, count * static_cast<std::size_t>(size), DType::kFloat32},
                                      {*mine, count, DType::kFloat32}, ReduceOp::kSum));
    EXPECT(all_equal(member.read(*mine, count), static_cast<float>(rank * size)));

    STEP(member.group->broadcast({*mine, count, DType::kFloat32}, size - 1));
    EXPECT(all_equal(member.read(*mine, count), static_cast<float>((size - 1) * size)));
  }
  STEP(member.group->barrier());
  STEP(member.kernels->synchronize());
  return "";
}

/// 12 steps of the small network with averaged gradients; the parameters afterwards.
Result<std::vector<float>> train(Member& member, int rank, bool capture) {
  TinyTraining training(*member.kernels);
  MUSTER_OK(training.prepare());
  const auto steps = make_step_graph(Device::kCuda, member.kernels->stream(), capture);
  for (int step = 0; step < 12; ++step) {
    training.choose(1000 * rank + step);
    const auto reduce = [&](float* grads, std::size_t count) -> Result<void> {
      // Two buckets that overlap what follows, as DDP starts them.
      MUSTER_TRY(auto second, member.group->start_all_reduce({grads + 1000, count - 1000, DType::kFloat32},
                                                             ReduceOp::kAvg));
      MUSTER_TRY(auto first, member.group->start_all_reduce({grads, 1000, DType::kFloat32}, ReduceOp::kAvg));
      MUSTER_OK(second->wait());
      return first->wait();
    };
    const auto stepped = steps->run(step_key({step == 0}), [&] { return training.step(step == 0, reduce); });
    if (!stepped) return fail(stepped.error());
  }
  return training.parameters();
}

std::string captured_equals_called(Member& member, int rank) {
  const auto called = train(member, rank, false);
  if (!called) return text_of(called.error());
  const auto captured = train(member, rank, true);
  if (!captured) return text_of(captured.error());
  EXPECT(std::memcmp(called->data(), captured->data(), called->size() * sizeof(float)) == 0);
  return "";
}

}  // namespace

TEST_CASE("NCCL with one rank starts, runs every collective and ends") {
  const TemporaryDirectory directory;
  run(1, [&](int rank) -> std::string {
    Member member;
    STEP(member.join(directory, rank, 1));
    return collectives(member, rank, 1);
  });
}

TEST_CASE("a captured step with one NCCL rank equals the called one") {
  const TemporaryDirectory directory;
  run(1, [&](int rank) -> std::string {
    Member member;
    STEP(member.join(directory, rank, 1));
    return captured_equals_called(member, rank);
  });
}

TEST_CASE("two NCCL ranks on one GPU compute every collective") {
  const TemporaryDirectory directory;
  run(2, [&](int rank) -> std::string {
    Member member;
    STEP(member.join(directory, rank, 2));
    return collectives(member, rank, 2);
  });
}

TEST_CASE("three NCCL ranks on one GPU compute every collective") {
  const TemporaryDirectory directory;
  run(3, [&](int rank) -> std::string {
    Member member;
    STEP(member.join(directory, rank, 3));
    return collectives(member, rank, 3);
  });
}

TEST_CASE("a captured step of two NCCL ranks equals the called one, and the ranks agree") {
  const TemporaryDirectory directory;
  run(2, [&](int rank) -> std::string {
    Member member;
    STEP(member.join(directory, rank, 2));
    if (std::string text = captured_equals_called(member, rank); !text.empty()) return text;
    const auto parameters = train(member, rank, true);
    if (!parameters) return text_of(parameters.error());
    const std::size_t count = parameters->size();
    auto mine = member.filled(count, 0.0F), all = member.filled(2 * count, 0.0F);
    if (!mine || !all) return "no memory";
    member.kernels->copy_to_device(*mine, parameters->data(), count * sizeof(float));
    STEP(member.group->all_gather({*mine, count, DType::kFloat32}, {*all, 2 * count, DType::kFloat32}));
    const auto both = member.read(*all, 2 * count);
    EXPECT(std::memcmp(both.data(), both.data() + count, count * sizeof(float)) == 0);
    return "";
  });
}

TEST_CASE("an NCCL rank that is killed is an error to the other within the timeout") {
  const TemporaryDirectory directory;
  run(
      2,
      [&](int rank) -> std::string {
        Member member;
        STEP(member.join(directory, rank, 2, Millis(15'000)));
        STEP(member.group->barrier());
        if (rank == 1) ::kill(::getpid(), SIGKILL);
        const auto failed = member.group->barrier();
        EXPECT(!failed);
        EXPECT(failed.error().code == ErrorCode::kPeerGone || failed.error().code == ErrorCode::kTimeout);
        EXPECT(failed.error().message.find("rank 0 of 2: barrier #2") != std::string::npos);
        const auto again = member.group->barrier();
        EXPECT(!again && again.error() == failed.error());
        return "";
      },
      1);
}
