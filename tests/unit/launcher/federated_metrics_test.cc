// SPDX-License-Identifier: Apache-2.0
// The metrics of several nodes as one text: what each may add to it, and what Prometheus could not read.
#include "launcher/telemetry/federated_metrics.h"

#include "launcher/telemetry/node_status.h"
#include "launcher/text/node_message.h"
#include "tests/support/catch.h"

namespace muster::launcher {
namespace {

std::string merged(const std::vector<std::string>& nodes) {
  return federated_metrics(nodes);
}

const std::string kUpHelp =
    "# HELP muster_agent_up 1: the metrics of this node are here; 0: it did not answer, or serves none.\n"
    "# TYPE muster_agent_up gauge\n";
const std::string kStep = "# HELP muster_worker_step Step.\n# TYPE muster_worker_step gauge\n";

/// What becomes of the lines of one node behind the head of a family.
std::string kept(const std::string& lines, const std::string& head = kStep) {
  const std::string out = merged({head + lines}), before = kUpHelp + "muster_agent_up{node=\"0\"} 1\n";
  REQUIRE(out.starts_with(before));
  return out.substr(before.size());
}

}  // namespace

TEST_CASE("a family of several nodes stands once, and each sample names its node") {
  const std::string first = kStep + "muster_worker_step{rank=\"0\",local_rank=\"0\"} 140\n";
  const std::string second =
      kStep +
      "muster_worker_step{rank=\"1\",local_rank=\"0\"} 141\n"
      "# HELP muster_hangs_total Hangs.\n# TYPE muster_hangs_total counter\nmuster_hangs_total 2\n";
  CHECK(merged({first, second}) ==
        kUpHelp + "muster_agent_up{node=\"0\"} 1\nmuster_agent_up{node=\"1\"} 1\n" + kStep +
            "muster_worker_step{node=\"0\",rank=\"0\",local_rank=\"0\"} 140\n"
            "muster_worker_step{node=\"1\",rank=\"1\",local_rank=\"0\"} 141\n"
            "# HELP muster_hangs_total Hangs.\n# TYPE muster_hangs_total "
            "counter\nmuster_hangs_total{node=\"1\"} 2\n");
}

TEST_CASE("families that nodes tell in another order are not mixed up") {
  const std::string hangs =
      "# HELP muster_hangs_total Hangs.\n# TYPE muster_hangs_total counter\nmuster_hangs_total 2\n";
  const std::string step = kStep + "muster_worker_step 7\n";
  const std::string out = merged({hangs + step, step + hangs});
  CHECK(out.ends_with("muster_hangs_total{node=\"0\"} 2\nmuster_hangs_total{node=\"1\"} 2\n" + kStep +
                      "muster_worker_step{node=\"0\"} 7\nmuster_worker_step{node=\"1\"} 7\n"));
}

TEST_CASE("a node that did not answer is down and has no samples") {
  CHECK(merged({kStep + "muster_worker_step 7\n", ""}) ==
        kUpHelp + "muster_agent_up{node=\"0\"} 1\nmuster_agent_up{node=\"1\"} 0\n" + kStep +
            "muster_worker_step{node=\"0\"} 7\n");
}

TEST_CASE("a summary has its sum and its count, and no other family has them") {
  const std::string samples = "muster_x_seconds_sum 1.5\nmuster_x_seconds_count 3\n";
  const std::string summary = "# HELP muster_x_seconds X.\n# TYPE muster_x_seconds summary\n";
  const std::string gauge = "# HELP muster_x_seconds X.\n# TYPE muster_x_seconds gauge\n";
  CHECK(kept(samples, summary) ==
        summary + "muster_x_seconds_sum{node=\"0\"} 1.5\nmuster_x_seconds_count{node=\"0\"} 3\n");
  CHECK(kept(samples, gauge).empty());
  CHECK(kept("muster_x_seconds_max 3\n", summary).empty());
}

TEST_CASE("each value and each label that an agent writes passes") {
  for (const char* sample :
       {"{rank=\"0\"} 1e+20", "{rank=\"0\"} -0.5", "{rank=\"0\"} NaN", "{rank=\"0\"} +Inf",
        "{rank=\"0\"} -Inf", "{run_id=\"a \\\"b\\\" \\\\ \\n } , = \"} 1", "{run_id=\"\"} 1",
        "{run_id=\"\xc3\xa9\"} 1"})
    CHECK(kept(std::string("muster_worker_step") + sample + '\n') ==
          kStep + "muster_worker_step{node=\"0\"," + (sample + 1) + '\n');
}

TEST_CASE("a line that Prometheus could not read is dropped, and the next one is not") {
  const std::string good = "muster_worker_step{rank=\"1\"} 2\n";
  for (const std::string line : {"",
                                 "muster_worker_step",
                                 "muster_worker_step ",
                                 "muster_worker_step x",
                                 "muster_worker_step 1 2",
                                 "muster_worker_step  1",
                                 "muster_worker_step 1e999",
                                 "muster_worker_step inf",
                                 "muster_worker_step nan(1)",
                                 "muster_worker_step 0x1p3",
                                 "muster_worker_step{} 1",
                                 "muster_worker_step{",
                                 "muster_worker_step{rank",
                                 "muster_worker_step{rank=",
                                 "muster_worker_step{rank=\"",
                                 "muster_worker_step{rank=\"0",
                                 "muster_worker_step{rank=\"0\\\"} 1",
                                 "muster_worker_step{rank=\"0\"",
                                 "muster_worker_step{rank=\"0\"}",
                                 "muster_worker_step{rank=\"0\"}1",
                                 "muster_worker_step{rank=\"0\",} 1",
                                 "muster_worker_step{rank=\"0\";x=\"1\"} 1",
                                 "muster_worker_step{rank=\"0\" } 1",
                                 "muster_worker_step{0rank=\"0\"} 1",
                                 "muster_worker_step{=\"0\"} 1",
                                 "muster_worker_step{rank=\"\xff\"} 1",
                                 "muster_worker_step{rank=\"0\",rank=\"1\"} 1",
                                 "muster_worker_step{node=\"0\"} 1",
                                 "muster_worker_step{__name__=\"up\"} 1",
                                 "muster_other 1",
                                 "up 1",
                                 "# nothing",
                                 "# TYPE muster_worker_step summary",
                                 "# TYPE muster_other gauge"}) {
    INFO(line);
    CHECK(kept(line + '\n' + good) == kStep + "muster_worker_step{node=\"0\",rank=\"1\"} 2\n");
  }
}

TEST_CASE("a family without a name, a help text or a type that Prometheus could read is dropped") {
  for (const std::string head :
       {"", "# HELP\n# TYPE muster_x gauge\n", "# HELP muster_x X.\n",
        "# HELP muster_x X.\n# TYPE muster_x odd\n", "# HELP muster_x X.\n# TYPE muster_x\n",
        "# HELP muster_x \xff\n# TYPE muster_x gauge\n", "# HELP muster-x X.\n# TYPE muster-x gauge\n",
        "# TYPE muster_x gauge\n"}) {
    INFO(head);
    CHECK(kept("muster_x 1\nmuster-x 1\n", head).empty());
    // Nor do its samples get into the family before it.
    CHECK(kept("muster_worker_step 7\n" + head + "muster_x 1\n") ==
          kStep + "muster_worker_step{node=\"0\"} 7\n");
  }
}

TEST_CASE("no node says of another that it is up") {
  CHECK(kept("muster_agent_up{rank=\"7\"} 1\n", kUpHelp).empty());
}

TEST_CASE("what a node sends ends with the last whole line within the limit, and arrives as it was") {
  std::string text = kStep;
  while (text.size() <= kMaxFederatedBytes + 1000)
    text +=
        "muster_worker_step{run_id=\"" + std::string(100, 'x') + "\"} " + std::to_string(text.size()) + '\n';
  const LogAnswer sent{7, {}, federated_lines(text)};
  std::string joined;
  for (const std::string& line : sent.lines) joined += line + '\n';
  CHECK(joined.size() <= kMaxFederatedBytes);
  CHECK(joined.size() > kMaxFederatedBytes - 200);
  CHECK(text.starts_with(joined));
  const auto read = from_node_message<LogAnswer>(to_node_message(sent), "metrics");
  REQUIRE(read);
  CHECK(read->lines == sent.lines);

  CHECK(federated_lines("a\nb\n") == std::vector<std::string>{"a", "b"});
  CHECK(federated_lines("").empty());
  CHECK(federated_lines(std::string(kMaxFederatedBytes - 1, 'x') + '\n').size() == 1);
  CHECK(federated_lines(std::string(kMaxFederatedBytes, 'x') + '\n').empty());
}

}  // namespace muster::launcher
