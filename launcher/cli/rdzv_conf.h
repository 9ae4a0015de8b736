// SPDX-License-Identifier: Apache-2.0
// --rdzv-conf=k=v,k=v as typed values: torchrun's keys of its dynamic rendezvous and muster's own, in the one
// table that the parser and launcher/reference.md read. Pure. Errors are kInvalidArgument; a key that
// nobody knows is refused with the nearest one, since a misspelt timeout shows after ten minutes only.
// Source of the grammar: torch/distributed/elastic/rendezvous/utils.py.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include <muster/result.h>

#include "rendezvous/base/clock.h"

namespace muster::launcher {

using ConfPairs = std::vector<std::pair<std::string, std::string>>;

/// Blanks around keys and values are dropped; a value may contain '='.
[[nodiscard]] Result<ConfPairs> split_rdzv_conf(std::string_view conf);

/// What the keys say; nothing where a key is not given and its default is not a constant.
struct ElasticConf {
  Millis join_timeout{600'000};
  Millis last_call_timeout{30'000};
  Millis keep_alive_interval{5'000};
  std::int64_t keep_alive_max_attempt = 3;
  Millis cool_down{30'000};
  Millis reconnect_grace{3'000};
  std::optional<Millis> read_timeout;
  std::optional<Millis> stop_timeout;
  std::optional<Millis> reconnect_timeout;
  std::optional<bool> is_host;
  std::string store_type = "tcp";
  std::string protocol = "http";
  std::string cacert;
  std::string cert;
  std::string key;
  std::string etcd_prefix = "/muster";
  std::int64_t lease_ttl_seconds = 10;
  Millis unused{};       ///< what has no effect
  std::string etcd_key;  ///< one of the keys of etcd alone that was given; empty: none
};
/// Where a value goes; its type says what a value may be.
using RdzvTarget =
    std::variant<Millis ElasticConf::*, std::optional<Millis> ElasticConf::*, std::int64_t ElasticConf::*,
                 std::optional<bool> ElasticConf::*, std::string ElasticConf::*>;

struct RdzvKey {
  std::string_view name;
  std::string_view default_text;
  std::string_view meaning;
  RdzvTarget target;
  double least = 0;
  double most = 1e7;
  bool of_etcd = false;  ///< means something to etcd alone
};
inline constexpr std::array kRdzvKeys = {
    RdzvKey{"join_timeout", "600; static 900", "seconds that the nodes wait for each other",
            &ElasticConf::join_timeout, 0.001},
    RdzvKey{"timeout", "", "the same as join_timeout, unless that is given", &ElasticConf::join_timeout,
            0.001},
    RdzvKey{"last_call_timeout", "30", "seconds to wait for more nodes when MIN nodes are there",
            &ElasticConf::last_call_timeout},
    RdzvKey{"read_timeout", "join_timeout", "seconds to try to reach the coordinator",
            &ElasticConf::read_timeout, 0.001},
    RdzvKey{"keep_alive_interval", "5",
            "most seconds between heartbeats; the coordinator may ask for more of them",
            &ElasticConf::keep_alive_interval, 0.01},
    RdzvKey{"keep_alive_max_attempt", "3", "number of missed heartbeats after which a node is lost",
            &ElasticConf::keep_alive_max_attempt, 1, 10'000},
    RdzvKey{"is_host", "inferred; muster false", "whether this agent runs the coordinator",
            &ElasticConf::is_host},
    RdzvKey{"store_type", "tcp", "only tcp is supported", &ElasticConf::store_type},
    RdzvKey{"close_timeout", "30", "no effect", &ElasticConf::unused, 0.001},
    RdzvKey{"heartbeat_timeout", "5", "no effect: see keep_alive_interval", &ElasticConf::unused, 0.001},
    RdzvKey{"cool_down", "30",
            "seconds for which a machine takes no part after its node was lost or its GPU broke",
            &ElasticConf::cool_down},
    RdzvKey{
        "reconnect_grace", "3",
        "seconds for which a node keeps its place when its connection breaks; at most 0.8 after a TCP reset",
        &ElasticConf::reconnect_grace},
    RdzvKey{"stop_timeout", "shutdown-timeout + 30", "seconds to wait for nodes that stop their workers",
            &ElasticConf::stop_timeout},
    RdzvKey{"reconnect_timeout", "0; muster, etcd 60",
            "seconds for which an agent tries to connect again to the coordinator (over etcd `lease_ttl` "
            "more) or to "
            "etcd",
            &ElasticConf::reconnect_timeout},
    RdzvKey{"protocol", "http", "etcd: http or https", &ElasticConf::protocol, 0, 0, true},
    RdzvKey{"cacert", "", "etcd, https: PEM file with the authority that signed etcd's certificate",
            &ElasticConf::cacert, 0, 0, true},
    RdzvKey{"cert", "", "etcd, https: PEM file with the certificate that this agent shows",
            &ElasticConf::cert, 0, 0, true},
    RdzvKey{"key", "", "etcd, https: PEM file with its key, readable by its owner alone", &ElasticConf::key,
            0, 0, true},
    RdzvKey{"etcd_prefix", "/muster", "etcd: prefix of the keys of all jobs", &ElasticConf::etcd_prefix, 0, 0,
            true},
    RdzvKey{"lease_ttl", "10", "etcd: seconds without contact after which an agent is lost",
            &ElasticConf::lease_ttl_seconds, 2, 3600, true},
};

/// `out`: the defaults.
[[nodiscard]] Result<ElasticConf> parse_elastic_conf(std::string_view conf, ElasticConf out = {});

}  // namespace muster::launcher
