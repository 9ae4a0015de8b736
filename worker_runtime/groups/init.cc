// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <mutex>

#include <fmt/format.h>

#include <muster/file_store.h>
#include <muster/init.h>
#include <muster/prefix_store.h>
#include <muster/store_server.h>
#include <muster/tcp_store.h>

#include "rendezvous/base/clock.h"
#include "rendezvous/base/env_contract.h"
#include "rendezvous/base/fail.h"
#include "worker_runtime/core/placement.h"
#include "worker_runtime/core/runtime_page_map.h"
#include "worker_runtime/groups/base/collective.h"
#include "worker_runtime/groups/base/meeting.h"
#include "worker_runtime/groups/make_cpu_group.h"
#include "worker_runtime/groups/nccl/nccl_group.h"

namespace muster {
namespace {

/// milliseconds::max(), "for ever", would overflow the clock, and poll() knows no more than 24 days.
InitOptions with_possible_timeout(InitOptions options) {
  options.timeout = std::min<Millis>(options.timeout, std::chrono::days(20));
  return options;
}

/// The store itself, before any prefix, and the server where this process hosts it.
Result<std::shared_ptr<Store>> open_store(const Placement& placement, Millis timeout,
                                          std::shared_ptr<void>& hosted_server) {
  if (placement.store == Placement::StoreKind::kFile)
    return open_file_store(placement.path, placement.world_size);
  if (placement.hosts_server) {
    // The server of an earlier init() of this process, where its Context still holds it.
    static std::mutex mutex;
    static std::weak_ptr<StoreServer> earlier;
    const std::lock_guard lock(mutex);
    std::shared_ptr<StoreServer> server = earlier.lock();
    if (server == nullptr || server->port() != placement.port) {
      MUSTER_TRY(server, StoreServer::start({.host = "", .port = placement.port}));
    }
    earlier = server;
    hosted_server = std::move(server);
  }
  return TcpStore::connect({.host = placement.host, .port = placement.port, .timeout = timeout});
}

/// `prefix`: of the group's keys in the store.
Result<std::unique_ptr<ProcessGroup>> make_group(const InitOptions& options, const Placement& placement,
                                                 const std::shared_ptr<Store>& all, const std::string& prefix,
                                                 const GroupName& name) {
  // A world of one needs no store, but an NCCL group is made through one.
  const auto store = make_prefix_store(prefix, all != nullptr ? all : make_hash_store());
  if (options.backend == Backend::kNccl) {
    if (placement.world_size == 1) {
      MUSTER_TRY(std::shared_ptr<nccl::NcclDevice> gpu, nccl::make_cuda_device(options.cuda_device));
      return nccl::make_single_group(std::move(gpu), options.cuda_stream);
    }
    return make_nccl_group(*store, placement.rank, placement.world_size, options.cuda_device,
                           options.cuda_stream, options.timeout, name);
  }
  const Environment environment = current_environment();
  const auto address = lookup(environment, "MUSTER_ADDRESS");
  return groups::make_cpu_group(
      {.backend = options.backend,
       .rank = placement.rank,
       .world_size = placement.world_size,
       .timeout = options.timeout,
       .host_id = groups::host_id(environment),
       .address = std::string(address.value_or("")),
       .route_host = placement.host,
       .interface = std::string(lookup(environment, env::kGlooInterface).value_or("")),
       .name = name.text,
       .page = name.page},
      *store);
}

/// Everybody says on which host it is: nobody goes on before all have come, and who is missing is named.
Result<void> gather(const Placement& placement, Store& store, Instant deadline, Context& context) {
  const auto exchange = groups::exchange_through_store(
      store, "gather", groups::all_ranks(placement.world_size), placement.rank, deadline);
  MUSTER_TRY(const auto ids, exchange(groups::host_id(current_environment())));
  for (const auto& ranks : groups::group_by_host(ids)) {
    const auto place = std::find(ranks.begin(), ranks.end(), placement.rank);
    if (place == ranks.end()) continue;
    context.local_rank = placement.local_rank.value_or(static_cast<int>(place - ranks.begin()));
    context.local_world_size = placement.local_world_size.value_or(static_cast<int>(ranks.size()));
  }
  return {};
}

/// The store, this meeting of the ranks in it, and which of them are on this host.
Result<void> come_together(const Placement& placement, Millis timeout,
                           const std::shared_ptr<RuntimePageMap>& page, Context& context) {
  const Instant deadline = SteadyClock::now() + timeout;
  MUSTER_TRY(const auto store, open_store(placement, timeout, context.hosted_server));
  mark(page, PageMark::kStoreConnected);
  const auto meetings = make_prefix_store("muster/meet", store);
  MUSTER_TRY(const auto name, groups::meet(*meetings, placement.rank, placement.world_size, deadline));
  // After a restart, or when a program calls init() again, the keys of the earlier meeting are still there.
  context.store = make_prefix_store("muster/" + name, store);
  context.store->set_timeout(timeout);
  MUSTER_OK(gather(placement, *context.store, deadline, context));
  mark(page, PageMark::kGathered);
  return {};
}

}  // namespace

Result<Backend> parse_backend(std::string_view name) {
  if (name == "auto" || name == "gloo") return Backend::kAuto;
  if (name == "shm") return Backend::kShm;
  if (name == "tcp") return Backend::kTcp;
  if (name == "nccl") return Backend::kNccl;
  if (name == "mpi" || name == "ucc")
    return invalid(
        "backend {}: muster has no such group; use nccl on GPUs, auto (shared memory and TCP, as gloo) on "
        "the CPU, and start the program with muster or srun instead of mpirun",
        name);
  return invalid("backend '{}': not auto, shm, tcp, nccl or gloo", name);
}

Result<Context> init(const InitOptions& wanted) {
  const InitOptions options = with_possible_timeout(wanted);
  const auto page = RuntimePageMap::open();
  mark(page, PageMark::kInitBegun);
  MUSTER_TRY(const Placement placement, find_placement(options.init_method, current_environment()));
  Context context;
  context.rank = placement.rank;
  context.world_size = placement.world_size;
  context.local_rank = placement.local_rank.value_or(0);
  context.local_world_size = placement.local_world_size.value_or(1);
  context.restart_count = placement.restart_count;
  if (placement.store != Placement::StoreKind::kNone) {
    if (auto together = come_together(placement, options.timeout, page, context); !together)
      return fail(fmt::format("init of rank {} of {}", placement.rank, placement.world_size),
                  std::move(together).error());
  }
  MUSTER_TRY(context.group, make_group(options, placement, context.store, "group/default",
                                       {.text = "default", .page = page, .tells_start = true}));
  mark(page, PageMark::kGroupReady);
  if (page) page->announce();
  return context;
}

Result<std::unique_ptr<ProcessGroup>> new_group(const Context& context, std::string_view name,
                                                const InitOptions& wanted) {
  const InitOptions options = with_possible_timeout(wanted);
  if (context.store == nullptr && context.world_size != 1)
    return invalid("new_group {}: the context has no store", name);
  Placement placement;
  placement.rank = context.rank;
  placement.world_size = context.world_size;
  // Only to find the best network interface; the store is there already.
  if (const auto again = find_placement(options.init_method, current_environment()))
    placement.host = again->host;
  // Counted by each rank for itself: its n-th group of a name is everybody's n-th.
  const std::string prefix = fmt::format("group/named/{}/", name),
                    made = fmt::format("made/{}", context.rank);
  MUSTER_TRY(const auto number,
             context.store ? context.store->add(prefix + made, 1) : Result<std::int64_t>(0));
  auto group = make_group(options, placement, context.store, prefix + std::to_string(number),
                          {.text = std::string(name), .page = RuntimePageMap::open()});
  if (!group) return fail(fmt::format("new_group {}", name), std::move(group).error());
  return group;
}

}  // namespace muster
