// SPDX-License-Identifier: Apache-2.0
#include "launcher/hardware/nvml.h"

#include <algorithm>
#include <array>
#include <dlfcn.h>

#include <fmt/format.h>

#include "rendezvous/base/fail.h"

namespace muster::launcher {
namespace {

// nvmlReturn_t is an int with 0 for success, nvmlDevice_t a pointer.
constexpr int kSuccess = 0;
constexpr int kMissing = -1;
constexpr int kInsufficientSize = 7;
constexpr int kCorrected = 0, kUncorrected = 1;  // nvmlMemoryErrorType_t
constexpr int kVolatile = 0;                     // nvmlEccCounterType_t: since the driver was loaded

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

struct Utilization {  // nvmlUtilization_t
  unsigned gpu, memory;
};
struct FieldValue {  // nvmlFieldValue_t
  unsigned field, scope;
  long long timestamp, latency;
  int type, result;
  union {
    unsigned number;
    unsigned long long bytes;  // as large as the largest
  } value;
};
static_assert(sizeof(FieldValue) == 40);
constexpr unsigned kMemoryTemperature = 82;    // NVML_FI_DEV_MEMORY_TEMP
constexpr int kUnsignedInt = 1;                // nvmlValueType_t
constexpr int kSmClock = 1, kMemoryClock = 2;  // nvmlClockType_t
constexpr int kGpuSensor = 0;                  // nvmlTemperatureSensors_t

struct ProcessInfo {  // nvmlProcessInfo_v2_t
  unsigned pid;
  unsigned long long bytes;
  unsigned gpu_instance, compute_instance;
};
struct EventData {  // nvmlEventData_t
  Nvml::Device device;
  unsigned long long type, data;
  unsigned gpu_instance, compute_instance;
};
constexpr unsigned long long kXidEvent = 0x8;  // nvmlEventTypeXidCriticalError
constexpr unsigned kNoInstance = ~0U;
constexpr int kTimeout = 10;
constexpr unsigned kMostNvLinks = 18;

constexpr unsigned long long kNotAvailable = std::numeric_limits<unsigned long long>::max();

}  // namespace

template <class... Arguments>
int Nvml::call(const char* name, Arguments... arguments) const {
  const auto entry = reinterpret_cast<int (*)(Arguments...)>(::dlsym(library_.get(), name));
  return entry == nullptr ? kMissing : entry(arguments...);
}

/// 0 where this driver or GPU does not know it.
template <class Value>
Value Nvml::get(const char* name, Device device) const {
  Value value = 0;
  return call(name, device, &value) == kSuccess ? value : 0;
}

void Nvml::Close::operator()(void* library) const {
  // Also after an nvmlInit that failed: it then answers "uninitialized".
  if (const auto shutdown = reinterpret_cast<int (*)()>(::dlsym(library, "nvmlShutdown"))) shutdown();
  ::dlclose(library);
}

Result<Nvml> Nvml::open(const std::string& library) {
  const char* const file = library.empty() ? "libnvidia-ml.so.1" : library.c_str();
  std::unique_ptr<void, Close> handle(::dlopen(file, RTLD_LAZY | RTLD_LOCAL));
  if (!handle) {
    const char* reason = ::dlerror();
    return fail(ErrorCode::kNotFound, "load NVML: {}; MUSTER_NVML_LIBRARY can name the file",
                reason != nullptr ? reason : file);
  }
  Nvml out(std::move(handle));
  const int result = out.call("nvmlInit_v2");
  if (result == kMissing) return fail(ErrorCode::kUnsupported, "{} is not NVML", file);
  if (result == kSuccess) return out;
  const auto explain = reinterpret_cast<const char* (*)(int)>(::dlsym(out.library_.get(), "nvmlErrorString"));
  return fail(ErrorCode::kIo, "nvmlInit: {} ({}); does nvidia-smi work on this node?",
              explain != nullptr ? explain(result) : "the driver does not answer", result);
}

std::optional<unsigned> Nvml::count() const {
  unsigned devices = 0;
  if (call("nvmlDeviceGetCount_v2", &devices) != kSuccess) return std::nullopt;
  return devices;
}

Nvml::Device Nvml::device(unsigned index) const {
  Device out = nullptr;
  return call("nvmlDeviceGetHandleByIndex_v2", index, &out) == kSuccess ? out : nullptr;
}

std::string Nvml::text(const char* entry_name, Device device) const {
  std::array<char, 96> out{};
  return call(entry_name, device, out.data(), static_cast<unsigned>(out.size())) == kSuccess ? out.data()
                                                                                             : "";
}

std::string Nvml::pci_address(Device device) const {
  PciInfo info{};
  if (call("nvmlDeviceGetPciInfo_v3", device, &info) != kSuccess) return {};
  return fmt::format("{:04x}:{:02x}:{:02x}.0", info.domain, info.bus, info.device);
}

std::vector<std::string> Nvml::slices(Device device) const {
  std::vector<std::string> out;
  const auto most = get<unsigned>("nvmlDeviceGetMaxMigDeviceCount", device);
  for (unsigned i = 0; i < most; ++i) {
    Device slice = nullptr;
    if (call("nvmlDeviceGetMigDeviceHandleByIndex", device, i, &slice) == kSuccess)
      out.push_back(uuid(slice));
  }
  return out;
}

std::vector<Nvml::Process> Nvml::processes(Device device) const {
  std::vector<Process> out;
  std::vector<ProcessInfo> found(64);
  auto count = static_cast<unsigned>(found.size());
  const auto ask = [&] {
    return call("nvmlDeviceGetComputeRunningProcesses_v3", device, &count, found.data());
  };
  int result = ask();
  if (result == kInsufficientSize) {
    count += 16;  // some may start meanwhile
    found.resize(count);
    result = ask();
  }
  if (result != kSuccess) return out;
  found.resize(std::min<std::size_t>(found.size(), count));
  for (const ProcessInfo& process : found)
    out.push_back({process.pid, process.bytes == kNotAvailable ? 0 : process.bytes});
  return out;
}

Nvml::GpuHealth Nvml::read(int index) const {
  GpuHealth out;
  out.index = index;
  const Device gpu = device(static_cast<unsigned>(index));
  out.lost = gpu == nullptr;
  if (out.lost) return out;
  out.uuid = uuid(gpu);
  MemoryInfo memory{};
  memory.version = kMemoryInfoVersion;
  if (call("nvmlDeviceGetMemoryInfo_v2", gpu, &memory) == kSuccess) out.used_bytes = memory.used;
  out.holders = processes(gpu);
  unsigned long long errors = 0;
  if (call("nvmlDeviceGetTotalEccErrors", gpu, kUncorrected, kVolatile, &errors) == kSuccess)
    out.uncorrected_ecc = errors;
  unsigned corrected = 0, uncorrected = 0, pending = 0, failed = 0;
  if (call("nvmlDeviceGetRemappedRows", gpu, &corrected, &uncorrected, &pending, &failed) == kSuccess) {
    out.rows_failed = failed != 0;
    out.reset_wanted = pending != 0;
  }
  out.reset_wanted |= get<int>("nvmlDeviceGetRetiredPagesPendingStatus", gpu) != 0;
  const PcieLink link{get<unsigned>("nvmlDeviceGetCurrPcieLinkGeneration", gpu),
                      get<unsigned>("nvmlDeviceGetMaxPcieLinkGeneration", gpu),
                      get<unsigned>("nvmlDeviceGetCurrPcieLinkWidth", gpu),
                      get<unsigned>("nvmlDeviceGetMaxPcieLinkWidth", gpu)};
  if (link.generation != 0 && link.width != 0) out.pcie = link;
  unsigned state = 0;
  out.full_speed = call("nvmlDeviceGetPerformanceState", gpu, &state) == kSuccess && state == 0;
  const int known = call("nvmlDeviceGetCurrentClocksEventReasons", gpu, &out.throttle);
  if (known == kMissing)
    call("nvmlDeviceGetCurrentClocksThrottleReasons", gpu, &out.throttle);  // before R535
  for (unsigned link_number = 0; link_number < kMostNvLinks; ++link_number) {
    unsigned active = 0;
    if (call("nvmlDeviceGetNvLinkState", gpu, link_number, &active) != kSuccess) continue;  // it has fewer
    ++(active != 0 ? out.links.active : out.links.inactive);
  }
  return out;
}

Nvml::Figures Nvml::figures(Device device) const {
  Figures out;
  Utilization use{};
  if (call("nvmlDeviceGetUtilizationRates", device, &use) == kSuccess) {
    out.util_percent = use.gpu;
    out.memory_util_percent = use.memory;
  }
  MemoryInfo memory{};
  memory.version = kMemoryInfoVersion;
  if (call("nvmlDeviceGetMemoryInfo_v2", device, &memory) == kSuccess) {
    out.memory_used_bytes = static_cast<double>(memory.used);
    out.memory_free_bytes = static_cast<double>(memory.free);
    out.memory_total_bytes = static_cast<double>(memory.total);
  }
  const auto number = [&](double& to, const char* name, auto... arguments) {
    unsigned value = 0;
    if (call(name, device, arguments..., &value) == kSuccess) to = value;
  };
  const auto large = [&](double& to, const char* name, auto... arguments) {
    unsigned long long value = 0;
    const int result = call(name, device, arguments..., &value);
    if (result == kSuccess) to = static_cast<double>(value);
    return result;
  };
  number(out.power_w, "nvmlDeviceGetPowerUsage");
  out.power_w /= 1000;  // of milliwatts
  large(out.energy_mj, "nvmlDeviceGetTotalEnergyConsumption");
  number(out.temperature_c, "nvmlDeviceGetTemperature", kGpuSensor);
  FieldValue field{};
  field.field = kMemoryTemperature;
  if (call("nvmlDeviceGetFieldValues", device, 1, &field) == kSuccess && field.result == kSuccess &&
      field.type == kUnsignedInt)
    out.memory_temperature_c = field.value.number;
  number(out.sm_clock_mhz, "nvmlDeviceGetClockInfo", kSmClock);
  number(out.memory_clock_mhz, "nvmlDeviceGetClockInfo", kMemoryClock);
  if (large(out.clock_reasons, "nvmlDeviceGetCurrentClocksEventReasons") == kMissing)
    large(out.clock_reasons, "nvmlDeviceGetCurrentClocksThrottleReasons");  // before R535
  large(out.corrected_ecc, "nvmlDeviceGetTotalEccErrors", kCorrected, kVolatile);
  large(out.uncorrected_ecc, "nvmlDeviceGetTotalEccErrors", kUncorrected, kVolatile);
  return out;
}

std::string Nvml::driver_version() const {
  std::array<char, 80> out{};  // NVML_SYSTEM_DRIVER_VERSION_BUFFER_SIZE
  (void)call("nvmlSystemGetDriverVersion", out.data(), static_cast<unsigned>(out.size()));
  return out.data();
}

int Nvml::cuda_version() const {
  int out = 0;
  return call("nvmlSystemGetCudaDriverVersion_v2", &out) == kSuccess ? out : 0;
}

Nvml::EventSet Nvml::watch_xids(const std::vector<Device>& devices) const {
  EventSet out = nullptr;
  if (call("nvmlEventSetCreate", &out) != kSuccess) return nullptr;
  bool any = false;
  for (Device device : devices)
    if (device != nullptr &&
        (get<unsigned long long>("nvmlDeviceGetSupportedEventTypes", device) & kXidEvent) != 0)
      any |= call("nvmlDeviceRegisterEvents", device, kXidEvent, out) == kSuccess;
  return any ? out : nullptr;
}

Nvml::Wait Nvml::wait_for_xid(EventSet events, std::chrono::milliseconds timeout) const {
  EventData data{};
  const int result = call("nvmlEventSetWait_v2", events, &data, static_cast<unsigned>(timeout.count()));
  if (result == kTimeout) return {};
  if (result != kSuccess) return {std::nullopt, true};
  if (data.type != kXidEvent) return {};
  XidEvent out{data.device, static_cast<int>(data.data), std::nullopt};
  if (data.gpu_instance != kNoInstance) out.instance = data.gpu_instance;
  return {out, false};
}

}  // namespace muster::launcher
