// SPDX-License-Identifier: Apache-2.0
// muster-preflight: the full check of a node, started by `muster --preflight=full`. Without --rank it starts
// itself once for each DEVICE (device_check.h) and prints the result, a line each: "!" and an error, "?"
// and a warning, "=" and the speeds, "." at the end. With --rank it checks one device: by itself first, then,
// once the runner says so, in an all-reduce with the other processes. On stdin and stdout, a word and its
// value per line:
//   "at TEXT" before each step; "copy", "gemm", "reduce" and a number, per second; "ready PORT" (of a store,
//   from rank 0; 0 from others), after which it reads "go PORT"; "bad TEXT"; "done" at the end. It ends when
//   it has nothing more to read.
#include <algorithm>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <sched.h>
#include <span>
#include <string>
#include <string_view>
#include <sys/prctl.h>
#include <unistd.h>
#include <vector>

#include <muster/init.h>
#include <muster/store_server.h>

#include "rendezvous/base/env.h"
#include "rendezvous/base/text.h"
#include "worker_runtime/device/device.h"
#include "worker_runtime/preflight/device_check.h"
#include "worker_runtime/preflight/device_work.h"

namespace {

using namespace muster;

constexpr std::chrono::minutes kTimeout{10};  // the runner's is shorter, and it knows which process failed

struct Arguments {
  int rank = 0;
  int world_size = 1;
  int gpu = -1;  // -1: the CPU
  std::vector<int> cpus;
  bool alone = false;  // no all-reduce
};

void say(std::string_view word, std::string_view value) {
  std::printf("%.*s %.*s\n", static_cast<int>(word.size()), word.data(), static_cast<int>(value.size()),
              value.data());
  std::fflush(stdout);
}

void say(std::string_view word, double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.0f", value);
  say(word, text);
}

Error usage(std::string_view argument) {
  return Error{ErrorCode::kInvalidArgument,
               "muster-preflight is started by muster --preflight=full; unknown: " + std::string(argument)};
}

/// "--rank=1 --world=8 gpu:1", "slice:MIG-..." or "cpus:0,1,2".
Result<Arguments> parse(std::span<char* const> words) {
  Arguments out;
  for (const std::string_view word : words) {
    const auto at = word.find_first_of("=:");
    const std::string_view name = word.substr(0, at);
    std::string_view value = at == std::string_view::npos ? "" : word.substr(at + 1);
    const auto number = [&](int& into) -> Result<void> {
      MUSTER_TRY(const std::int64_t parsed, parse_integer(name, value, 0, 65535));
      into = static_cast<int>(parsed);
      return {};
    };
    if (name == "--rank") {
      MUSTER_OK(number(out.rank));
    } else if (name == "--world") {
      MUSTER_OK(number(out.world_size));
    } else if (name == "gpu") {
      MUSTER_OK(number(out.gpu));
    } else if (name == "slice") {
      // A process sees one slice only, and NCCL joins none.
      ::setenv("CUDA_VISIBLE_DEVICES", std::string(value).c_str(), 1);
      out.gpu = 0;
      out.alone = true;
    } else if (name == "cpus") {
      while (!value.empty()) {
        const auto comma = value.find(',');
        MUSTER_TRY(const std::int64_t cpu, parse_integer(name, value.substr(0, comma), 0, CPU_SETSIZE - 1));
        out.cpus.push_back(static_cast<int>(cpu));
        value = comma == std::string_view::npos ? "" : value.substr(comma + 1);
      }
    } else {
      return fail(usage(word));
    }
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

/// "go PORT"; 0: the runner wants no more.
int wait_to_go() {
  char line[64] = "";
  if (std::fgets(line, sizeof line, stdin) == nullptr) return 0;
  int port = 0;
  return std::sscanf(line, "go %d", &port) == 1 ? port : 0;
}

/// As the environment of a worker says it.
void enter_world(const Arguments& arguments, int port) {
  const auto set = [](const char* name, const std::string& value) { ::setenv(name, value.c_str(), 1); };
  set("MASTER_ADDR", "127.0.0.1");
  set("MASTER_PORT", std::to_string(port));
  set("RANK", std::to_string(arguments.rank));
  set("WORLD_SIZE", std::to_string(arguments.world_size));
  set("LOCAL_RANK", std::to_string(arguments.rank));
  set("LOCAL_WORLD_SIZE", std::to_string(arguments.world_size));
  set("TORCHELASTIC_USE_AGENT_STORE", "True");
  set("TORCHELASTIC_RESTART_COUNT", "0");
}

Result<void> all_reduce(const Arguments& arguments, Device& device, int port) {
  enter_world(arguments, port);
  InitOptions options;
  options.backend = arguments.gpu >= 0 ? Backend::kNccl : Backend::kShm;
  options.timeout = kTimeout;
  options.cuda_device = std::max(arguments.gpu, 0);
  options.cuda_stream = device.stream();
  MUSTER_TRY(const Context context, init(options));
  MUSTER_TRY(const double speed, preflight::measure_all_reduce(device, *context.group));
  say("reduce", speed);
  return {};
}

Result<void> run(const Arguments& arguments) {
  say("at", arguments.gpu >= 0 ? "the start of CUDA" : "the start");
  MUSTER_OK(bind_to(arguments.cpus));
  const bool gpu = arguments.gpu >= 0;
  MUSTER_TRY(const Compute compute,
             make_compute(gpu ? DeviceType::kCuda : DeviceType::kCpu, std::max(arguments.gpu, 0)));
  Device& device = *compute;
  if (gpu && arguments.world_size > 1 && !arguments.alone) MUSTER_OK(check_backend(Backend::kNccl));
  say("at", "memory copies");
  MUSTER_TRY(const double copied, preflight::measure_copies(device));
  say("copy", copied);
  say("at", "the GEMM");
  MUSTER_TRY(const double multiplied, preflight::measure_gemm(device));
  say("gemm", multiplied);
  std::unique_ptr<StoreServer> store;
  const bool together = arguments.world_size > 1 && !arguments.alone;
  if (arguments.rank == 0 && together) {
    MUSTER_TRY(store, StoreServer::start({.host = "127.0.0.1"}));
  }
  say("ready", std::to_string(store ? store->port() : 0));
  const int port = wait_to_go();
  if (port != 0 && together) {
    say("at", "the all-reduce");
    MUSTER_OK(all_reduce(arguments, device, port));
  }
  say("done", "");
  // The others may still need the store, and what a rank leaves behind.
  (void)wait_to_go();
  return {};
}

int check_device(std::span<char* const> words) {
  const auto arguments = parse(words);
  if (!arguments) {
    std::fprintf(stderr, "%s\n", arguments.error().message.c_str());
    return 2;
  }
  const auto done = run(*arguments);
  if (!done) say("bad", one_line(done.error().message, 300));
  return done ? 0 : 1;
}

/// "--timeout-ms=60000 'GPU 3 (GPU-5a)=gpu:0' 'GPU 4 (GPU-77)=gpu:1'".
int check_node(std::span<char* const> words) {
  constexpr std::string_view kOption = "--timeout-ms=";
  const std::string_view first = words.empty() ? "" : words.front();
  const auto timeout = parse_integer(
      "--timeout-ms", first.starts_with(kOption) ? first.substr(kOption.size()) : "", 1, 3'600'000);
  if (!timeout || words.size() < 2) {
    std::fprintf(stderr, "%s\n", usage(first).message.c_str());
    return 2;
  }
  words = words.subspan(1);
  std::vector<preflight::DeviceProcess> devices;
  for (const std::string_view word : words) {
    const auto equals = std::min(word.rfind('='), word.size());
    const std::string place(word.substr(std::min(equals + 1, word.size())));
    devices.push_back(
        {std::string(word.substr(0, equals)),
         !place.starts_with("cpus:"),
         {"--rank=" + std::to_string(devices.size()), "--world=" + std::to_string(words.size()), place}});
  }
  std::error_code error;
  const std::string own = std::filesystem::read_symlink("/proc/self/exe", error).string();
  const std::chrono::milliseconds limit(*timeout);
  std::puts(">the devices");
  std::fflush(stdout);
  const auto checks = preflight::run_checks(own, devices, limit);
  for (const auto& finding : preflight::judge(checks, limit))
    std::printf("%c%s\n", finding.error ? '!' : '?', finding.text.c_str());
  std::printf("=%s\n.\n", preflight::speeds_text(checks).c_str());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const pid_t parent = ::getppid();
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent || parent <= 1) return 1;
  const std::span<char* const> words(argv + 1, static_cast<std::size_t>(std::max(argc, 1) - 1));
  const bool device = !words.empty() && std::string_view(words.front()).starts_with("--rank=");
  return device ? check_device(words) : check_node(words);
}
