// SPDX-License-Identifier: Apache-2.0
#include "launcher/report/job_report.h"

#include <nlohmann/json.hpp>

#include "launcher/hang/odd_one_out.h"
#include "launcher/report/node_report.h"

namespace muster::launcher {

using Json = nlohmann::json;

Odd odd_one_out(const JobReport& report, const Verdict& verdict) {
  if (!verdict.root) return {};
  const auto& root = report.nodes[verdict.root->node].workers[verdict.root->worker];
  if (root.cause.kind != CauseClass::kHang) return {};
  std::vector<RankEvidence> ranks;
  for (const NodeReport& node : report.nodes)
    for (const WorkerOutcome& worker : node.workers) {
      RankEvidence& rank = ranks.emplace_back();
      rank.rank = worker.rank;
      rank.silent = true;
      rank.word = worker.progress;
      if (!worker.stopped_by_us && worker.hang.empty()) rank.ended = "by itself";
    }
  return odd_one_out(ranks);
}

std::string to_json(const JobReport& report, const Verdict& verdict) {
  Json out{{"version", kReportVersion},
           {"program", report.program},
           {"run_id", report.run_id},
           {"exit_status", report.notice.exit_code},
           {"text", report.notice.text},
           {"restarts_used", report.attempt},
           {"max_restarts", report.max_restarts},
           {"restarts", report.restarts},
           {"missing_nodes", report.missing},
           {"root_cause", nullptr},
           {"nodes", Json::array()},
           {"workers", Json::array()}};
  if (const Odd odd = odd_one_out(report, verdict); !odd.ranks.empty()) {
    out["odd_ranks"] = odd.ranks;
    out["why"] = odd.why;
  }
  for (std::size_t n = 0; n < report.nodes.size(); ++n) {
    const NodeReport& node = report.nodes[n];
    out["nodes"].push_back({{"node", node.node}, {"host", node.host}, {"kernel", node.kernel}});
    for (std::size_t w = 0; w < node.workers.size(); ++w) {
      Json entry = to_object(node.workers[w]);
      entry.erase("stopped");  // the label says it
      entry["node"] = node.node;
      entry["host"] = node.host;
      entry["label"] = to_string(verdict.parts[n][w]);
      if (verdict.root == Verdict::Place{n, w}) out["root_cause"] = entry;
      out["workers"].push_back(std::move(entry));
    }
  }
  return out.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace muster::launcher
