// SPDX-License-Identifier: Apache-2.0
// Arbitrary text for the small parsers of what a launcher and its workers are handed by others: environment
// variables, counters, secrets, error files that workers write, entries of detached jobs,
// CUDA_VISIBLE_DEVICES, -r and -t. The first byte chooses the parser, 'A' the first one of kParsers; every
// parser has seeds under corpus/fuzz_text. New parsers come last, so that the seeds keep their meaning.
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "launcher/doctor/doctor_text.h"
#include "launcher/hang/process_state.h"
#include "launcher/hang/snapshot.h"
#include "launcher/hang/stack_text.h"
#include "launcher/hardware/device_choice.h"
#include "launcher/job/restart_policy.h"
#include "launcher/output/error_watch.h"
#include "launcher/process/cgroup.h"
#include "launcher/process/job_record.h"
#include "launcher/progress/collective_state.h"
#include "launcher/progress/progress_sample.h"
#include "launcher/report/job_report.h"
#include "launcher/report/kernel_log.h"
#include "launcher/telemetry/federated_metrics.h"
#include "launcher/telemetry/node_status.h"
#include "launcher/text/node_message.h"
#include "launcher/text/rank_ranges.h"
#include "rendezvous/base/env.h"
#include "rendezvous/base/progress_page.h"
#include "rendezvous/base/text.h"
#include "rendezvous/protocol/auth.h"
#include "rendezvous/protocol/control.h"
#include "rendezvous/store/counter.h"
#include "rendezvous/store/wire.h"

namespace {

void check(bool holds) {
  if (!holds) std::abort();
}

bool is_printable(std::string_view text) {
  for (const char c : text)
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) return false;
  return true;
}

using namespace muster;
using Halves = std::pair<std::string, std::string>;

// For what is read from two texts.
Halves halves(const std::string& text) {
  return {text.substr(0, text.size() / 2), text.substr(text.size() / 2)};
}

void integer(const std::string& text) {
  if (const auto number = parse_integer("NAME", text, -5, 1'000'000))
    check(*number >= -5 && *number <= 1'000'000);
}

void finding(const std::string& text) {
  if (const auto row = launcher::decode_finding<launcher::DoctorRow>(text))
    check(launcher::decode_finding<launcher::DoctorRow>(to_archive(*row)) == *row);
}

void counter(const std::string& text) {
  const auto number = read_counter(text);
  if (!number) return;
  const auto sum = add_to_counter("/key", text, 1);
  check(!sum == (*number == std::numeric_limits<std::int64_t>::max()));
  if (sum) check(*sum == *number + 1);
}

void secret(const std::string& text) {
  const auto read = auth::Secret::from_bytes(text);
  check(read.has_value() == (text.size() >= auth::Secret::kMinBytes));
  // The error tells the length of what was refused, nothing else of it.
  if (!read)
    check(read.error().message == auth::Secret::from_bytes(std::string(text.size(), 'x')).error().message);
}

void shown(const std::string& text) {
  check(is_printable(printable(text)));
  if (control::defect_of_job(text).empty()) check(is_printable(text));
}

void error_watch(const std::string& text) {
  launcher::ErrorWatch watch;
  const auto [first, second] = halves(text);
  watch.feed(first);
  watch.feed(second);
  watch.finish();
  if (!watch.found()) return;
  check(is_printable(watch.found()->text));
  check(watch.found()->text.size() <= 300);
}

void kernel_line(const std::string& text) {
  if (const auto xid = launcher::parse_xid(text)) check(text.find(xid->device) != std::string::npos);
  (void)launcher::parse_memory_kill(text);
}

void control_group(const std::string& text) {
  for (const char* controller : {"", "memory"}) (void)launcher::cgroup::candidates(text, controller);
}

void kills(const std::string& text) {
  (void)launcher::parse_oom_kills(text);
}

void failure_rules(const std::string& text) {
  if (const auto rules = launcher::FailureRules::parse("restart-on", text)) (void)rules->name({});
}

void restart_pause(const std::string& text) {
  const auto pause = launcher::RestartPause::parse(text);
  if (!pause) return;
  check(pause->before(1) >= Millis(0) && pause->before(1) <= pause->most);
  check(pause->before(1'000'000) <= pause->most);
}

// What nodes of a static job tell each other reads as it was written.
void snapshot(const std::string& text) {
  if (const auto part = launcher::from_node_message<launcher::NodeSnapshot>(text, "a snapshot"))
    check(launcher::from_node_message<launcher::NodeSnapshot>(launcher::to_message(*part), "a snapshot")
              .has_value());
}

void verdict(const std::string& text) {
  (void)launcher::from_node_message<launcher::HangVerdict>(text, "a verdict");
}

void node_report(const std::string& text) {
  if (const auto report = launcher::node_report_from_message(text))
    check(launcher::to_message(*report).size() <= launcher::kMaxNodeMessageBytes);
}

void progress(const std::string& text) {
  for (const std::string& file : {text, std::string(kProgressMagic) + text}) {
    const launcher::ProgressSample sample = launcher::parse_progress(file);
    check(is_printable(sample.text) && sample.text.size() <= 512);
    (void)launcher::position_in(sample.text);
    check(launcher::phase_in(sample.text).size() <= sample.text.size());
  }
}

void runtime_page(const std::string& text) {
  for (std::string file : {text, std::string(kRuntimePageMagic) + text}) {
    file.resize(sizeof(RuntimePage));  // a page for a short text too
    const std::array<std::string, 3> reads{file, file, file};
    for (const launcher::CollectiveState& state : launcher::parse_collectives(reads)) {
      check(is_printable(launcher::describe(state)));
      check(!launcher::name_of(state.operation).empty());
    }
    (void)launcher::activity_in(file);
  }
}

void position(const std::string& text) {
  (void)launcher::position_in(text);
  (void)launcher::parse_current_call(text);
}

void hang_rules(const std::string& text) {
  const auto [timeout, states] = halves(text);
  (void)launcher::HangRules::parse(timeout, states);
}

void stacks(launcher::StackTool tool, const std::string& text) {
  std::vector<std::string> lines;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    lines.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  for (const auto& stack : launcher::parse_stacks(tool, lines)) {
    check(!stack.functions.empty());
    for (const std::string& function : stack.functions) check(is_printable(function));
    check(launcher::relevant_frames(stack.functions, 4).size() <= 4);
  }
  check(!launcher::problem_in(lines, "none").empty());
}
void py_spy(const std::string& text) {
  stacks(launcher::StackTool::kPySpy, text);
}
void gdb(const std::string& text) {
  stacks(launcher::StackTool::kGdb, text);
}

void error_file(const std::string& text) {
  (void)launcher::parse_error_file(text);
  (void)launcher::with_error_code(text, 7);
}

void job_entry(const std::string& text) {
  const auto entry = launcher::job_record_from_json(text);
  if (!entry) return;
  check(launcher::is_job_name(entry->name));
  check(launcher::job_record_from_json(launcher::to_json(*entry)) == *entry);
}

void devices(const std::string& text) {
  std::vector<launcher::Gpu> gpus(3);
  for (int i = 0; i < 3; ++i) gpus[static_cast<std::size_t>(i)].index = i;
  gpus[0].uuid = "GPU-aa00";
  gpus[1].uuid = "GPU-ab11";
  gpus[2].slices = {"MIG-1"};
  check(launcher::visible_devices(gpus, text).size() <= 4);
  check(launcher::count_visible(gpus, text) >= 0);
  for (const bool one_each : {false, true}) (void)launcher::mapping_text(gpus, text, 5, one_each);
}

void streams(const std::string& text) {
  const auto map = launcher::parse_stream_selection(text);
  if (!map) return;
  check(map->by_rank.size() <= text.size());
  (void)map->of(0);
}

// What another node says of its ranks is shown by the first node's page.
void node_status(const std::string& text) {
  auto read = launcher::from_node_message<launcher::NodeStatus>(text, "a node's status");
  launcher::AgentStatus here;
  launcher::Assignment& place = here.assignment.emplace();
  place.world_size = 8;
  place.group_world_size = 2;
  if (!read || !launcher::makes_sense(*read, 1, place)) return;
  launcher::NodesSeen nodes;
  nodes[1].status = *std::move(read);
  const launcher::Job job;
  check(nlohmann::json::accept(launcher::job_status_json({job, here, "0.1"}, nodes)));
}

void federated(const std::string& text) {
  const auto [first, second] = halves(text);
  const std::string merged = launcher::federated_metrics(std::array{first, second});
  check(is_utf8(merged));
  for (std::size_t at = 0; at < merged.size(); at = merged.find('\n', at) + 1)
    check(merged[at] == '#' || merged.substr(merged.find('{', at)).starts_with("{node=\""));
}

constexpr std::array kParsers{
    integer,     finding,       counter,      secret,        shown,         federated, error_watch,
    kernel_line, control_group, kills,        failure_rules, restart_pause, snapshot,  verdict,
    node_report, progress,      runtime_page, position,      hang_rules,    py_spy,    gdb,
    error_file,  job_entry,     devices,      streams,       node_status};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::size_t chosen = static_cast<std::uint8_t>(data[0] - 'A') % kParsers.size();
  kParsers[chosen](std::string(reinterpret_cast<const char*>(data) + 1, size - 1));
  return 0;
}
