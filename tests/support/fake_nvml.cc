// SPDX-License-Identifier: Apache-2.0
// A management library with the GPUs that the file named by FAKE_NVML lists, one per line:
//   UUID PCI-ADDRESS USED-MIB ECC-ERRORS REMAP-FAILED PID[,PID...]|-  [MIG-UUID...]
// The PIDs are read again whenever they are asked for, and that is told by a file with ".asked" behind the
// name. A line "broken" is a device that cannot be opened; "init=N" makes nvmlInit fail with N. Tests load it
// by its path, the launcher through MUSTER_NVML_LIBRARY.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

namespace {

struct FakeGpu {
  bool broken = false;
  std::string uuid, pci;
  unsigned long long used_mib = 0, ecc = 0;
  unsigned remap_failed = 0;
  std::vector<unsigned> pids;
  std::vector<FakeGpu> slices;
};

std::vector<FakeGpu> gpus;
int init_result = 0;

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
  const char* path = std::getenv("FAKE_NVML");
  std::ifstream file(path != nullptr ? path : "/nonexistent");
  std::string line;
  while (std::getline(file, line)) {
    if (line.rfind("init=", 0) == 0) {
      init_result = std::atoi(line.c_str() + 5);
      continue;
    }
    FakeGpu& gpu = gpus.emplace_back();
    if ((gpu.broken = line == "broken")) continue;
    std::istringstream words(line);
    std::string pids, word;
    words >> gpu.uuid >> gpu.pci >> gpu.used_mib >> gpu.ecc >> gpu.remap_failed >> pids;
    gpu.pids = pids_of(line);
    while (words >> word) gpu.slices.emplace_back().uuid = word;
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
  return put("999.1", out, size);
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
  const unsigned long long used = of(device)->used_mib << 20;
  std::memcpy(static_cast<char*>(out) + 32, &used, sizeof used);
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
FAKE int nvmlDeviceGetTotalEccErrors(void* device, int /*type*/, int /*counter*/, unsigned long long* out) {
  *out = of(device)->ecc;
  return 0;
}
FAKE int nvmlDeviceGetRemappedRows(void* device, unsigned* corrected, unsigned* uncorrected,
                                   unsigned* pending, unsigned* failed) {
  *corrected = *uncorrected = *pending = 0;
  *failed = of(device)->remap_failed;
  return 0;
}
