// SPDX-License-Identifier: Apache-2.0
#include "launcher/gpus.h"

#include <algorithm>
#include <dirent.h>
#include <dlfcn.h>
#include <memory>
#include <optional>
#include <sched.h>
#include <unistd.h>

#include "launcher/nproc.h"

namespace muster::launcher {
namespace {

// The few NVML entries needed; nvmlReturn_t is an int with 0 for success, nvmlDevice_t a pointer.
using NvmlInit = int (*)();
using NvmlShutdown = int (*)();
using NvmlCount = int (*)(unsigned*);
using NvmlHandle = int (*)(unsigned, void**);
using NvmlUuid = int (*)(void*, char*, unsigned);

std::optional<std::vector<std::string>> ask_nvml() {
  struct Close {
    void operator()(void* library) const { ::dlclose(library); }
  };
  const std::unique_ptr<void, Close> library(::dlopen("libnvidia-ml.so.1", RTLD_LAZY | RTLD_LOCAL));
  if (!library) return std::nullopt;
  const auto init = reinterpret_cast<NvmlInit>(::dlsym(library.get(), "nvmlInit_v2"));
  const auto shutdown = reinterpret_cast<NvmlShutdown>(::dlsym(library.get(), "nvmlShutdown"));
  const auto count = reinterpret_cast<NvmlCount>(::dlsym(library.get(), "nvmlDeviceGetCount_v2"));
  const auto handle = reinterpret_cast<NvmlHandle>(::dlsym(library.get(), "nvmlDeviceGetHandleByIndex_v2"));
  const auto uuid = reinterpret_cast<NvmlUuid>(::dlsym(library.get(), "nvmlDeviceGetUUID"));
  if (!init || !shutdown || !count || !handle || !uuid || init() != 0) return std::nullopt;
  unsigned devices = 0;
  std::vector<std::string> out;
  const bool counted = count(&devices) == 0;
  for (unsigned i = 0; counted && i < devices; ++i) {
    void* device = nullptr;
    char text[96] = {};
    const bool named = handle(i, &device) == 0 && uuid(device, text, sizeof text) == 0;
    out.emplace_back(named ? text : "");
  }
  shutdown();
  if (!counted) return std::nullopt;
  return out;
}

std::vector<std::string> list_directory(const std::string& path) {
  std::vector<std::string> out;
  DIR* directory = ::opendir(path.c_str());
  if (directory == nullptr) return out;
  while (const dirent* entry = ::readdir(directory))
    if (entry->d_name[0] != '.') out.emplace_back(entry->d_name);
  ::closedir(directory);
  std::sort(out.begin(), out.end());  // PCI addresses: the order of CUDA_DEVICE_ORDER=PCI_BUS_ID
  return out;
}

bool exists(const char* path) {
  return ::access(path, F_OK) == 0;
}

}  // namespace

std::vector<std::string> find_gpus(const std::string& proc_gpus) {
  // Without a device node there is nothing for NVML to find, and looking for the library costs more than
  // asking here.
  if (exists("/dev/nvidiactl") || exists("/dev/dxg"))
    if (auto gpus = ask_nvml()) return *gpus;
  return std::vector<std::string>(list_directory(proc_gpus).size());
}

std::vector<std::string> gpu_addresses(const std::string& proc_gpus) {
  return list_directory(proc_gpus);
}

int count_gpus(const Environment& environment) {
  const auto visible = lookup(environment, "CUDA_VISIBLE_DEVICES");
  if (visible && visible->empty()) return 0;
  const std::vector<std::string> gpus = find_gpus();
  return count_visible(gpus, visible);
}

int count_cpus() {
  cpu_set_t set;
  if (::sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
  const long online = ::sysconf(_SC_NPROCESSORS_ONLN);  // more CPUs than cpu_set_t holds
  return online > 0 ? static_cast<int>(online) : 1;
}

}  // namespace muster::launcher
