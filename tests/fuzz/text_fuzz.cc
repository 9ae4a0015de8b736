// SPDX-License-Identifier: Apache-2.0
// Arbitrary text for the small parsers of what a launcher and its workers are handed by others: environment
// variables, counters, secrets, error files that workers write, entries of detached jobs,
// CUDA_VISIBLE_DEVICES, -r and -t.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/doctor/findings.h"
#include "launcher/hang/process_state.h"
#include "launcher/hang/snapshot.h"
#include "launcher/hang/stack_text.h"
#include "launcher/hardware/device_choice.h"
#include "launcher/job/hang_rules.h"
#include "launcher/job/restart_policy.h"
#include "launcher/network/host_map.h"
#include "launcher/output/error_watch.h"
#include "launcher/process/cgroup.h"
#include "launcher/process/job_record.h"
#include "launcher/progress/collective_state.h"
#include "launcher/progress/progress_sample.h"
#include "launcher/report/error_file.h"
#include "launcher/report/job_report.h"
#include "launcher/report/kernel_log.h"
#include "launcher/text/node_message.h"
#include "launcher/text/stream_selection.h"
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

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace muster;
  const std::string text(reinterpret_cast<const char*>(data), size);

  if (const auto number = parse_integer("NAME", text, -5, 1'000'000))
    check(*number >= -5 && *number <= 1'000'000);
  if (const auto row = launcher::decode_finding<launcher::DoctorRow>(text))
    check(launcher::decode_finding<launcher::DoctorRow>(launcher::encode_finding(*row)) == *row);
  if (const auto number = read_counter(text)) {
    const auto sum = add_to_counter("/key", text, 1);
    check(!sum == (*number == std::numeric_limits<std::int64_t>::max()));
    if (sum) check(*sum == *number + 1);
  }

  const auto secret = auth::Secret::from_bytes(text);
  check(secret.has_value() == (text.size() >= auth::Secret::kMinBytes));
  // The error tells the length of what was refused, nothing else of it.
  if (!secret)
    check(secret.error().message == auth::Secret::from_bytes(std::string(text.size(), 'x')).error().message);
  check(is_printable(muster::printable(text)));
  if (control::defect_of_job(text).empty()) check(is_printable(text));

  for (const char separator : {',', '\n'})
    if (const auto map = launcher::HostMap::parse(text, separator, "map"))
      for (const char* name : {"node7", "10.0.0.1", ""}) check(is_printable(map->find(name)));

  launcher::ErrorWatch watch;
  watch.feed(std::string_view(text).substr(0, size / 2));
  watch.feed(std::string_view(text).substr(size / 2));
  watch.finish();
  if (watch.found()) {
    check(is_printable(watch.found()->text));
    check(watch.found()->text.size() <= 300);
  }
  if (const auto xid = launcher::parse_xid(text)) check(text.find(xid->device) != std::string::npos);
  (void)launcher::parse_memory_kill(text);
  (void)launcher::cgroup_memory_file(text.substr(0, size / 2), text.substr(size / 2));
  (void)launcher::parse_oom_kills(text);
  if (const auto rules = launcher::FailureRules::parse("restart-on", text)) (void)rules->name({});
  if (const auto pause = launcher::RestartPause::parse(text)) {
    check(pause->before(1) >= Millis(0) && pause->before(1) <= pause->most);
    check(pause->before(1'000'000) <= pause->most);
  }
  // What nodes of a static job tell each other reads as it was written.
  if (const auto part = launcher::from_node_message<launcher::NodeSnapshot>(text, "a snapshot"))
    check(launcher::from_node_message<launcher::NodeSnapshot>(launcher::to_message(*part), "a snapshot")
              .has_value());
  (void)launcher::from_node_message<launcher::HangVerdict>(text, "a verdict");
  if (const auto report = launcher::node_report_from_message(text))
    check(launcher::to_message(*report).size() <= launcher::kMaxNodeMessageBytes);

  for (const std::string& file : {text, std::string(kProgressMagic) + text}) {
    const launcher::ProgressSample word = launcher::parse_progress(file);
    check(is_printable(word.text) && word.text.size() <= 512);
    (void)launcher::position_in(word.text);
    check(launcher::phase_in(word.text).size() <= word.text.size());
  }
  for (std::string file : {text, std::string(kRuntimePageMagic) + text}) {
    file.resize(sizeof(RuntimePage));  // a page for a short text too
    const std::array<std::string, 3> reads{file, file, file};
    for (const launcher::CollectiveState& word : launcher::parse_collectives(reads)) {
      check(is_printable(launcher::describe(word)));
      check(!launcher::name_of(word.operation).empty());
    }
    (void)launcher::activity_in(file);
  }
  (void)launcher::position_in(text);
  (void)launcher::parse_current_call(text);
  (void)launcher::HangRules::parse(text.substr(0, size / 2), "report", text.substr(size / 2));
  std::vector<std::string> lines;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    lines.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  for (const auto tool : {launcher::StackTool::kPySpy, launcher::StackTool::kGdb})
    for (const auto& stack : launcher::parse_stacks(tool, lines)) {
      check(!stack.functions.empty());
      for (const std::string& function : stack.functions) check(is_printable(function));
      check(launcher::relevant_frames(stack.functions, 4).size() <= 4);
    }
  check(!launcher::problem_in(lines, "none").empty());

  const auto recorded = launcher::parse_error_file(text);
  (void)recorded;
  (void)launcher::with_error_code(text, 7);
  if (const auto entry = launcher::job_record_from_json(text)) {
    check(launcher::is_job_name(entry->name));
    check(launcher::job_record_from_json(launcher::to_json(*entry)) == *entry);
  }
  std::vector<launcher::Gpu> gpus(3);
  for (int i = 0; i < 3; ++i) gpus[static_cast<std::size_t>(i)].index = i;
  gpus[0].uuid = "GPU-aa00";
  gpus[1].uuid = "GPU-ab11";
  gpus[2].slices = {"MIG-1"};
  const auto visible = launcher::visible_devices(gpus, text);
  check(visible.size() <= 4);
  check(launcher::count_visible(gpus, text) >= 0);
  if (const auto map = launcher::parse_stream_selection(text)) {
    check(map->by_rank.size() <= text.size());
    (void)map->of(0);
  }
  return 0;
}
