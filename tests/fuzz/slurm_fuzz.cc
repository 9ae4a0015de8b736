// SPDX-License-Identifier: Apache-2.0
// Arbitrary text where Slurm's node lists and numbers of tasks are expected, and as the values of a task's
// variables, one per line.
#include <array>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "rendezvous/base/hostlist.h"
#include "rendezvous/base/slurm_step.h"

namespace {

using namespace muster;

constexpr std::array<std::string_view, 12> kVariables = {"SLURM_STEP_NODELIST",  "SLURM_STEP_TASKS_PER_NODE",
                                                         "SLURM_STEP_NUM_TASKS", "SLURM_PROCID",
                                                         "SLURM_NODEID",         "SLURM_LOCALID",
                                                         "SLURM_JOB_ID",         "SLURM_STEP_ID",
                                                         "SLURM_NTASKS",         "SLURMD_NODENAME",
                                                         "SLURM_JOB_NUM_NODES",  "SLURM_CPUS_PER_TASK"};

void check(bool holds) {
  if (!holds) std::abort();
}

bool is_one_line(std::string_view text) {
  for (const char c : text)
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) return false;
  return true;
}

void check_hostlist(std::string_view text) {
  const auto names = expand_hostlist(text);
  // 80 bytes of the entry are shown, each as \xff at worst, and what is wrong with it.
  if (!names) return check(is_one_line(names.error().message) && names.error().message.size() < 450);
  check(!names->empty() && names->size() <= kMaxHosts);
  std::size_t checked = 0;
  for (const std::string& name : *names) {
    check(!name.empty() && name.size() <= kMaxHostName);
    if (++checked > 64) break;
    // A name that is written out stands for itself.
    const auto again = expand_hostlist(name);
    check(again && again->size() == 1 && again->front() == name);
  }
}

void check_step(std::string_view text) {
  Environment environment;
  for (const std::string_view name : kVariables) {
    const auto end = text.find('\n');
    environment.emplace(name, text.substr(0, end));
    if (end == std::string_view::npos) break;
    text.remove_prefix(end + 1);
  }
  const auto found = read_slurm_step(environment);
  if (!found || !*found) return;
  const SlurmStep& step = **found;
  check(step.nodes.size() == step.tasks_per_node.size());
  check(step.node >= 0 && step.node < step.num_nodes());
  check(step.task >= 0 && step.task < step.num_tasks);
  check(step.local_task >= 0 && step.local_task < step.local_tasks());
  if (const auto head = step_head(step)) check(!head->empty() && head->size() <= kMaxHostName);
  check(step_port(step) >= kFirstStepPort && step_port(step) < kFirstStepPort + kNumStepPorts);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  check_hostlist(text);
  if (const auto counts = expand_task_counts(text)) check(!counts->empty() && counts->size() <= kMaxHosts);
  check_step(text);
  return 0;
}
