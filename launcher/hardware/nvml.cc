// SPDX-License-Identifier: Apache-2.0
#include "launcher/hardware/nvml.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <dlfcn.h>
#include <limits>

#include <fmt/format.h>

namespace muster::launcher {
namespace {

// nvmlReturn_t is an int with 0 for success, nvmlDevice_t a pointer.
using Device = Nvml::Device;
constexpr int kSuccess = 0;
constexpr int kInsufficientSize = 7;
constexpr int kUncorrected = 1;  // nvmlMemoryErrorType_t
constexpr int kVolatile = 0;     // nvmlEccCounterType_t: since the driver was loaded

struct PciInfo {
  char legacy_address[16];
  unsigned domain, bus, device, device_id, subsystem_id;
  char address[32];
};

struct MemoryInfo {  // nvmlMemory_v2_t: without what the driver keeps for itself
  unsigned version;
  unsigned long long total, reserved, free, used;
};
constexpr unsigned kMemoryInfoVersion = sizeof(MemoryInfo) | 2U << 24;

struct ProcessInfo {  // nvmlProcessInfo_v2_t
  unsigned pid;
  unsigned long long bytes;
  unsigned gpu_instance, compute_instance;
};
struct EventData {  // nvmlEventData_t
  Device device;
  unsigned long long type, data;
  unsigned gpu_instance, compute_instance;
};
constexpr unsigned long long kXidEvent = 0x8;  // nvmlEventTypeXidCriticalError
constexpr unsigned kNoInstance = ~0U;
constexpr int kTimeout = 10;
constexpr unsigned kMostNvLinks = 18;

constexpr unsigned long long kNotAvailable = std::numeric_limits<unsigned long long>::max();

}  // namespace

template <class Function>
Function Nvml::entry(const char* name) const {
  return reinterpret_cast<Function>(::dlsym(library_.get(), name));
}

void Nvml::Close::operator()(void* library) const {
  // Also after an nvmlInit that failed: it then answers "uninitialized".
  if (const auto shutdown = reinterpret_cast<int (*)()>(::dlsym(library, "nvmlShutdown"))) shutdown();
  ::dlclose(library);
}

Result<Nvml> Nvml::open(const std::string& library) {
  std::unique_ptr<void, Close> handle(::dlopen(library.c_str(), RTLD_LAZY | RTLD_LOCAL));
  if (!handle) {
    const char* reason = ::dlerror();
    return fail(ErrorCode::kNotFound, fmt::format("load NVML: {}; MUSTER_NVML_LIBRARY can name the file",
                                                  reason != nullptr ? reason : library.c_str()));
  }
  Nvml out(std::move(handle));
  const auto init = out.entry<int (*)()>("nvmlInit_v2");
  if (init == nullptr) return fail(ErrorCode::kUnsupported, fmt::format("{} is not NVML", library));
  if (const int result = init(); result != kSuccess) {
    const auto explain = out.entry<const char* (*)(int)>("nvmlErrorString");
    return fail(ErrorCode::kIo,
                fmt::format("nvmlInit: {} ({}); does nvidia-smi work on this node?",
                            explain != nullptr ? explain(result) : "the driver does not answer", result));
  }
  return out;
}

std::optional<unsigned> Nvml::count() const {
  unsigned devices = 0;
  const auto ask = entry<int (*)(unsigned*)>("nvmlDeviceGetCount_v2");
  if (ask == nullptr || ask(&devices) != kSuccess) return std::nullopt;
  return devices;
}

std::string Nvml::driver_version() const {
  std::array<char, 96> out{};
  const auto ask = entry<int (*)(char*, unsigned)>("nvmlSystemGetDriverVersion");
  return ask != nullptr && ask(out.data(), out.size()) == kSuccess ? out.data() : "";
}

Device Nvml::device(unsigned index) const {
  Device out = nullptr;
  const auto ask = entry<int (*)(unsigned, Device*)>("nvmlDeviceGetHandleByIndex_v2");
  return ask != nullptr && ask(index, &out) == kSuccess ? out : nullptr;
}

std::string Nvml::text(const char* entry_name, Device device) const {
  std::array<char, 96> out{};
  const auto ask = entry<int (*)(Device, char*, unsigned)>(entry_name);
  return ask != nullptr && ask(device, out.data(), out.size()) == kSuccess ? out.data() : "";
}

std::string Nvml::uuid(Device device) const {
  return text("nvmlDeviceGetUUID", device);
}

std::string Nvml::name(Device device) const {
  return text("nvmlDeviceGetName", device);
}

std::string Nvml::pci_address(Device device) const {
  PciInfo info{};
  const auto ask = entry<int (*)(Device, PciInfo*)>("nvmlDeviceGetPciInfo_v3");
  if (ask == nullptr || ask(device, &info) != kSuccess) return {};
  return fmt::format("{:04x}:{:02x}:{:02x}.0", info.domain, info.bus, info.device);
}

std::vector<std::string> Nvml::slices(Device device) const {
  std::vector<std::string> out;
  unsigned most = 0;
  const auto ask_most = entry<int (*)(Device, unsigned*)>("nvmlDeviceGetMaxMigDeviceCount");
  const auto ask = entry<int (*)(Device, unsigned, Device*)>("nvmlDeviceGetMigDeviceHandleByIndex");
  if (ask_most == nullptr || ask == nullptr || ask_most(device, &most) != kSuccess) return out;
  for (unsigned i = 0; i < most; ++i) {
    Device slice = nullptr;
    if (ask(device, i, &slice) == kSuccess) out.push_back(uuid(slice));
  }
  return out;
}

std::optional<std::uint64_t> Nvml::used_bytes(Device device) const {
  MemoryInfo info{};
  info.version = kMemoryInfoVersion;
  const auto ask = entry<int (*)(Device, MemoryInfo*)>("nvmlDeviceGetMemoryInfo_v2");
  if (ask == nullptr || ask(device, &info) != kSuccess) return std::nullopt;
  return info.used;
}

std::vector<Nvml::Process> Nvml::processes(Device device) const {
  std::vector<Process> out;
  const auto ask = entry<int (*)(Device, unsigned*, ProcessInfo*)>("nvmlDeviceGetComputeRunningProcesses_v3");
  if (ask == nullptr) return out;
  std::vector<ProcessInfo> found(64);
  auto count = static_cast<unsigned>(found.size());
  int result = ask(device, &count, found.data());
  if (result == kInsufficientSize) {
    count += 16;  // some may start meanwhile
    found.resize(count);
    result = ask(device, &count, found.data());
  }
  if (result != kSuccess) return out;
  found.resize(std::min<std::size_t>(found.size(), count));
  for (const ProcessInfo& process : found)
    out.push_back({process.pid, process.bytes == kNotAvailable ? 0 : process.bytes});
  return out;
}

std::optional<std::uint64_t> Nvml::uncorrected_ecc_errors(Device device) const {
  unsigned long long errors = 0;
  const auto ask = entry<int (*)(Device, int, int, unsigned long long*)>("nvmlDeviceGetTotalEccErrors");
  if (ask == nullptr || ask(device, kUncorrected, kVolatile, &errors) != kSuccess) return std::nullopt;
  return errors;
}

std::optional<bool> Nvml::retired_pages_pending(Device device) const {
  int pending = 0;
  const auto ask = entry<int (*)(Device, int*)>("nvmlDeviceGetRetiredPagesPendingStatus");
  if (ask == nullptr || ask(device, &pending) != kSuccess) return std::nullopt;
  return pending != 0;
}

std::optional<Nvml::RemappedRows> Nvml::remapped_rows(Device device) const {
  unsigned corrected = 0, uncorrected = 0, pending = 0, failed = 0;
  const auto ask =
      entry<int (*)(Device, unsigned*, unsigned*, unsigned*, unsigned*)>("nvmlDeviceGetRemappedRows");
  if (ask == nullptr || ask(device, &corrected, &uncorrected, &pending, &failed) != kSuccess)
    return std::nullopt;
  return RemappedRows{pending != 0, failed != 0};
}

std::optional<Nvml::PcieLink> Nvml::pcie_link(Device device) const {
  PcieLink out;
  const auto read = [&](const char* name, unsigned& value) {
    const auto ask = entry<int (*)(Device, unsigned*)>(name);
    return ask != nullptr && ask(device, &value) == kSuccess;
  };
  if (!read("nvmlDeviceGetCurrPcieLinkGeneration", out.generation) ||
      !read("nvmlDeviceGetMaxPcieLinkGeneration", out.most_generation) ||
      !read("nvmlDeviceGetCurrPcieLinkWidth", out.width) ||
      !read("nvmlDeviceGetMaxPcieLinkWidth", out.most_width))
    return std::nullopt;
  return out;
}

std::optional<unsigned> Nvml::performance_state(Device device) const {
  unsigned state = 0;
  const auto ask = entry<int (*)(Device, unsigned*)>("nvmlDeviceGetPerformanceState");
  if (ask == nullptr || ask(device, &state) != kSuccess) return std::nullopt;
  return state;
}

std::optional<unsigned long long> Nvml::throttle_reasons(Device device) const {
  unsigned long long reasons = 0;
  using Ask = int (*)(Device, unsigned long long*);
  auto ask = entry<Ask>("nvmlDeviceGetCurrentClocksEventReasons");
  if (ask == nullptr) ask = entry<Ask>("nvmlDeviceGetCurrentClocksThrottleReasons");  // before R535
  if (ask == nullptr || ask(device, &reasons) != kSuccess) return std::nullopt;
  return reasons;
}

Nvml::NvLinks Nvml::nv_links(Device device) const {
  NvLinks out;
  const auto ask = entry<int (*)(Device, unsigned, unsigned*)>("nvmlDeviceGetNvLinkState");
  for (unsigned link = 0; ask != nullptr && link < kMostNvLinks; ++link) {
    unsigned active = 0;
    if (ask(device, link, &active) != kSuccess) continue;  // the GPU has fewer
    ++(active != 0 ? out.active : out.inactive);
  }
  return out;
}

Nvml::EventSet Nvml::watch_xids(const std::vector<Device>& devices) const {
  const auto create = entry<int (*)(EventSet*)>("nvmlEventSetCreate");
  const auto supported = entry<int (*)(Device, unsigned long long*)>("nvmlDeviceGetSupportedEventTypes");
  const auto add = entry<int (*)(Device, unsigned long long, EventSet)>("nvmlDeviceRegisterEvents");
  EventSet out = nullptr;
  if (create == nullptr || supported == nullptr || add == nullptr || create(&out) != kSuccess) return nullptr;
  bool any = false;
  for (Device device : devices) {
    unsigned long long types = 0;
    if (device == nullptr || supported(device, &types) != kSuccess || (types & kXidEvent) == 0) continue;
    any |= add(device, kXidEvent, out) == kSuccess;
  }
  return any ? out : nullptr;
}

Nvml::Wait Nvml::wait_for_xid(EventSet events, std::chrono::milliseconds patience) const {
  const auto ask = entry<int (*)(EventSet, EventData*, unsigned)>("nvmlEventSetWait_v2");
  EventData data{};
  const int result =
      ask == nullptr ? kTimeout + 1 : ask(events, &data, static_cast<unsigned>(patience.count()));
  if (result == kTimeout) return {};
  if (result != kSuccess) return {std::nullopt, true};
  if (data.type != kXidEvent) return {};
  XidEvent out{data.device, static_cast<int>(data.data), std::nullopt};
  if (data.gpu_instance != kNoInstance) out.instance = data.gpu_instance;
  return {out, false};
}

}  // namespace muster::launcher
