// SPDX-License-Identifier: Apache-2.0
// Nvml: NVIDIA's management library, loaded at run time, closed with the object. Only the entries that muster
// reads; none of them creates a CUDA context or changes a device. A value that this driver or GPU does not
// know is nothing, not an error. MUSTER_NVML_LIBRARY names the library where the loader does not find it.
// Source: NVML API reference.
#pragma once

#include <chrono>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <muster/result.h>

namespace muster::launcher {

class Nvml {
 public:
  using Device = void*;
  struct Process {
    unsigned pid = 0;
    std::uint64_t bytes = 0;   // 0 where the driver does not tell
    std::string program = {};  // left to the caller
  };
  struct PcieLink {
    unsigned generation = 0, most_generation = 0;  // the most that the GPU and its slot can do
    unsigned width = 0, most_width = 0;            // lanes
  };
  struct NvLinks {
    unsigned active = 0, inactive = 0;
  };
  /// Why clocks are lower than they could be.
  enum Throttle : unsigned long long {
    kHardwareSlowdown = 0x8,  // temperature, power brake or a fast drop of the supply's voltage
    kSoftwareThermal = 0x20,
    kHardwareThermal = 0x40,
    kPowerBrake = 0x80,  // the node's power supply asks for it
  };
  /// What the driver knows of a GPU's health.
  struct GpuHealth {
    int index = 0;  // nvidia-smi's
    std::string uuid;
    bool lost = false;  // the driver lists it and cannot open it
    std::uint64_t used_bytes = 0;
    std::vector<Process> holders;
    unsigned long long uncorrected_ecc = 0;  // errors since the driver was loaded
    bool rows_failed = false;                // no spare row was left for a broken one
    bool reset_wanted = false;               // a repair waits for the next reset of the GPU
    std::optional<PcieLink> pcie;
    bool full_speed = false;          // performance state 0: at rest others lower the link's generation, too
    unsigned long long throttle = 0;  // Throttle's bits, and others
    NvLinks links;
  };
  /// What a GPU does at one moment, as plain numbers, for a page of memory that processes share. NaN: this
  /// driver or GPU does not tell.
  struct Figures {
    static constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();
    double util_percent = kUnknown;         // share of the last sampling period in which a kernel ran
    double memory_util_percent = kUnknown;  // likewise, in which memory was read or written
    double memory_used_bytes = kUnknown, memory_free_bytes = kUnknown, memory_total_bytes = kUnknown;
    double power_w = kUnknown;
    double energy_mj = kUnknown;  // since the driver was loaded
    double temperature_c = kUnknown, memory_temperature_c = kUnknown;
    double sm_clock_mhz = kUnknown, memory_clock_mhz = kUnknown;
    double clock_reasons = kUnknown;                              // Throttle's bits, and others
    double corrected_ecc = kUnknown, uncorrected_ecc = kUnknown;  // errors since the driver was loaded
    double xid = kUnknown;  // left to the caller: of the last fault; 0: none
  };
  using EventSet = void*;  // lives as long as the library is open
  struct XidEvent {
    Device device = nullptr;
    int number = 0;
    std::optional<unsigned> instance;  // GPU instance of MIG
  };
  struct Wait {
    std::optional<XidEvent> xid;  // nothing: the time has passed
    bool failed = false;
  };

  /// An empty name: where the loader finds it. kNotFound: no such library. kUnsupported: it is not NVML. kIo:
  /// the driver does not answer; the text has NVML's reason.
  [[nodiscard]] static Result<Nvml> open(const std::string& library);

  [[nodiscard]] std::optional<unsigned> count() const;
  /// nullptr: this device cannot be opened, for example because it has fallen off the bus.
  [[nodiscard]] Device device(unsigned index) const;
  /// Empty: unknown.
  [[nodiscard]] std::string uuid(Device device) const { return text("nvmlDeviceGetUUID", device); }
  [[nodiscard]] std::string name(Device device) const { return text("nvmlDeviceGetName", device); }
  [[nodiscard]] std::string pci_address(Device device) const;          // as sysfs writes it, "0000:3b:00.0"
  [[nodiscard]] std::vector<std::string> slices(Device device) const;  // UUIDs of its MIG devices

  [[nodiscard]] std::vector<Process> processes(Device device) const;  // that hold memory for computing
  [[nodiscard]] GpuHealth read(int index) const;
  [[nodiscard]] Figures figures(Device device) const;

  /// "580.65.06"; empty: unknown.
  [[nodiscard]] std::string driver_version() const;
  /// The newest CUDA that the driver runs, as CUDA writes it: 13000 for 13.0; 0: unknown.
  [[nodiscard]] int cuda_version() const;

  /// Xid events of those devices (nullptr: none there) that have them; nullptr: none has.
  [[nodiscard]] EventSet watch_xids(const std::vector<Device>& devices) const;
  /// Blocks, and cannot be woken but by an event.
  [[nodiscard]] Wait wait_for_xid(EventSet events, std::chrono::milliseconds timeout) const;

 private:
  struct Close {
    void operator()(void* library) const;
  };
  explicit Nvml(std::unique_ptr<void, Close> library) : library_(std::move(library)) {}
  /// NVML's result; kMissing where this driver lacks the entry.
  template <class... Arguments>
  int call(const char* name, Arguments... arguments) const;
  template <class Value>
  [[nodiscard]] Value get(const char* name, Device device) const;
  [[nodiscard]] std::string text(const char* entry_name, Device device) const;

  std::unique_ptr<void, Close> library_;
};

}  // namespace muster::launcher
