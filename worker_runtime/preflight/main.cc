// SPDX-License-Identifier: Apache-2.0
// muster-preflight: the full check of a node, started by `muster --preflight=full` with "NAME=PLACE" for each
// device. It forks a process for each (device_check.h): first each device is checked by itself, then all of
// them in an all-reduce. It prints the result, a line each: "!" and an error, "?" and a warning, "=" and the
// speeds, "." at the end.
#include <algorithm>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <sched.h>
#include <span>
#include <string>
#include <string_view>
#include <sys/prctl.h>
#include <unistd.h>
#include <vector>

#include <fmt/format.h>

#include <muster/init.h>
#include <muster/store_server.h>

#include "rendezvous/base/env.h"
#include "worker_runtime/device/device.h"
#include "worker_runtime/preflight/device_check.h"
#include "worker_runtime/preflight/device_work.h"

namespace {

using namespace muster;

constexpr std::chrono::minutes kTimeout{10};  // the runner's is shorter, and it knows which process failed

struct Place {
  int rank = 0;
  int world_size = 1;
  int gpu = -1;  // -1: the CPU
  std::vector<int> cpus = {};
  std::string slice = {};  // of a GPU: a process sees one only, and NCCL joins none
  [[nodiscard]] bool is_alone() const { return world_size == 1 || !slice.empty(); }
};

Error usage(std::string_view argument) {
  return Error{ErrorCode::kInvalidArgument,
               fmt::format("muster-preflight is started by muster --preflight=full, not by hand; '{}' is not "
                           "what that gives it",
                           argument)};
}

/// "gpu:1", "slice:MIG-..." or "cpus:0,1,2".
Result<Place> parse(std::string_view text) {
  Place out;
  const std::string_view name = text.substr(0, text.find(':'));
  std::string_view value = text.substr(std::min(name.size() + 1, text.size()));
  if (name == "gpu") {
    MUSTER_TRY(const std::int64_t gpu, parse_integer(name, value, 0, 65535));
    out.gpu = static_cast<int>(gpu);
  } else if (name == "slice") {
    out.slice = value;
    out.gpu = 0;
  } else if (name == "cpus") {
    if (value.empty()) return out;  // any
    MUSTER_TRY(out.cpus, parse_integers(name, value, 0, CPU_SETSIZE - 1));
  } else {
    return fail(usage(text));
  }
  return out;
}

Result<void> bind_to(const std::vector<int>& cpus) {
  if (cpus.empty()) return {};
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int cpu : cpus) CPU_SET(static_cast<std::size_t>(cpu), &set);
  if (::sched_setaffinity(0, sizeof set, &set) != 0)
    return fail(ErrorCode::kIo, "sched_setaffinity was refused");
  return {};
}

/// As the environment of a worker says it.
void enter_world(const Place& place, int port) {
  const auto set = [](const char* name, const std::string& value) { ::setenv(name, value.c_str(), 1); };
  set("MASTER_ADDR", "127.0.0.1");
  set("MASTER_PORT", std::to_string(port));
  set("RANK", std::to_string(place.rank));
  set("WORLD_SIZE", std::to_string(place.world_size));
  set("LOCAL_RANK", std::to_string(place.rank));
  set("LOCAL_WORLD_SIZE", std::to_string(place.world_size));
  set("TORCHELASTIC_USE_AGENT_STORE", "True");
  set("TORCHELASTIC_RESTART_COUNT", "0");
}

Result<double> all_reduce(const Place& place, Device& device, int port) {
  enter_world(place, port);
  InitOptions options;
  options.backend = place.gpu >= 0 ? Backend::kNccl : Backend::kShm;
  options.timeout = kTimeout;
  options.cuda_device = std::max(place.gpu, 0);
  options.cuda_stream = device.stream();
  MUSTER_TRY(const Context context, init(options));
  return preflight::measure_all_reduce(device, *context.group);
}

Result<void> check_device(const Place& place, preflight::DeviceLink& link) {
  const auto begin = [&link](std::string_view step) {
    link.report.step = step;
    link.send();
  };
  const bool gpu = place.gpu >= 0;
  begin(gpu ? "the start of CUDA" : "the start");
  if (!place.slice.empty()) ::setenv("CUDA_VISIBLE_DEVICES", place.slice.c_str(), 1);
  MUSTER_OK(bind_to(place.cpus));
  MUSTER_TRY(const Compute compute,
             make_compute(gpu ? DeviceType::kCuda : DeviceType::kCpu, std::max(place.gpu, 0)));
  Device& device = *compute;
  if (gpu && !place.is_alone()) MUSTER_OK(check_backend(Backend::kNccl));
  begin("memory copies");
  MUSTER_TRY(link.report.copy, preflight::measure_copies(device));
  begin("the GEMM");
  MUSTER_TRY(link.report.gemm, preflight::measure_gemm(device));
  std::unique_ptr<StoreServer> store;
  if (place.rank == 0 && !place.is_alone()) {
    MUSTER_TRY(store, StoreServer::start({.host = "127.0.0.1"}));
  }
  link.report.ready = store ? store->port() : 0;
  link.send();
  const int port = link.wait_to_go();
  if (port != 0 && !place.is_alone()) {
    begin("the all-reduce");
    MUSTER_TRY(link.report.reduce, all_reduce(place, device, port));
  }
  link.report.done = true;
  link.send();
  // The others may still need the store, and what a rank leaves behind.
  (void)link.wait_to_go();
  return {};
}

/// "--timeout-ms=60000 'GPU 3 (GPU-5a)=gpu:0' 'GPU 4 (GPU-77)=gpu:1'".
Result<void> check_node(std::span<char* const> words) {
  constexpr std::string_view kOption = "--timeout-ms=";
  const std::string_view first = words.empty() ? "" : words.front();
  if (!first.starts_with(kOption) || words.size() < 2) return fail(usage(first));
  MUSTER_TRY(const std::int64_t milliseconds,
             parse_integer("--timeout-ms", first.substr(kOption.size()), 1, 3'600'000));
  const std::chrono::milliseconds limit(milliseconds);
  words = words.subspan(1);
  std::vector<preflight::DeviceProcess> devices;
  for (const std::string_view word : words) {
    const auto equals = std::min(word.rfind('='), word.size());
    MUSTER_TRY(Place place, parse(word.substr(std::min(equals + 1, word.size()))));
    place.rank = static_cast<int>(devices.size());
    place.world_size = static_cast<int>(words.size());
    devices.push_back({std::string(word.substr(0, equals)), place.gpu >= 0,
                       [place](preflight::DeviceLink& link) { return check_device(place, link); }});
  }
  std::puts(">the devices");
  std::fflush(stdout);
  const auto checks = preflight::run_checks(devices, limit);
  for (const auto& finding : preflight::judge(checks, limit))
    std::printf("%c%s\n", finding.error ? '!' : '?', finding.text.c_str());
  std::printf("=%s\n.\n", preflight::speeds_text(checks).c_str());
  return {};
}

}  // namespace

int main(int argc, char** argv) {
  const pid_t parent = ::getppid();
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent || parent <= 1) return 1;
  const auto checked = check_node({argv + 1, static_cast<std::size_t>(std::max(argc, 1) - 1)});
  if (checked) return 0;
  std::fprintf(stderr, "%s\n", checked.error().message.c_str());
  return 2;
}
