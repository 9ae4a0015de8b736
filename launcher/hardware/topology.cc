// SPDX-License-Identifier: Apache-2.0
#include "launcher/hardware/topology.h"

#include <algorithm>
#include <memory>
#include <sys/syscall.h>
#include <unistd.h>

#include <hwloc.h>

#include "rendezvous/base/fail.h"
#include "rendezvous/base/text.h"

// hwloc asks udev for the names of disks, which are not read here. Debian has no archive of libudev and
// muster is one file, so its five entries are answered here: there is no udev. Hidden, they shadow no real
// one.
extern "C" {
struct udev;
struct udev_device;
udev* udev_new() {
  return nullptr;
}
udev* udev_unref(udev* /*unused*/) {
  return nullptr;
}
udev_device* udev_device_new_from_subsystem_sysname(udev* /*unused*/, const char* /*unused*/,
                                                    const char* /*unused*/) {
  return nullptr;
}
udev_device* udev_device_unref(udev_device* /*unused*/) {
  return nullptr;
}
const char* udev_device_get_property_value(udev_device* /*unused*/, const char* /*unused*/) {
  return nullptr;
}
}

namespace muster::launcher {
namespace {

struct Destroy {
  void operator()(hwloc_topology* topology) const { hwloc_topology_destroy(topology); }
};
using Handle = std::unique_ptr<hwloc_topology, Destroy>;

CpuSet to_set(hwloc_const_bitmap_t bitmap) {
  CpuSet out;
  if (bitmap == nullptr) return out;
  for (int i = hwloc_bitmap_first(bitmap); i >= 0; i = hwloc_bitmap_next(bitmap, i)) out.push_back(i);
  return out;
}

int socket_of(hwloc_topology* topology, hwloc_obj* object) {
  const hwloc_obj* package = hwloc_get_ancestor_obj_by_type(topology, HWLOC_OBJ_PACKAGE, object);
  if (package == nullptr) return 0;
  return package->os_index == HWLOC_UNKNOWN_INDEX ? static_cast<int>(package->logical_index)
                                                  : static_cast<int>(package->os_index);
}

int last_cache(const hwloc_obj* object) {
  int out = -1;
  for (; object != nullptr; object = object->parent)
    if (hwloc_obj_type_is_dcache(object->type) != 0) out = static_cast<int>(object->gp_index);
  return out;
}

Result<Handle> load() {
  hwloc_topology_t raw = nullptr;
  if (hwloc_topology_init(&raw) != 0) return fail(ErrorCode::kExhausted, "hwloc: no memory for a topology");
  Handle topology(raw);
  // Linux tells all that is read here. hwloc's x86 part would move this thread from CPU to CPU to ask each,
  // which waits for a turn on every one: 50 ms on two busy ones, against 1 ms.
  hwloc_topology_set_components(raw, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST, "x86");
#if HWLOC_API_VERSION >= 0x00020800
  hwloc_topology_set_flags(raw, HWLOC_TOPOLOGY_FLAG_NO_DISTANCES | HWLOC_TOPOLOGY_FLAG_NO_MEMATTRS |
                                    HWLOC_TOPOLOGY_FLAG_NO_CPUKINDS);
#endif
  if (hwloc_topology_load(raw) != 0)
    return fail(ErrorCode::kUnsupported,
                "hwloc cannot read this machine's topology; is /sys mounted, and is HWLOC_XMLFILE right if "
                "it is set?");
  return topology;
}

}  // namespace

Result<Topology> read_topology(const CpuSet& affinity) {
  MUSTER_TRY(const Handle handle, load());
  hwloc_topology* const topology = handle.get();
  Topology out;
  out.this_machine = hwloc_topology_is_thissystem(topology) != 0;
  // Docker's default seccomp profile answers EPERM to this and to set_mempolicy alike.
  out.memory_policy = ::syscall(SYS_get_mempolicy, nullptr, nullptr, 0UL, nullptr, 0UL) == 0;
  out.numa_nodes = hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_NUMANODE);
  out.sockets = std::max(1, hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_PACKAGE));
  const CpuSet allowed = to_set(hwloc_topology_get_allowed_cpuset(topology));
  const bool masked = out.this_machine && !affinity.empty();
  const CpuSet usable = masked ? intersection(allowed, affinity) : allowed;
  // Where the kernel does not tell which threads share a core, each is one.
  const auto type = hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_CORE) > 0 ? HWLOC_OBJ_CORE : HWLOC_OBJ_PU;
  const int count = hwloc_get_nbobjs_by_type(topology, type);
  for (int i = 0; i < count; ++i) {
    hwloc_obj* object = hwloc_get_obj_by_type(topology, type, static_cast<unsigned>(i));
    Core core;
    core.cpus = intersection(to_set(object->cpuset), usable);
    if (core.cpus.empty()) continue;
    const int node = hwloc_bitmap_first(object->nodeset);  // of several (DRAM and HBM, say) the first counts
    core.numa_node = node < 0 ? 0 : node;
    core.socket = socket_of(topology, object);
    core.cache = last_cache(object);
    out.cores.push_back(std::move(core));
  }
  std::ranges::stable_sort(out.cores, {}, &Core::numa_node);
  if (out.cores.empty())
    return fail(ErrorCode::kUnsupported,
                "this machine's topology has no CPU that muster may use: the mask is {}, hwloc sees {}; look "
                "at taskset -p $$ and the cgroup's cpuset.cpus",
                to_ranges(affinity), to_ranges(allowed));
  return out;
}

}  // namespace muster::launcher
