// SPDX-License-Identifier: Apache-2.0
#include "launcher/plan/rendezvous_plan.h"

#include <algorithm>
#include <cctype>
#include <utility>

#include "launcher/cli/rdzv_conf.h"
#include "launcher/network/interfaces.h"
#include "launcher/text/seconds_text.h"
#include "rendezvous/base/split.h"
#include "rendezvous/base/text.h"

namespace muster::launcher {
namespace {

constexpr int kStaticPort = 29500;
constexpr int kC10dPort = 29400;  // torchrun's
constexpr Millis kStopMargin{30'000};
constexpr int kEtcdPort = 2379;
constexpr Millis kReconnect{60'000};  // where a coordinator may come back

Result<void> plan_tls(const Options& options, ElasticJob& out) {
  const tls::Files files{options.tls_cert, options.tls_key, options.tls_ca};
  out.proves = out.secret.has_value();
  if (files.ca.empty()) {
    if (files.cert.empty() && files.key.empty()) return {};
    return usage("--tls-cert and --tls-key need --tls-ca, by which the nodes know the coordinator");
  }
  MUSTER_TRY(out.tls, tls::Context::client(files));
  if (files.cert.empty()) {
    if (out.is_host == true)
      return usage("--tls-ca: this node runs the coordinator, which needs --tls-cert and --tls-key too");
    return {};
  }
  // Where a secret is the proof, nodes need no certificates of their own.
  MUSTER_TRY(out.tls_server, tls::Context::server({files.cert, files.key, out.secret ? "" : files.ca}));
  out.proves = true;
  return {};
}

/// A name or an address, as far as its characters tell. One colon alone stands in front of a port.
bool is_host(std::string_view text) {
  return !text.empty() && std::ranges::count(text, ':') != 1 &&
         std::ranges::all_of(text, [](unsigned char c) {
           return std::isalnum(c) != 0 || c == '_' || c == '.' || c == ':' || c == '-' || c == '%';
         });
}

/// Where node 0 is.
Result<Endpoint> plan_static(const Options& options, const Endpoint& endpoint, const NodeRange& nodes,
                             const Job& job) {
  if (nodes.min != nodes.max)
    return usage(
        "--nnodes={}: a range needs a coordinator; give --rdzv-backend=c10d and "
        "--rdzv-endpoint=HOST:PORT, or the number of nodes",
        options.nnodes);
  if (options.spares > 0)
    return usage("--spares={} needs a coordinator; give --rdzv-backend=c10d and --rdzv-endpoint=HOST:PORT",
                 options.spares);
  Endpoint out{options.master_addr, options.master_port.value_or(kStaticPort)};
  if (!is_host(out.host) && options.given.contains("master-addr"))
    return usage("--master-addr={}: not a name or address of a host; its port is --master-port's", out.host);
  if (!endpoint.host.empty()) {
    if (endpoint.port < 0) return usage("--rdzv-endpoint={} needs a port: HOST:PORT", options.rdzv_endpoint);
    out = endpoint;
  }
  if (out.port == 0 && job.nodes > 1)
    return usage(
        "--master-port=0: the kernel would choose the port, and the other nodes would not know it; give a "
        "number");
  // Whatever name was given, nobody else has to reach the store of one node.
  if (job.nodes == 1 && !is_loopback(out.host)) out.host = "127.0.0.1";
  return out;
}

Result<std::optional<etcd::Settings>> plan_etcd(const Options& options, const ElasticConf& conf) {
  if (options.rdzv_backend != "etcd") {
    if (conf.etcd_key.empty()) return std::optional<etcd::Settings>{};
    return usage("--rdzv-conf: {} is a key of --rdzv-backend=etcd", conf.etcd_key);
  }
  if (conf.is_host)
    return usage(
        "--rdzv-conf: is_host is no key of --rdzv-backend=etcd, over which the agents elect; leave it out");
  etcd::Settings out;
  out.prefix = conf.etcd_prefix;
  out.lease_ttl_seconds = conf.lease_ttl_seconds;
  MUSTER_TRY(const std::vector<Endpoint> members, parse_endpoints(options.rdzv_endpoint));
  for (const Endpoint& member : members)
    out.members.push_back(
        {member.host, static_cast<std::uint16_t>(member.port < 0 ? kEtcdPort : member.port)});
  if (conf.protocol == "http") {
    if (!conf.cacert.empty() || !conf.cert.empty() || !conf.key.empty())
      return usage("--rdzv-conf: cacert, cert and key need protocol=https");
    return std::optional(std::move(out));
  }
  if (conf.cacert.empty())
    return usage(
        "--rdzv-conf: protocol=https needs cacert, a PEM file with the authority that signed etcd's "
        "certificate");
  if (conf.cert.empty() != conf.key.empty()) return usage("--rdzv-conf: cert and key belong together");
  auto tls = tls::Context::client({conf.cert, conf.key, conf.cacert, {"cert", "key", "cacert"}});
  if (!tls) return usage("--rdzv-conf: " + tls.error().message);
  out.tls = *std::move(tls);
  return std::optional(std::move(out));
}

/// --join-at: when a node that comes later interrupts the job.
Result<void> plan_growth(std::string_view text, membership::Settings& rules, std::string_view nnodes) {
  constexpr std::string_view kSafePoint = "safe-point";
  constexpr double kMost = 86'400;
  if (text == "now") return {};
  const auto wrong = [&] {
    return usage("--join-at={}: not now, safe-point or safe-point:SECONDS (at most {:.0f})", text, kMost);
  };
  if (!text.starts_with(kSafePoint)) return wrong();
  if (const std::string_view rest = text.substr(kSafePoint.size()); !rest.empty()) {
    const auto timeout = parse_seconds(rest.substr(1), 0.001, kMost);
    if (rest[0] != ':' || !timeout) return wrong();
    rules.safe_point_timeout = *timeout;
  }
  if (rules.min_nodes == rules.max_nodes)
    return usage("--join-at={}: nobody joins a job of --nnodes={}; give MIN:MAX", text, nnodes);
  rules.grow_at_safe_point = true;
  return {};
}

Result<void> plan_elastic(const Options& options, const Environment& environment, const Endpoint& endpoint,
                          const NodeRange& nodes, ElasticConf conf, Job& job) {
  const std::string_view backend = options.rdzv_backend;
  if (endpoint.host.empty())
    return usage(
        "--rdzv-backend={} with --nnodes={} needs --rdzv-endpoint=HOST[:PORT], the same on every node: where "
        "{}",
        backend, options.nnodes,
        backend == "etcd"
            ? "etcd's clients are served, or several such, with commas between them"
            : "musterd listens, or an address of one of the nodes, whose agent then runs the coordinator");
  const bool is_static = backend == "static";
  if (is_static) conf.is_host = job.node_rank == 0;
  if (endpoint.port == 0 && (backend == "etcd" || !conf.is_host.value_or(backend == "c10d")))
    return usage(
        "--rdzv-endpoint={}: port 0 lets the kernel choose, and only the agent that runs the "
        "coordinator (c10d, or is_host=1) knows what it chose; give a number",
        options.rdzv_endpoint);
  job.mode = RendezvousMode::kElastic;
  job.run_id = options.rdzv_id.value_or("none");
  ElasticJob& out = job.elastic;
  out.endpoint_host = endpoint.host;
  MUSTER_TRY(out.etcd, plan_etcd(options, conf));
  const int port = backend == "etcd" ? kEtcdPort : backend == "muster" ? kMusterPort : kC10dPort;
  out.endpoint_port = static_cast<std::uint16_t>(endpoint.port >= 0 ? endpoint.port : port);
  job.port_file = options.port_file;
  // Who names muster has a daemon: an agent that took its port while it is started anew would keep it out.
  out.is_host = conf.is_host;
  if (backend == "muster" && !conf.is_host) out.is_host = false;
  out.order = options.node_rank;
  if (is_static) {
    out.ranks_given = true;
    out.order = job.node_rank;
    job.master_addr = endpoint.host;
    job.master_port = out.endpoint_port;
  }
  out.connect_timeout = conf.read_timeout.value_or(conf.join_timeout);
  // Who names c10d has no daemon that could come back; there the agent that runs the coordinator is gone.
  out.reconnect_for =
      conf.reconnect_timeout.value_or(backend == "c10d" || is_static ? Millis(0) : kReconnect);
  // Another one is elected when its lease is over, not before.
  if (out.etcd) out.reconnect_for += std::chrono::seconds(out.etcd->lease_ttl_seconds);
  out.heartbeat_interval = conf.keep_alive_interval;
  out.local_addr = options.local_addr;
  out.interface = options.iface;
  MUSTER_TRY(out.secret, auth::find_secret(options.secret_file, environment));
  // A certificate is for a name, and who will be elected is not known.
  if (out.etcd && !(options.tls_ca.empty() && options.tls_cert.empty()))
    return usage(
        "--tls-ca and --tls-cert are for c10d and muster: over etcd any node may run the coordinator; use a "
        "secret");
  MUSTER_OK(plan_tls(options, out));
  if (options.store_proxy && options.no_store_proxy)
    return usage("--store-proxy and --no-store-proxy exclude each other");
  // TCPStore has no authentication: anybody who reaches its port could use the store.
  out.store_proxy = options.store_proxy || ((out.secret || out.tls) && !options.no_store_proxy);
  membership::Settings& rules = out.rules;
  rules.min_nodes = nodes.min;
  rules.max_nodes = nodes.max;
  rules.spares = options.spares;
  rules.max_restarts = job.max_restarts;
  rules.restart_after_loss = job.restarts.after_lost_node() && !is_static;
  rules.max_without_progress = job.restarts.max_without_progress;
  rules.join_timeout = conf.join_timeout;
  rules.last_call_timeout = conf.last_call_timeout;
  rules.stop_timeout = conf.stop_timeout.value_or(job.grace + kStopMargin);
  rules.heartbeat_timeout = conf.keep_alive_interval * conf.keep_alive_max_attempt;
  rules.cool_down = conf.cool_down;
  rules.reconnect_grace = conf.reconnect_grace;
  MUSTER_OK(plan_growth(options.join_at, rules, options.nnodes));
  if (std::string defect = membership::defect(rules); !defect.empty()) return usage(std::move(defect));
  return {};
}

}  // namespace

Result<NodeRange> parse_nodes(std::string_view text) {
  const auto colon = text.find(':');
  const std::string_view first = text.substr(0, colon);
  const std::string_view last = colon == std::string_view::npos ? first : text.substr(colon + 1);
  if (last.find(':') != std::string_view::npos) return usage("--nnodes={} is neither N nor MIN:MAX", text);
  MUSTER_TRY(const std::int64_t min, parse_integer("--nnodes", first, 1, 100'000));
  MUSTER_TRY(const std::int64_t max, parse_integer("--nnodes", last, 1, 100'000));
  if (min > max) return usage("--nnodes={}: the smaller number comes first", text);
  return NodeRange{static_cast<int>(min), static_cast<int>(max)};
}

Result<void> plan_rendezvous(const Options& options, const Environment& environment,
                             const std::function<std::string()>& random_id, Job& job) {
  const std::string_view backend = options.rdzv_backend;
  if (backend == "etcd-v2")
    return usage(
        "--rdzv-backend=etcd-v2: muster speaks etcd's v3 API; give --rdzv-backend=etcd and an etcd of 3.4 or "
        "later");
  if (backend != "static" && backend != "c10d" && backend != "muster" && backend != "etcd")
    return usage("--rdzv-backend={}: muster knows static, c10d, muster and etcd", backend);
  MUSTER_TRY(const NodeRange nodes, parse_nodes(options.nnodes));
  job.nodes = nodes.max;
  job.node_rank = options.node_rank.value_or(0);
  const int places = nodes.max + options.spares;
  if (job.node_rank >= places)
    return usage("--node-rank={} is out of range: with --nnodes={} it is 0 to {}", job.node_rank,
                 options.nnodes, places - 1);
  if (options.standalone && job.nodes > 1)
    return usage("--standalone is for one node, but --nnodes={}", options.nnodes);
  MUSTER_TRY(const std::vector<Endpoint> endpoints, parse_endpoints(options.rdzv_endpoint));
  if (endpoints.size() > 1 && backend != "etcd")
    return usage("--rdzv-endpoint={}: several endpoints are for --rdzv-backend=etcd", options.rdzv_endpoint);
  const Endpoint& endpoint = endpoints.front();
  const bool alone = places == 1;
  const bool placed = options.master_port.has_value() || !endpoint.host.empty();
  ElasticConf defaults;
  if (backend == "static") defaults.join_timeout = job.join_timeout;  // torchrun's, too
  MUSTER_TRY(const ElasticConf conf, parse_elastic_conf(options.rdzv_conf, std::move(defaults)));
  job.join_timeout = conf.join_timeout;
  // One node needs no coordinator, unless a daemon is named that others watch.
  if (options.standalone || (alone && (backend == "c10d" || !placed))) {
    job.mode = RendezvousMode::kStandalone;
    if (const auto secret = auth::find_secret(options.secret_file, environment); !secret)
      return fail(secret.error());  // no use
    job.master_addr = "127.0.0.1";
    job.master_port = 0;
    // Who names a backend and no id gets what torchrun gives: the id is in the names of log directories.
    job.run_id = options.rdzv_id.value_or(!options.job_name.empty()                   ? options.job_name
                                          : backend == "static" || options.standalone ? random_id()
                                                                                      : "none");
    return {};
  }
  if (backend != "static") return plan_elastic(options, environment, endpoint, nodes, conf, job);
  MUSTER_TRY(const Endpoint first, plan_static(options, endpoint, nodes, job));
  if (job.nodes > 1) return plan_elastic(options, environment, first, nodes, conf, job);
  job.mode = RendezvousMode::kStandalone;
  job.run_id = options.rdzv_id.value_or("none");
  job.master_addr = first.host;
  job.master_port = static_cast<std::uint16_t>(first.port);
  return {};
}

Result<std::vector<Endpoint>> parse_endpoints(std::string_view text) {
  std::vector<Endpoint> out;
  const auto parts = split(text, ',');
  for (const std::string_view part : parts) {
    MUSTER_TRY(Endpoint one, parse_endpoint(part));
    if (parts.size() > 1 && (one.host.empty() || one.port == 0))
      return usage("--rdzv-endpoint: '{}' in the list is not HOST[:PORT]", part);
    out.push_back(std::move(one));
  }
  return out;
}

Result<Endpoint> parse_endpoint(std::string_view text) {
  const std::string_view all = trimmed(text);
  Endpoint out;
  if (all.empty()) return out;
  std::string_view rest;
  if (all.front() == '[') {
    const auto close = all.find(']');
    if (close == std::string_view::npos) return usage("--rdzv-endpoint={}: ] is missing", text);
    out.host = all.substr(1, close - 1);
    rest = all.substr(close + 1);
    if (!rest.empty() && rest.front() != ':') return usage("--rdzv-endpoint={} is not [HOST]:PORT", text);
    if (!rest.empty()) rest.remove_prefix(1);
  } else {
    const auto colon = all.rfind(':');
    if (colon != std::string_view::npos && is_numeric_address(std::string(all)))
      return usage("--rdzv-endpoint={0}: write [{0}]:PORT", text);
    out.host = all.substr(0, colon);
    if (colon != std::string_view::npos) rest = all.substr(colon + 1);
  }
  if (!is_host(out.host)) return usage("--rdzv-endpoint={}: the host is not a name or address", text);
  if (!rest.empty()) {
    MUSTER_TRY(const std::int64_t port, parse_integer("--rdzv-endpoint port", rest, 0, 65535));
    out.port = static_cast<int>(port);
  }
  return out;
}

}  // namespace muster::launcher
