// SPDX-License-Identifier: Apache-2.0
// KernelLog: what the kernel wrote about GPUs (the NVIDIA driver's Xid lines) and about processes that it
// killed for memory, from the moment this was opened. Where /dev/kmsg may not be read it is empty, which is
// no error. The parsers are pure; one thread. Owned by PostMortem. Source: dev-kmsg in the kernel's ABI
// documentation, NVIDIA's "XID Errors".
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "rendezvous/base/unique_fd.h"

namespace muster::launcher {

struct XidMeaning {
  int number = 0;
  std::string_view text = {};  // "GPU has fallen off the bus"
  bool hardware = false;  // memory, NVLink, bus, the GPU's own processors, power: not the program's fault
};
/// Of a number of the NVIDIA driver's error reports (Xid) that training meets; empty: not in the table. Pure.
/// Source: "XID Errors" and "Analyzing Xid Errors with the Xid Catalog" of NVIDIA's GPU deployment
/// documentation; the meaning of a number is the same in all versions of the driver.
[[nodiscard]] XidMeaning meaning_of_xid(int number);

/// The driver tidies up after another error, or after a process that was killed: no evidence of a fault.
[[nodiscard]] constexpr bool is_cleanup_xid(int number) {
  return number == 45;
}

struct Xid {
  int number = 0;
  std::string device;  // PCI address, "0000:3b:00"
  int pid = 0;         // of the process it happened to; 0: the line does not say
};
/// "NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, name=python, GPU has fallen off the bus.", and what gpu_watch.h
/// makes of NVML's events.
[[nodiscard]] std::optional<Xid> parse_xid(std::string_view line);

/// The pid of "Memory cgroup out of memory: Killed process 1234 (python) ..." and its relatives.
[[nodiscard]] std::optional<int> parse_memory_kill(std::string_view line);

class KernelLog {
 public:
  /// From now on; of a file that is not the kernel's, what is appended to it.
  explicit KernelLog(const std::string& path = "/dev/kmsg");

  /// The lines that are new, without what the kernel puts before them.
  [[nodiscard]] std::vector<std::string> take_new();

 private:
  UniqueFd file_;
};

}  // namespace muster::launcher
