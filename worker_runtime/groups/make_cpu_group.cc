// SPDX-License-Identifier: Apache-2.0
#include "worker_runtime/groups/make_cpu_group.h"

#include <algorithm>
#include <numeric>

#include <fmt/format.h>

#include "worker_runtime/groups/base/host_id.h"
#include "worker_runtime/groups/hierarchical_group.h"
#include "worker_runtime/groups/shm/shm_group.h"
#include "worker_runtime/groups/tcp/tcp_group.h"

namespace muster::groups {
namespace {

class Maker {
 public:
  Maker(const CpuGroupOptions& options, Store& store)
      : options_(options), store_(store), deadline_(SteadyClock::now() + options.timeout) {}

  Result<std::unique_ptr<CpuGroup>> make() {
    std::vector<int> everybody(static_cast<std::size_t>(options_.world_size));
    std::iota(everybody.begin(), everybody.end(), 0);
    if (options_.backend == Backend::kTcp) return tcp("tcp", everybody, options_.timeout);
    MUSTER_TRY(const auto ids,
               exchange_through_store(store_, "host", everybody, options_.rank, deadline_)(options_.host_id));
    const auto hosts = group_by_host(ids);
    if (hosts.size() == 1) return within_host("shm", everybody);
    if (options_.backend == Backend::kShm)
      return fail(
          ErrorCode::kUnsupported,
          fmt::format("a shared-memory group over {} ranks on {} hosts (rank {} is not where rank 0 is); use "
                      "the automatic backend",
                      options_.world_size, hosts.size(), hosts[1].front()));
    if (hosts.size() == everybody.size()) return tcp("tcp", everybody, options_.timeout);

    const auto mine = std::find_if(hosts.begin(), hosts.end(), [&](const std::vector<int>& ranks) {
      return std::find(ranks.begin(), ranks.end(), options_.rank) != ranks.end();
    });
    std::vector<int> first_ranks;
    first_ranks.reserve(hosts.size());
    for (const auto& ranks : hosts) first_ranks.push_back(ranks.front());
    std::unique_ptr<CpuGroup> local;
    std::unique_ptr<CpuGroup> cross;
    if (mine->size() > 1) {
      MUSTER_TRY(local, within_host(fmt::format("host{}", mine - hosts.begin()), *mine));
    }
    if (mine->front() == options_.rank) {
      MUSTER_TRY(cross, tcp("between_hosts", first_ranks, options_.timeout));
    }
    return make_hierarchical_group({.hosts = hosts, .rank = options_.rank, .timeout = options_.timeout},
                                   std::move(local), std::move(cross));
  }

 private:
  int place_in(const std::vector<int>& ranks) const {
    return static_cast<int>(std::find(ranks.begin(), ranks.end(), options_.rank) - ranks.begin());
  }

  /// Shared memory if these ranks can really share it, else TCP; all of them come to the same answer.
  Result<std::unique_ptr<CpuGroup>> within_host(const std::string& name, const std::vector<int>& ranks) {
    const int me = place_in(ranks);
    // Below a hierarchy the ranks of a host are patient for a little longer than the hosts are with each
    // other, so that the rank which knows who is missing says it first.
    const bool all = ranks.size() == static_cast<std::size_t>(options_.world_size);
    const Millis timeout =
        all ? options_.timeout : options_.timeout + std::max(options_.timeout / 10, Millis(1000));
    auto shm =
        make_shm_group({.ranks = ranks, .me = me, .timeout = timeout, .make_segment = options_.make_segment},
                       exchange_through_store(store_, name, ranks, me, deadline_));
    if (shm || options_.backend == Backend::kShm) return shm;
    if (shm.error().code != ErrorCode::kUnsupported && shm.error().code != ErrorCode::kExhausted) return shm;
    return tcp(name + "_tcp", ranks, timeout);
  }

  Result<std::unique_ptr<CpuGroup>> tcp(const std::string& name, const std::vector<int>& ranks,
                                        Millis timeout) {
    const int me = place_in(ranks);
    return make_tcp_group({.ranks = ranks,
                           .me = me,
                           .timeout = timeout,
                           .address = options_.address,
                           .route_host = options_.route_host,
                           .interface = options_.interface},
                          exchange_through_store(store_, name, ranks, me, deadline_));
  }

  const CpuGroupOptions& options_;
  Store& store_;
  const Instant deadline_;
};

}  // namespace

Result<std::unique_ptr<ProcessGroup>> make_cpu_group(const CpuGroupOptions& options, Store& store) {
  if (options.world_size == 1) return make_single_group();
  MUSTER_TRY(std::unique_ptr<CpuGroup> group, Maker(options, store).make());
  group->record_in(CollectiveRecord(options.page, options.name, group->backend(), options.world_size));
  return std::unique_ptr<ProcessGroup>(std::move(group));
}

}  // namespace muster::groups
