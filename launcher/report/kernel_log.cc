// SPDX-License-Identifier: Apache-2.0
#include "launcher/report/kernel_log.h"

#include <algorithm>
#include <charconv>
#include <fcntl.h>
#include <unistd.h>

#include "launcher/text/line_splitter.h"
#include "rendezvous/base/syscall.h"

namespace muster::launcher {

namespace {

constexpr auto kXids = std::to_array<XidMeaning>({
    {8, "the GPU stopped processing"},
    {11, "corrupt or invalid commands from the program"},
    {13, "exception in the compute engine, often an access out of bounds"},
    {31, "memory page fault, often an address of the program's that is not mapped"},
    {32, "corrupt or invalid commands from the program"},
    {38, "error of the driver's firmware"},
    {43, "the program's work was ended after an error of its own"},
    {45, "cleanup after another error, or after a killed process"},
    {48, "uncorrectable memory error (double bit ECC)", true},
    {54, "auxiliary power is not connected", true},
    {61, "breakpoint of an internal micro-controller", true},
    {62, "halt of an internal micro-controller", true},
    {63, "a memory page was retired or a row remapped", true},
    {64, "a memory page could not be retired or a row not remapped", true},
    {69, "error in the graphics engine's class"},
    {74, "NVLink error", true},
    {79, "GPU has fallen off the bus", true},
    {92, "high rate of corrected memory errors", true},
    {94, "contained memory error: one program is lost", true},
    {95, "uncontained memory error: all programs on the GPU are lost", true},
    {109, "timeout of a context switch"},
    {110, "security fault"},
    {119, "the GPU's system processor (GSP) does not answer", true},
    {120, "error of the GPU's system processor (GSP)", true},
    {121, "error of the link between chips (C2C)"},
    {137, "NVLink privilege error: a peer's access to memory that is not mapped"},
    {140, "unrecovered memory error (ECC)", true},
    {143, "the GPU could not be initialised"},
    {154, "the driver asks for another way to recover the GPU (nvidia-smi -q)"},
    {156, "a resource of the GPU was retired"},
    {157, "a resource of the GPU could not be retired"},
    {158, "fatal timeout of the GPU"},
    {171, "uncorrectable error in the GPU's memory (DRAM)", true},
    {172, "uncorrectable error within the GPU (SRAM)", true},
});

constexpr std::size_t kMaxLogRecords = 10'000;  // of one look: a driver in distress repeats itself

/// The number that follows `name`, which may be quoted; 0 if there is none.
int number_after(std::string_view line, std::string_view name) {
  const auto at = line.find(name);
  if (at == std::string_view::npos) return 0;
  std::string_view rest = line.substr(at + name.size());
  if (rest.starts_with('\'')) rest.remove_prefix(1);
  int number = 0;
  std::from_chars(rest.data(), rest.data() + rest.size(), number);
  return number;
}

/// Without "6,1234,5678,-;".
std::string_view text_of(std::string_view record) {
  if (record.empty() || record[0] < '0' || record[0] > '9') return record;
  const auto semicolon = record.find(';');
  return semicolon == std::string_view::npos ? record : record.substr(semicolon + 1);
}

}  // namespace

XidMeaning meaning_of_xid(int number) {
  if (number >= 144 && number <= 150) return {number, "NVLink error", number == 149};
  const auto* const found = std::ranges::find(kXids, number, &XidMeaning::number);
  return found == kXids.end() ? XidMeaning{} : *found;
}

std::optional<Xid> parse_xid(std::string_view line) {
  constexpr std::string_view kBegin = "NVRM: Xid (", kFromNvml = "NVML: Xid (";
  const auto at = std::min(line.find(kBegin), line.find(kFromNvml));
  if (at == std::string_view::npos) return std::nullopt;
  std::string_view rest = line.substr(at + kBegin.size());
  const auto end = rest.find("): ");
  if (end == std::string_view::npos) return std::nullopt;
  std::string_view device = rest.substr(0, end);
  if (device.starts_with("PCI:")) device.remove_prefix(4);
  Xid out;
  out.device = std::string(device.substr(0, device.find(' ')));  // a MIG instance follows the blank
  rest.remove_prefix(end + 3);
  const auto [after, error] = std::from_chars(rest.data(), rest.data() + rest.size(), out.number);
  if (error != std::errc{}) return std::nullopt;
  out.pid = number_after(rest, "pid=");
  return out;
}

std::optional<int> parse_memory_kill(std::string_view line) {
  if (line.find("ut of memory") == std::string_view::npos) return std::nullopt;
  for (const std::string_view words : {"Killed process ", "Kill process "})
    if (const int pid = number_after(line, words); pid > 0) return pid;
  return std::nullopt;
}

KernelLog::KernelLog(const std::string& path)
    : file_(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC)) {
  if (file_) ::lseek(file_.get(), 0, SEEK_END);
}

std::vector<std::string> KernelLog::take_new() {
  std::vector<std::string> out;
  if (!file_) return out;
  LineSplitter lines;
  char block[8192];
  while (out.size() < kMaxLogRecords) {
    const ssize_t n = retry_eintr([&] { return ::read(file_.get(), block, sizeof block); });
    if (n < 0 && errno == EPIPE) continue;  // records were overwritten before they were read
    if (n <= 0) break;
    lines.feed({block, static_cast<std::size_t>(n)}, [&out](std::string_view line) {
      if (!line.starts_with(' ')) out.emplace_back(text_of(line));  // else a record's properties
    });
  }
  return out;
}

}  // namespace muster::launcher
