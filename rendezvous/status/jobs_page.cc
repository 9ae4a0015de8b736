// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <vector>

#include <boost/algorithm/string/replace.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "rendezvous/coordinator/job.h"
#include "rendezvous/status/daemon_metrics.h"
#include "rendezvous/status/status_server.h"

namespace muster::net {
namespace {

using control::JobState;

// "{nonce}" is replaced by whoever answers.
constexpr std::string_view kHead = R"(<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<meta http-equiv="refresh" content="5"><title>musterd: jobs</title><style nonce="{nonce}">
:root { color-scheme: light dark }
body { font: 15px/1.4 system-ui, sans-serif; margin: 1.5rem }
table { border-collapse: collapse }
th, td { text-align: left; vertical-align: top; padding: .3rem .8rem .3rem 0; border-bottom: 1px solid #8886 }
td { overflow-wrap: anywhere }
.failed { font-weight: bold; color: #d32f2f }
</style></head><body><h1>Jobs</h1>
)";

/// In an own direction, and without a meaning in HTML.
std::string escaped(std::string text) {
  boost::replace_all(text, "&", "&amp;");
  boost::replace_all(text, "<", "&lt;");
  boost::replace_all(text, ">", "&gt;");
  boost::replace_all(text, "\"", "&quot;");
  return "<bdi>" + text + "</bdi>";
}

/// Addresses are what agents say: one that is none goes neither into a link nor to Prometheus.
bool is_address(std::string_view text) {
  constexpr std::string_view kOf = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.:-_[]";
  const auto address = parse_status_address(text);
  return address && address->port != 0 && text.find_first_not_of(kOf) == std::string_view::npos;
}

bool is_loopback(std::string_view address) {
  return address.starts_with("127.") || address.starts_with("[::1]") || address.starts_with("localhost") ||
         address == "::1";
}

/// The nodes of the job whose agents serve a page that can be reached from the daemon's host.
std::vector<const membership::Node*> with_pages(const Jobs& jobs, const Job& job) {
  std::vector<const membership::Node*> out;
  for (const auto& [id, connection] : job.connections) {
    const auto node = job.round.nodes.find(id);
    if (node == job.round.nodes.end()) continue;
    const std::string& address = node->second.request.status_address;
    if (is_address(address) && (!is_loopback(address) || is_loopback(jobs.address_of(connection))))
      out.push_back(&node->second);
  }
  return out;
}

std::vector<const Job*> shown(const Jobs& jobs, const JobToken& token) {
  std::vector<const Job*> out;
  for (const auto& [run_id, job] : jobs.all())
    if (token(run_id)) out.push_back(&job);
  std::ranges::sort(out, {}, &Job::name);
  return out;
}

std::string duration(std::int64_t millis) {
  const std::int64_t seconds = millis / 1000, minutes = seconds / 60, hours = minutes / 60;
  if (minutes == 0) return fmt::format("{} s", seconds);
  if (hours == 0) return fmt::format("{} min", minutes);
  return hours < 48 ? fmt::format("{} h {} min", hours, minutes % 60) : fmt::format("{} days", hours / 24);
}

std::string row(const Jobs& jobs, const Job& of, const std::string& token, Instant now) {
  const JobState job = describe_job(of, now);
  constexpr std::string_view kPhases[] = {"gathering", "restarting", "running"};  // by JobState::Phase
  const bool ended = job.phase == JobState::Phase::kEnded;
  std::string_view state = ended ? "succeeded" : kPhases[static_cast<std::size_t>(job.phase)];
  if (ended && job.exit_code != 0) state = "failed";
  std::string name = escaped(job.job);
  for (const membership::Node* node : with_pages(jobs, of))
    if (node->request.status_address == job.first_status_address)
      name = fmt::format("<a href=\"http://{}/{}{}\">{}</a>", job.first_status_address,
                         token.empty() ? "" : "?token=", token, escaped(job.job));
  std::string nodes = fmt::format("{}", job.num_present);
  if (job.num_away > 0) nodes += fmt::format(", {} away", job.num_away);
  if (job.num_unhealthy > 0) nodes += fmt::format(", {} unhealthy", job.num_unhealthy);
  return fmt::format(
      "<tr><td>{}</td><td class=\"{}\">{}</td><td>{} of {}</td><td>{}</td><td>{} of {}</td><td>{}</td>"
      "<td>{}</td><td>{}</td></tr>\n",
      name, state, state, nodes, membership::nodes_text(of.settings), job.world_size, job.restarts_used,
      job.max_restarts, duration(job.age_ms), escaped(job.first_host), escaped(job.text));
}

}  // namespace

std::string service_discovery(const Jobs& jobs, const JobToken& token) {
  nlohmann::json out = nlohmann::json::array();
  for (const Job* job : shown(jobs, token)) {
    for (const membership::Node* node : with_pages(jobs, *job)) {
      const membership::Request& request = node->request;
      out.push_back({{"targets", {request.status_address}},
                     {"labels",
                      {{"run_id", job->name},
                       {"host", request.host},
                       {"__meta_muster_node", fmt::format("{}", node->group_rank)}}}});
    }
  }
  return out.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + '\n';
}

std::string jobs_page(const Jobs& jobs, const JobToken& token, std::string_view version, Instant now) {
  std::string out(kHead);
  const auto listed = shown(jobs, token);
  if (listed.empty()) out += "<p>There are no jobs.</p>\n";
  if (const std::size_t hidden = jobs.num_jobs() - listed.size(); hidden > 0)
    out += fmt::format("<p>Not listed: {} with secrets of their own.</p>\n", hidden);
  if (!listed.empty()) {
    out +=
        "<table><thead><tr><th scope=\"col\">Job</th><th scope=\"col\">State</th><th scope=\"col\">Nodes</th>"
        "<th scope=\"col\">Ranks</th><th scope=\"col\">Restarts</th><th scope=\"col\">Known for</th>"
        "<th scope=\"col\">First node</th><th scope=\"col\">What it waits for, or how it ended</th></tr>"
        "</thead><tbody>\n";
    for (const Job* job : listed) out += row(jobs, *job, token(job->name).value_or(""), now);
    out += "</tbody></table>\n";
  }
  return out + fmt::format("<p>musterd {}, <a href=\"/metrics\">metrics</a></p></body></html>\n", version);
}

}  // namespace muster::net
