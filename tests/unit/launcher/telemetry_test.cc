// SPDX-License-Identifier: Apache-2.0
// What an agent tells of its job while it runs: event lines, their file, /healthz and /metrics.
#include "launcher/telemetry/telemetry.h"

#include <algorithm>
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "launcher/telemetry/status_page.h"
#include "rendezvous/base/syscall.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_directory.h"

namespace muster::launcher {
namespace {

using Json = nlohmann::json;
using test::TemporaryDirectory;

Job job_named(const std::string& run_id, const std::string& host) {
  Job out;
  out.run_id = run_id;
  out.host = host;
  return out;
}

// What a log was told.
struct Told {
  std::vector<std::string> lines;
  Log log{"muster", LogLevel::kWarning, [this](std::string_view line) { lines.emplace_back(line); }};
};

Job example_job() {
  Job job;
  job.run_id = "job \"1\"\n\xff";
  job.host = "node7";
  job.local_world_size = 2;
  job.max_restarts = 3;
  job.command.title = "train.py";
  return job;
}

Assignment example_assignment() {
  Assignment out;
  out.attempt = 1;
  out.group_rank = 1;
  out.group_world_size = 2;
  out.base_rank = 2;
  out.world_size = 4;
  out.generation = 5;
  return out;
}

std::vector<Json> events_in(const std::string& path) {
  const auto text = read_file(path);
  REQUIRE_OK(text);
  std::vector<Json> out;
  std::string_view rest = *text;
  while (!rest.empty()) {
    const auto end = rest.find('\n');
    REQUIRE(end != std::string_view::npos);
    out.push_back(Json::parse(rest.substr(0, end)));
    rest.remove_prefix(end + 1);
  }
  return out;
}

std::string metrics(const Job& job, const AgentStatus& status, const NodeStatus& here = {},
                    const std::optional<Straggler>& straggler = {}) {
  MetricsText out;
  put_metrics(out, job, status, here, straggler, "0.1.0");
  return out.take();
}

}  // namespace

TEST_CASE("an event is one line of JSON with time, place and what it adds") {
  const std::string text =
      event_line("stop", job_named("job-1", "node7"), example_assignment(), {1795292841.25, 77.5},
                 {{"signal", "SIGTERM"}, {"pid", 12}, {"seconds", 0.5}, {"fit", true}, {"text", ""}});
  REQUIRE(text ==
          "{\"time\":1795292841.25,\"monotonic\":77.5,\"event\":\"stop\",\"run_id\":\"job-1\","
          "\"host\":\"node7\",\"node\":1,\"generation\":5,\"restarts\":1,\"signal\":\"SIGTERM\",\"pid\":12,"
          "\"seconds\":0.5,\"fit\":true}\n");
  const Json early = Json::parse(event_line("start", job_named("j", "h"), {}, {}, {}));
  CHECK_FALSE(early.contains("node"));
  CHECK_FALSE(early.contains("generation"));
}

TEST_CASE("whatever a worker wrote, its event is one short line of JSON") {
  for (const std::string& text :
       {std::string("a\nb\"c\\\0d", 9), std::string("\xff\xfe"), std::string(100'000, 'x'),
        std::string(5000, '\x01'), std::string(5000, '\xff')}) {
    const std::string out = event_line("worker_ended", job_named(text, text), example_assignment(), {},
                                       {{"error", text}, {"where", text}, {"text", text}, {"more", text}});
    CHECK(out.size() <= kMaxEventBytes);
    CHECK(out.find('\n') == out.size() - 1);
    const Json event = Json::parse(out);
    CHECK(event.at("event") == "worker_ended");
    CHECK(event.at("error").get<std::string>().size() >= std::min<std::size_t>(text.size(), 60));
  }
  const std::string fits(2500, 'x');
  const Json whole = Json::parse(event_line("worker_ended", job_named("j", "h"), {}, {}, {{"error", fits}}));
  CHECK(whole.at("error") == fits);
}

TEST_CASE("events are added to what is in the file, which may be named after the host") {
  const TemporaryDirectory folder;
  Told told;
  for (int run = 0; run < 2; ++run) {
    auto log = EventLog::open(folder.path() + "/events-{host}.jsonl", "node7");
    REQUIRE_OK(log);
    log->write("one\ntwo\n", told.log);
  }
  const auto text = read_file(folder.path() + "/events-node7.jsonl");
  CHECK(text == "one\ntwo\none\ntwo\n");
  CHECK(told.lines.empty());
  const auto nowhere = EventLog::open(folder.path() + "/no/such/directory", "");
  REQUIRE_FALSE(nowhere);
  CHECK(nowhere.error().code == ErrorCode::kInvalidArgument);
  CHECK_THAT(nowhere.error().message, Catch::StartsWith("--events=" + folder.path()));
}

TEST_CASE("a full disk is said once, takes no more memory than allowed, and what is lost is counted") {
  Told told;
  auto log = EventLog::open("/dev/full", "");
  REQUIRE_OK(log);
  const std::string line = std::string(999, 'x') + '\n';
  for (int i = 0; i < 200; ++i) log->write(line, told.log);
  REQUIRE(told.lines.size() == 1);
  CHECK_THAT(told.lines[0], Catch::Contains("could not write events to /dev/full: No space left on device"));
  CHECK(log->dropped() == 200 - EventLog::kMostWaiting / 1000);
  log->finish(told.log);
  REQUIRE(told.lines.size() == 2);
  CHECK_THAT(told.lines[1], Catch::Contains("200 events are missing in /dev/full"));
}

TEST_CASE("a pipe that nobody reads holds nobody up, and gets whole lines") {
  const TemporaryDirectory folder;
  const std::string path = folder.path() + "/pipe";
  REQUIRE(::mkfifo(path.c_str(), 0600) == 0);
  const UniqueFd reader(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  Told told;
  auto log = EventLog::open(path, "");
  REQUIRE_OK(log);
  const std::string line = std::string(1499, 'x') + '\n';
  constexpr int kLines = 1000;
  for (int i = 0; i < kLines; ++i) log->write(line, told.log);
  CHECK(told.lines.size() == 1);
  CHECK(log->dropped() > 0);
  std::string read;
  std::string block(65536, '\0');
  const auto take_all = [&] {
    for (ssize_t n = 0; (n = ::read(reader.get(), block.data(), block.size())) > 0;)
      read.append(block, 0, static_cast<std::size_t>(n));
  };
  take_all();
  CHECK(read.size() % line.size() == 0);
  log->write(line, told.log);
  take_all();
  log->write(line, told.log);
  take_all();
  CHECK(told.lines.size() == 2);
  const auto lines = static_cast<std::uint64_t>(std::count(read.begin(), read.end(), '\n'));
  CHECK(lines + log->dropped() == kLines + 2);
  CHECK(read.size() == lines * line.size());
}

TEST_CASE("a worker's failure is an event with its cause, and counted by it") {
  const TemporaryDirectory folder;
  const std::string path = folder.path() + "/events.jsonl";
  Told told;
  auto log = EventLog::open(path, "");
  REQUIRE_OK(log);
  const Job job = example_job();
  Telemetry telemetry(job, told.log, &*log);
  telemetry.started("0.1.0");
  telemetry.preflight("quick", "no room in /tmp");
  telemetry.rendezvous_begins(0);
  CHECK(telemetry.status().state == AgentState::kRendezvous);
  telemetry.joined(example_assignment());
  WorkerOutcome failed;
  failed.local_rank = 1;
  failed.rank = 3;
  failed.pid = 77;
  failed.end.code = 1;
  failed.cause = {CauseClass::kException, "ValueError: boom", "train.py:12"};
  telemetry.worker_ended(failed);
  telemetry.stopping(SIGTERM);
  CHECK(telemetry.status().state == AgentState::kStopping);
  WorkerOutcome stopped;
  stopped.rank = 2;
  stopped.pid = 76;
  stopped.end.signal = SIGTERM;
  stopped.stopped_by_us = true;
  telemetry.worker_ended(stopped);
  FailureNotice notice;
  notice.rank = 3;
  notice.exit_code = 1;
  notice.text = "boom";
  notice.restart = true;
  telemetry.attempt_over(notice);
  CHECK(telemetry.status().state == AgentState::kRestarting);
  telemetry.rendezvous_begins(1);
  CHECK(telemetry.status().state == AgentState::kRestarting);
  telemetry.attempt_over(FailureNotice{});
  CHECK(telemetry.status().state == AgentState::kEnding);
  telemetry.ended(0);

  CHECK(telemetry.status().failures[static_cast<std::size_t>(CauseClass::kException)] == 1);
  const std::vector<Json> events = events_in(path);
  std::vector<std::string> names;
  for (const Json& event : events) {
    names.push_back(event.at("event"));
    CHECK(event.at("host") == "node7");
    CHECK(event.at("time") > 1.7e9);
  }
  REQUIRE(names == std::vector<std::string>{"start", "preflight", "rendezvous", "joined", "worker_ended",
                                            "stop", "worker_ended", "generation_over", "rendezvous",
                                            "generation_over", "end"});
  CHECK(events[1].at("healthy") == false);
  CHECK(events[4].at("cause") == "exception");
  CHECK(events[4].at("error") == "ValueError: boom");
  CHECK(events[4].at("where") == "train.py:12");
  CHECK(events[4].at("generation") == 5);
  CHECK(events[4].at("exit_code") == 1);
  CHECK(events[5].at("signal") == "SIGTERM");
  CHECK(events[6].at("result") == "stopped");
  CHECK_FALSE(events[6].contains("cause"));
  CHECK(events[7].at("next") == "restart");
  CHECK(events[9].at("result") == "succeeded");
  CHECK(events[10].at("exit_status") == 0);
  CHECK(told.lines.empty());
}

TEST_CASE("health is JSON that says what the agent is doing, before it has a place too") {
  const Job job = example_job();
  AgentStatus status;
  status.workers.resize(2);
  const Instant now = SteadyClock::now();
  status.since = now - std::chrono::milliseconds(1500);
  Json health = Json::parse(health_text(job, status, now));
  CHECK(health.at("state") == "rendezvous");
  CHECK(health.at("seconds_in_state") == 1.5);
  CHECK(health.at("run_id") == "job \"1\"\n\xef\xbf\xbd");
  CHECK_FALSE(health.contains("generation"));
  status.assignment = example_assignment();
  status.state = AgentState::kRunning;
  status.workers[0].state = WorkerState::kRunning;
  health = Json::parse(health_text(job, status, now));
  CHECK(health.at("state") == "running");
  CHECK(health.at("generation") == 5);
  CHECK(health.at("restarts") == 1);
  CHECK(health.at("workers") == 2);
  CHECK(health.at("workers_running") == 1);
}

TEST_CASE("metrics name each rank, and leave out what is not known of it") {
  const Job job = example_job();
  AgentStatus status;
  status.workers.resize(2);
  std::string text = metrics(job, status);
  CHECK_THAT(text, Catch::Contains("muster_agent_state{state=\"rendezvous\"} 1\n"));
  CHECK_THAT(text, !Catch::Contains("muster_job_generation") && !Catch::Contains("rank=\""));
  CHECK_THAT(text, Catch::Contains("run_id=\"job \\\"1\\\"\\n?\""));

  status.assignment = example_assignment();
  status.state = AgentState::kRunning;
  status.workers[0] = {WorkerState::kRunning, 76, "", "", ""};
  status.workers[1] = {WorkerState::kFailed, 77, "", "", ""};
  ++status.failures[static_cast<std::size_t>(CauseClass::kHang)];
  NodeStatus here;
  here.ranks.resize(2);
  RankStatus& rank = here.ranks[0];
  rank.resident_bytes = 1 << 20;
  rank.cpu_s = 12.5;
  rank.epoch = 2;
  rank.step = 140;
  rank.loss = 0.31;
  rank.throughput = 512;
  rank.idle_s = 0.25;
  rank.pace.step_s = 0.125;
  text = metrics(job, status, here, Straggler{3, "node8", "forward", 0.2, 48});
  for (const std::string_view line :
       {"muster_job_generation 5", "muster_job_restarts_used 1", "muster_job_restarts_max 3",
        "muster_job_world_size 4", "muster_workers{state=\"running\"} 1",
        "muster_workers{state=\"failed\"} 1", "muster_worker_failures_total{cause=\"hang\"} 1",
        "muster_worker_failures_total{cause=\"exception\"} 0",
        "muster_worker_info{rank=\"2\",local_rank=\"0\",pid=\"76\",state=\"running\"} 1",
        "muster_worker_info{rank=\"3\",local_rank=\"1\",pid=\"77\",state=\"failed\"} 1",
        "muster_worker_step{rank=\"2\",local_rank=\"0\"} 140",
        "muster_worker_epoch{rank=\"2\",local_rank=\"0\"} 2",
        "muster_worker_loss{rank=\"2\",local_rank=\"0\"} 0.31",
        "muster_worker_throughput{rank=\"2\",local_rank=\"0\"} 512",
        "muster_worker_step_seconds{rank=\"2\",local_rank=\"0\"} 0.125",
        "muster_straggler_percent{rank=\"3\",host=\"node8\",phase=\"forward\"} 48",
        "muster_worker_progress_age_seconds{rank=\"2\",local_rank=\"0\"} 0.25",
        "muster_worker_resident_memory_bytes{rank=\"2\",local_rank=\"0\"} 1048576",
        "muster_worker_cpu_seconds_total{rank=\"2\",local_rank=\"0\"} 12.5"})
    CHECK_THAT(text, Catch::Contains("\n" + std::string(line) + "\n"));
  CHECK_THAT(text, !Catch::Contains("muster_worker_step{rank=\"3\""));
}

}  // namespace muster::launcher
