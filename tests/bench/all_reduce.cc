// SPDX-License-Identifier: Apache-2.0
// Time of all_reduce (float32 sum, in place) by size and transport: forks the ranks, prints rank 0's median
// and best microseconds and the bytes of the buffer per median second. Same columns as all_reduce_gloo.py.
// Usage: all_reduce_bench [ranks=2] [max_mib=64] [shm|registered|tcp ...]
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

#include <muster/file_store.h>

#include "worker_runtime/groups/make_cpu_group.h"

namespace {

using muster::Result;
using Clock = std::chrono::steady_clock;

struct Settings {
  int ranks = 2;
  std::size_t max_bytes = std::size_t{64} << 20;
};

Result<void> measure(muster::ProcessGroup& group, const std::string& name, bool registered,
                     const Settings& settings) {
  std::vector<float> own(settings.max_bytes / 4);
  float* data = own.data();
  if (registered) {
    MUSTER_TRY(void* const arena, group.allocate(settings.max_bytes));
    data = static_cast<float*>(arena);
  }
  for (const std::size_t bytes :
       {std::size_t{4}, std::size_t{256}, std::size_t{4} << 10, std::size_t{8} << 10, std::size_t{16} << 10,
        std::size_t{64} << 10, std::size_t{177704}, std::size_t{256} << 10, std::size_t{1} << 20,
        std::size_t{4} << 20, std::size_t{25} << 20, std::size_t{64} << 20}) {
    if (bytes > settings.max_bytes) break;
    const int rounds = bytes <= (64 << 10) ? 2000 : bytes <= (1 << 20) ? 300 : bytes <= (4 << 20) ? 100 : 30;
    std::vector<double> micros;
    for (int i = -rounds / 10 - 3; i < rounds; ++i) {
      // As backward does: what is reduced lies in this core's cache, not in another's.
      std::fill_n(data, bytes / 4, 1.0F);
      MUSTER_OK(group.barrier());
      const auto start = Clock::now();
      MUSTER_OK(group.all_reduce({data, bytes / 4, muster::DType::kFloat32}));
      if (i >= 0) micros.push_back(std::chrono::duration<double, std::micro>(Clock::now() - start).count());
    }
    std::sort(micros.begin(), micros.end());
    const double median = micros[micros.size() / 2];
    if (group.rank() == 0)
      std::printf("%-18s %5d %12zu %12.1f %12.1f %10.3f\n", name.c_str(), settings.ranks, bytes, median,
                  micros.front(), static_cast<double>(bytes) / median * 1e-3);
  }
  return {};
}

Result<void> run_rank(int rank, const std::string& store_path, const std::vector<std::string>& transports,
                      const Settings& settings) {
  for (const std::string& transport : transports) {
    MUSTER_TRY(auto store, muster::open_file_store(store_path + transport, settings.ranks));
    const bool tcp = transport == "tcp";
    MUSTER_TRY(auto group,
               muster::groups::make_cpu_group({.backend = tcp ? muster::Backend::kTcp : muster::Backend::kShm,
                                               .rank = rank,
                                               .world_size = settings.ranks,
                                               .host_id = "here",
                                               .route_host = "127.0.0.1"},
                                              *store));
    MUSTER_OK(measure(*group, "muster/" + transport, transport == "registered", settings));
    std::fflush(stdout);
  }
  return {};
}

}  // namespace

int main(int argc, char** argv) {
  Settings settings;
  if (argc > 1) settings.ranks = std::max(1, std::atoi(argv[1]));
  if (argc > 2) settings.max_bytes = static_cast<std::size_t>(std::max(1, std::atoi(argv[2]))) << 20;
  std::vector<std::string> transports(argv + std::min(argc, 3), argv + argc);
  if (transports.empty()) transports = {"registered", "shm", "tcp"};
  std::printf("%-18s %5s %12s %12s %12s %10s\n", "transport", "ranks", "bytes", "median us", "best us",
              "GB/s");
  std::fflush(stdout);
  char directory[] = "/tmp/muster_bench_XXXXXX";
  if (::mkdtemp(directory) == nullptr) return 1;
  std::vector<pid_t> children;
  for (int rank = 0; rank < settings.ranks; ++rank) {
    const pid_t child = ::fork();
    if (child == 0) {
      const auto done = run_rank(rank, std::string(directory) + "/", transports, settings);
      if (!done) std::fprintf(stderr, "rank %d: %s\n", rank, done.error().message.c_str());
      std::fflush(stdout);
      ::_exit(done ? 0 : 1);
    }
    children.push_back(child);
  }
  int failed = 0;
  for (const pid_t child : children) {
    int status = 0;
    ::waitpid(child, &status, 0);
    failed += status != 0 ? 1 : 0;
  }
  ::rmdir(directory);
  return failed == 0 ? 0 : 1;
}
