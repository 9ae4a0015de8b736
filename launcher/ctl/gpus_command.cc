// SPDX-License-Identifier: Apache-2.0

#include <algorithm>
#include <cstdio>
#include <poll.h>
#include <string>
#include <unistd.h>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "launcher/ctl/commands.h"
#include "launcher/hardware/gpus.h"
#include "launcher/hardware/nvml.h"
#include "launcher/job/exit_status.h"
#include "launcher/process/helper_process.h"
#include "launcher/report/gpu_holders.h"
#include "launcher/text/seconds_text.h"
#include "launcher/text/text_table.h"
#include "rendezvous/base/archive.h"
#include "rendezvous/base/syscall.h"

namespace muster::launcher {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr Millis kDriverTimeout{5000};
constexpr Millis kEndTimeout{5000};  // after each signal
constexpr std::size_t kMostBytes = std::size_t{4} << 20;

struct Answer {
  std::string error;  // empty: NVML has answered
  std::vector<GpuHolder> holders;
};

/// In a process of its own: the driver may hold its caller.
void ask_nvml(const GpuPaths& paths, int out) {
  Answer answer;
  if (const auto nvml = Nvml::open(paths.library))
    answer.holders = find_gpu_holders(*nvml);
  else
    answer.error = nvml.error().message;
  (void)write_all(out, to_archive(answer));
}

Answer ask(const GpuPaths& paths) {
  const auto helper = HelperProcess::start({.name = "job-gpu-users"}, [&](int out) { ask_nvml(paths, out); });
  if (!helper) return {helper.error().message, {}};
  const Instant deadline = SteadyClock::now() + kDriverTimeout;
  std::string bytes;
  char block[16384];
  while (bytes.size() < kMostBytes) {
    if (!wait_until_ready(helper->channel(), POLLIN, deadline))
      return {fmt::format("NVML has not answered within {} s", kDriverTimeout.count() / 1000), {}};
    const ssize_t n = retry_eintr([&] { return ::read(helper->channel(), block, sizeof block); });
    if (n <= 0) break;
    bytes.append(block, static_cast<std::size_t>(n));
  }
  return from_archive<Answer>(bytes).value_or(Answer{"NVML has ended the process that asked it", {}});
}

std::string table(const std::vector<GpuHolder>& holders) {
  std::vector<std::vector<std::string>> rows = {
      {"GPU", "PID", "USER", "SINCE", "MIB", "RANK", "JOB", "KIND", "COMMAND"}};
  for (const GpuHolder& holder : holders) {
    const SeenProcess& process = holder.process;
    rows.push_back(
        {fmt::format("{}", holder.use.gpu), fmt::format("{}", holder.use.pid), or_dash(process.user),
         process.since == 0 ? "-" : local_time_text(process.since, "%Y-%m-%d %H:%M:%S"),
         holder.use.bytes == 0 ? "-" : fmt::format("{}", holder.use.bytes >> 20), or_dash(process.rank),
         or_dash(process.run_id), std::string(kHolderKinds[static_cast<std::size_t>(holder.kind)]),
         or_dash(process.command)});
  }
  return text_table(rows);
}

std::string json(const Answer& answer) {
  OrderedJson out{{"source", answer.error.empty() ? "nvml" : "device-files"},
                  {"processes", OrderedJson::array()}};
  if (!answer.error.empty()) out["error"] = answer.error;
  for (const GpuHolder& holder : answer.holders) {
    const SeenProcess& process = holder.process;
    OrderedJson one{{"gpu", holder.use.gpu},
                    {"uuid", holder.use.uuid},
                    {"pid", holder.use.pid},
                    {"kind", kHolderKinds[static_cast<std::size_t>(holder.kind)]},
                    {"memory_bytes", holder.use.bytes}};
    if (holder.kind != HolderKind::kUnseen) {
      one["user"] = process.user;
      one["uid"] = process.uid;
      one["command"] = process.command;
      one["since"] = process.since;
      one["parent"] = process.parent;
    }
    if (!process.rank.empty()) one["rank"] = process.rank;
    if (!process.run_id.empty()) one["run_id"] = process.run_id;
    one["to_free"] = holder.to_free;
    out["processes"].push_back(std::move(one));
  }
  return out.dump(1, ' ', false, OrderedJson::error_handler_t::replace) + "\n";
}

}  // namespace

int show_gpus(const GpusCommand& command, const Environment& environment) {
  Answer answer = ask(gpu_paths(environment));
  if (!answer.error.empty()) {
    complain(answer.error + "; processes are known by the device files that they have open", 0);
    answer.holders = find_gpu_holders_by_files();
  }
  if (command.json)
    std::fputs(json(answer).c_str(), stdout);
  else
    std::fputs(answer.holders.empty() ? "no process uses a GPU\n" : table(answer.holders).c_str(), stdout);
  std::FILE* const out = command.json ? stderr : stdout;  // for people
  if (!command.free) {
    for (const GpuHolder& holder : answer.holders)
      if (holder.to_free)
        std::fprintf(out, "musterctl gpus --free would end this: %s\n", describe(holder).c_str());
    return kExitOk;
  }
  const auto ended = end_holders(answer.holders, kEndTimeout);
  for (const EndedHolder& one : ended) std::fprintf(out, "pid %d %s\n", one.pid, one.text.c_str());
  if (ended.empty()) std::fputs("there is nothing to end: no process of yours was left behind\n", out);
  return std::ranges::all_of(ended, &EndedHolder::ended) ? kExitOk : kExitStillRuns;
}

}  // namespace muster::launcher
