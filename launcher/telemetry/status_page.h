// SPDX-License-Identifier: Apache-2.0
// StatusPage: what an agent serves on --metrics-addr, from its start to its end: /healthz and /metrics of
// this node, and on the first node the page of the whole job with its /api and the metrics of all nodes
// (/federate; StatusExchange knows the other nodes). PageAccess says who may see it. Owned by main; on the
// agent's loop: an answer says that the loop runs. Nothing is read before somebody asks. Failure: of a
// request alone.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "launcher/job/job.h"
#include "launcher/telemetry/node_status.h"
#include "launcher/telemetry/status_exchange.h"
#include "launcher/telemetry/telemetry.h"
#include "rendezvous/base/metrics_text.h"
#include "rendezvous/status/page_access.h"
#include "rendezvous/status/status_server.h"

namespace muster::launcher {

// What an agent answers to GET /healthz and GET /metrics, as text. Pure: status, readings and time in. Called
// by StatusPage. The names are in launcher/reference.md.

/// One JSON object with a newline.
[[nodiscard]] std::string health_text(const Job& job, const AgentStatus& status, Instant now);

/// `here`: of this node. `straggler`: of the job, where this node knows it.
void put_metrics(MetricsText& out, const Job& job, const AgentStatus& status, const NodeStatus& here,
                 const std::optional<Straggler>& straggler, std::string_view version);

/// The page (status_page.html, made a string by the build), with "{nonce}" where the nonce of its script and
/// style belongs.
extern const std::string_view kStatusPageHtml;

class StatusPage {
 public:
  /// All outlive this. `token`: empty: the page is open.
  StatusPage(boost::asio::io_context& io, net::Listener listener, const Job& job, const Telemetry& telemetry,
             StatusExchange& exchange, std::string_view version, std::string token);

  /// What else is to be on /metrics: called for each answer, on the loop.
  void add_metrics(std::function<void(MetricsText&)> put) { more_ = std::move(put); }

  /// The agent has ended: whoever watches gets the last state. Runs the loop for that, `timeout` at most.
  void finish(Millis timeout);

 private:
  struct Waiting {
    Instant until{};
    std::function<void(net::StatusReply)> respond;
  };

  [[nodiscard]] std::optional<net::StatusReply> answer(const net::StatusRequest& request);
  [[nodiscard]] std::string metrics();
  [[nodiscard]] net::StatusReply log(const net::StatusRequest& request);
  [[nodiscard]] std::string json(bool with_times = true);
  void wait();
  void tick();

  boost::asio::io_context& io_;
  const Job& job_;
  const Telemetry& telemetry_;
  StatusExchange& exchange_;
  std::string_view version_;
  net::PageAccess access_;
  double began_s_ = 0;
  std::vector<net::StatusStream> streams_;
  std::string last_;              // that they got, without times
  std::vector<Waiting> waiting_;  // for the other nodes' first status
  LoopTimer timer_;
  Instant next_tick_ = Instant::max();
  Lifetime lifetime_;
  std::function<void(MetricsText&)> more_;
  net::StatusServer server_;
};

}  // namespace muster::launcher
