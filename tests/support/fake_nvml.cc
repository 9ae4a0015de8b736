// SPDX-License-Identifier: Apache-2.0
// A management library with the GPUs that the file named by FAKE_NVML lists, one per line:
//   UUID PCI-ADDRESS USED-MIB ECC-ERRORS REMAP-FAILED PID[,PID...]|-  [MIG-UUID...] [NAME=VALUE...]
// with what the GPU does not have unless it is named: generation=3/5 width=8/16 (PCIe, of which most),
// state=8 throttle=0x8 links=16/18 (NVLink) remap_pending=1 retired_pending=1 no_events=1, util=97/41 (%, of
// which memory) total=81920 (MiB) power=350500 (mW) energy=123456789 (mJ) temperature=64/71 (C, of which
// memory) clock=1980/2619 (MHz of SM, of memory) corrected_ecc=2. Where a test names figures of its own
// they are made up; recorded_gpus() of tests/system/metrics_support.py has those of an H200. The first line
// of a file with ".hang" behind the name is an entry that never returns from then on. The PIDs are read again
// whenever they are asked for, and that is told by a file with ".asked" behind the name. A line "broken" is a
// device that cannot be opened; "init=N" makes nvmlInit fail with N; "driver=580.65.06/13000" is the driver's
// version and its CUDA, which it else does not tell. A file with
// ".xid" behind the name, put there whole, is a list of events, "UUID NUMBER [GPU-INSTANCE]" a line; once
// all were delivered and the next is waited for it is called ".xid.told". Tests load the library by its path,
// the launcher through MUSTER_NVML_LIBRARY.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <fstream>
#include <map>
#include <poll.h>
#include <sstream>
#include <string>
#include <sys/inotify.h>
#include <unistd.h>
#include <vector>

namespace {

struct FakeGpu {
  bool broken = false;
  std::string uuid, pci;
  unsigned long long used_mib = 0, ecc = 0;
  unsigned remap_failed = 0;
  std::vector<unsigned> pids;
  std::vector<FakeGpu> slices;
  std::map<std::string, std::string> more;

  /// The number before the slash, or behind it.
  bool number(const char* name, bool behind, unsigned long long& out) const {
    const auto found = more.find(name);
    if (found == more.end()) return false;
    const auto slash = found->second.find('/');
    out = std::stoull(behind && slash != std::string::npos ? found->second.substr(slash + 1) : found->second,
                      nullptr, 0);
    return true;
  }
};

struct Event {
  std::string uuid;
  unsigned number = 0, instance = ~0U;
};
std::deque<Event> events;
bool delivered = false;

std::vector<FakeGpu> gpus;
int init_result = 0;
std::string driver;  // empty: it does not tell

int put(const std::string& text, char* out, unsigned size) {
  std::snprintf(out, size, "%s", text.c_str());
  return 0;
}

std::vector<unsigned> pids_of(const std::string& line) {
  std::vector<unsigned> out;
  std::istringstream words(line);
  std::string word;
  for (int i = 0; i < 6; ++i) words >> word;
  std::istringstream list(word == "-" ? "" : word);
  while (std::getline(list, word, ',')) out.push_back(static_cast<unsigned>(std::stoul(word)));
  return out;
}

FakeGpu* of(void* device) {
  return static_cast<FakeGpu*>(device);
}

}  // namespace

#define FAKE extern "C" __attribute__((visibility("default")))

FAKE int nvmlInit_v2() {
  gpus.clear();
  init_result = 0;
  driver.clear();
  const char* path = std::getenv("FAKE_NVML");
  std::ifstream file(path != nullptr ? path : "/nonexistent");
  std::string line;
  while (std::getline(file, line)) {
    if (line.rfind("init=", 0) == 0) {
      init_result = std::atoi(line.c_str() + 5);
      continue;
    }
    if (line.rfind("driver=", 0) == 0) {
      driver = line.substr(7);
      continue;
    }
    FakeGpu& gpu = gpus.emplace_back();
    if ((gpu.broken = line == "broken")) continue;
    std::istringstream words(line);
    std::string pids, word;
    words >> gpu.uuid >> gpu.pci >> gpu.used_mib >> gpu.ecc >> gpu.remap_failed >> pids;
    gpu.pids = pids_of(line);
    while (words >> word)
      if (const auto equals = word.find('='); equals != std::string::npos)
        gpu.more[word.substr(0, equals)] = word.substr(equals + 1);
      else
        gpu.slices.emplace_back().uuid = word;
  }
  return init_result;
}
FAKE int nvmlShutdown() {
  return 0;
}
FAKE const char* nvmlErrorString(int /*result*/) {
  return "Driver/library version mismatch";
}
FAKE int nvmlSystemGetDriverVersion(char* out, unsigned size) {
  return driver.empty() ? 3 : put(driver.substr(0, driver.find('/')), out, size);
}
FAKE int nvmlSystemGetCudaDriverVersion_v2(int* out) {
  if (driver.empty()) return 3;
  *out = std::stoi(driver.substr(driver.find('/') + 1));
  return 0;
}
FAKE int nvmlDeviceGetCount_v2(unsigned* out) {
  *out = static_cast<unsigned>(gpus.size());
  return 0;
}
FAKE int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** out) {
  if (index >= gpus.size()) return 2;
  if (gpus[index].broken) return 15;  // NVML_ERROR_GPU_IS_LOST
  *out = &gpus[index];
  return 0;
}
FAKE int nvmlDeviceGetUUID(void* device, char* out, unsigned size) {
  return put(of(device)->uuid, out, size);
}
FAKE int nvmlDeviceGetName(void* /*device*/, char* out, unsigned size) {
  return put("Fake GPU", out, size);
}
FAKE int nvmlDeviceGetPciInfo_v3(void* device, void* out) {
  unsigned words[3] = {};
  if (std::sscanf(of(device)->pci.c_str(), "%x:%x:%x.0", &words[0], &words[1], &words[2]) != 3) return 1;
  std::memcpy(static_cast<char*>(out) + 16, words, sizeof words);
  return 0;
}
FAKE int nvmlDeviceGetMaxMigDeviceCount(void* device, unsigned* out) {
  *out = static_cast<unsigned>(of(device)->slices.size()) + 1;  // one place is free
  return 0;
}
FAKE int nvmlDeviceGetMigDeviceHandleByIndex(void* device, unsigned index, void** out) {
  auto& slices = of(device)->slices;
  if (index >= slices.size()) return 6;
  *out = &slices[index];
  return 0;
}
FAKE int nvmlDeviceGetMemoryInfo_v2(void* device, void* out) {
  unsigned long long total = 0;
  of(device)->number("total", false, total);
  const unsigned long long used = of(device)->used_mib << 20;
  const unsigned long long words[4] = {total << 20, 0, (total << 20) - (total == 0 ? 0 : used), used};
  std::memcpy(static_cast<char*>(out) + 8, words, sizeof words);
  return 0;
}
FAKE int nvmlDeviceGetComputeRunningProcesses_v3(void* device, unsigned* count, void* out) {
  auto& pids = of(device)->pids;
  if (const char* path = std::getenv("FAKE_NVML")) {
    std::ifstream file(path);
    std::string line;
    while (std::getline(file, line))
      if (line.rfind(of(device)->uuid + " ", 0) == 0) pids = pids_of(line);
    std::ofstream(std::string(path) + ".asked") << "x";
  }
  if (*count < pids.size()) {
    *count = static_cast<unsigned>(pids.size());
    return 7;
  }
  *count = static_cast<unsigned>(pids.size());
  for (std::size_t i = 0; i < pids.size(); ++i) {
    const unsigned long long bytes = of(device)->used_mib << 20;
    std::memcpy(static_cast<char*>(out) + 24 * i, &pids[i], sizeof pids[i]);
    std::memcpy(static_cast<char*>(out) + 24 * i + 8, &bytes, sizeof bytes);
  }
  return 0;
}
FAKE int nvmlDeviceGetTotalEccErrors(void* device, int type, int /*counter*/, unsigned long long* out) {
  if (type == 0) return of(device)->number("corrected_ecc", false, *out) ? 0 : 3;
  *out = of(device)->ecc;
  return 0;
}
FAKE int nvmlDeviceGetRemappedRows(void* device, unsigned* corrected, unsigned* uncorrected,
                                   unsigned* pending, unsigned* failed) {
  unsigned long long waiting = 0;
  of(device)->number("remap_pending", false, waiting);
  *corrected = *uncorrected = 0;
  *pending = static_cast<unsigned>(waiting);
  *failed = of(device)->remap_failed;
  return 0;
}
FAKE int nvmlDeviceGetRetiredPagesPendingStatus(void* device, int* out) {
  unsigned long long pending = 0;
  if (!of(device)->number("retired_pending", false, pending)) return 3;
  *out = static_cast<int>(pending);
  return 0;
}

namespace {

int answer(void* device, const char* name, bool most, unsigned* out) {
  unsigned long long value = 0;
  if (!of(device)->number(name, most, value)) return 3;  // NVML_ERROR_NOT_SUPPORTED
  *out = static_cast<unsigned>(value);
  return 0;
}

/// As a driver that is wedged: nothing but SIGKILL ends the caller.
void hang_in(const char* entry) {
  const char* path = std::getenv("FAKE_NVML");
  std::ifstream file(std::string(path != nullptr ? path : "") + ".hang");
  std::string line;
  if (std::getline(file, line) && line == entry)
    while (true) pause();
}

/// Reads the list of events, if there is one.
bool take_events(const std::string& path) {
  std::ifstream file(path);
  if (!file) return false;
  std::string line;
  while (std::getline(file, line)) {
    Event& event = events.emplace_back();
    std::istringstream(line) >> event.uuid >> event.number >> event.instance;
    if (std::count(line.begin(), line.end(), ' ') < 2) event.instance = ~0U;
  }
  std::rename(path.c_str(), (path + ".taken").c_str());
  return !events.empty();
}

/// False: the time has passed.
bool wait_for_events(const std::string& path, unsigned timeout_ms) {
  const int watch = inotify_init1(IN_CLOEXEC);
  inotify_add_watch(watch, path.substr(0, path.rfind('/')).c_str(), IN_MOVED_TO);
  bool found = take_events(path);
  while (!found) {
    pollfd wait{watch, POLLIN, 0};
    if (poll(&wait, 1, static_cast<int>(timeout_ms)) <= 0) break;
    char block[4096];
    if (read(watch, block, sizeof block) <= 0) break;
    found = take_events(path);
  }
  close(watch);
  return found;
}

}  // namespace

FAKE int nvmlDeviceGetCurrPcieLinkGeneration(void* device, unsigned* out) {
  return answer(device, "generation", false, out);
}
FAKE int nvmlDeviceGetMaxPcieLinkGeneration(void* device, unsigned* out) {
  return answer(device, "generation", true, out);
}
FAKE int nvmlDeviceGetCurrPcieLinkWidth(void* device, unsigned* out) {
  return answer(device, "width", false, out);
}
FAKE int nvmlDeviceGetMaxPcieLinkWidth(void* device, unsigned* out) {
  return answer(device, "width", true, out);
}
FAKE int nvmlDeviceGetUtilizationRates(void* device, unsigned* out) {
  hang_in("nvmlDeviceGetUtilizationRates");
  return answer(device, "util", false, out) + answer(device, "util", true, out + 1);
}
FAKE int nvmlDeviceGetPowerUsage(void* device, unsigned* out) {
  return answer(device, "power", false, out);
}
FAKE int nvmlDeviceGetTotalEnergyConsumption(void* device, unsigned long long* out) {
  return of(device)->number("energy", false, *out) ? 0 : 3;
}
FAKE int nvmlDeviceGetTemperature(void* device, int /*sensor*/, unsigned* out) {
  return answer(device, "temperature", false, out);
}
FAKE int nvmlDeviceGetFieldValues(void* device, int /*count*/, void* out) {
  unsigned degrees = 0;
  const int result = answer(device, "temperature", true, &degrees), type = 1;
  std::memcpy(static_cast<char*>(out) + 24, &type, sizeof type);
  std::memcpy(static_cast<char*>(out) + 28, &result, sizeof result);
  std::memcpy(static_cast<char*>(out) + 32, &degrees, sizeof degrees);
  return 0;
}
FAKE int nvmlDeviceGetClockInfo(void* device, int type, unsigned* out) {
  return answer(device, "clock", type == 2, out);
}
FAKE int nvmlDeviceGetPerformanceState(void* device, unsigned* out) {
  return answer(device, "state", false, out);
}
FAKE int nvmlDeviceGetCurrentClocksThrottleReasons(void* device, unsigned long long* out) {
  return of(device)->number("throttle", false, *out) ? 0 : 3;
}
FAKE int nvmlDeviceGetNvLinkState(void* device, unsigned link, unsigned* out) {
  unsigned active = 0, all = 0;
  if (answer(device, "links", false, &active) != 0 || answer(device, "links", true, &all) != 0) return 3;
  if (link >= all) return 2;
  *out = link < active ? 1 : 0;
  return 0;
}

FAKE int nvmlEventSetCreate(void** out) {
  *out = &events;
  return 0;
}
FAKE int nvmlEventSetFree(void* /*set*/) {
  return 0;
}
FAKE int nvmlDeviceGetSupportedEventTypes(void* device, unsigned long long* out) {
  *out = of(device)->more.count("no_events") != 0 ? 1 : 0x1f;
  return 0;
}
FAKE int nvmlDeviceRegisterEvents(void* /*device*/, unsigned long long types, void* set) {
  return types == 0x8 && set == &events ? 0 : 2;
}
FAKE int nvmlEventSetWait_v2(void* /*set*/, void* out, unsigned timeout_ms) {
  const char* path = std::getenv("FAKE_NVML");
  if (path == nullptr) return 1;
  const std::string list = std::string(path) + ".xid";
  if (events.empty() && delivered) {
    std::rename((list + ".taken").c_str(), (list + ".told").c_str());
    delivered = false;
  }
  if (events.empty() && !wait_for_events(list, timeout_ms)) return 10;  // NVML_ERROR_TIMEOUT
  const Event event = events.front();
  events.pop_front();
  delivered = true;
  void* device = nullptr;
  for (FakeGpu& gpu : gpus)
    if (gpu.uuid == event.uuid) device = &gpu;
  const unsigned long long type = 0x8, number = event.number;
  const unsigned instances[2] = {event.instance, ~0U};
  char* const at = static_cast<char*>(out);
  std::memcpy(at, &device, sizeof device);
  std::memcpy(at + 8, &type, sizeof type);
  std::memcpy(at + 16, &number, sizeof number);
  std::memcpy(at + 24, instances, sizeof instances);
  return 0;
}
