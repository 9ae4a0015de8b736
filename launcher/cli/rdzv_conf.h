// SPDX-License-Identifier: Apache-2.0
// --rdzv-conf=k=v,k=v as typed values: torchrun's keys of its dynamic rendezvous and muster's own, in the one
// table that the parser and launcher/README.md's test read. Pure. Errors are kInvalidArgument; a key that
// nobody knows is refused with the nearest one, since a misspelt timeout shows after ten minutes only.
// Source of the grammar: torch/distributed/elastic/rendezvous/utils.py.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <muster/result.h>

#include "rendezvous/base/clock.h"

namespace muster::launcher {

using ConfPairs = std::vector<std::pair<std::string, std::string>>;

/// Blanks around keys and values are dropped; a value may contain '='.
[[nodiscard]] Result<ConfPairs> split_rdzv_conf(std::string_view conf);

struct RdzvKey {
  std::string_view name;
  std::string_view default_text;
  std::string_view meaning;
};
inline constexpr std::array kRdzvKeys = {
    RdzvKey{"join_timeout", "600", "seconds from the beginning of a gathering to its end"},
    RdzvKey{"timeout", "", "the same; join_timeout wins"},
    RdzvKey{"last_call_timeout", "30", "seconds for more nodes once MIN are there"},
    RdzvKey{"read_timeout", "join_timeout", "seconds until the coordinator has to be reached"},
    RdzvKey{"keep_alive_interval", "5", "seconds between heartbeats; a musterd has its own"},
    RdzvKey{"keep_alive_max_attempt", "3", "so many missed heartbeats make a node lost"},
    RdzvKey{"is_host", "inferred; muster false", "whether this agent runs the coordinator"},
    RdzvKey{"store_type", "tcp", "tcp only"},
    RdzvKey{"close_timeout", "30", "accepted, not needed"},
    RdzvKey{"heartbeat_timeout", "5", "accepted, not needed"},
    RdzvKey{"cool_down", "30",
            "seconds until a machine whose node was lost, or whose GPU is broken, takes part again"},
    RdzvKey{"reconnect_grace", "3",
            "seconds for which a node whose connection broke keeps its place; 0.8 at most after a reset"},
    RdzvKey{"stop_timeout", "grace + 30", "seconds that a gathering waits for nodes that stop their workers"},
    RdzvKey{"reconnect_timeout", "0; muster, etcd 60",
            "seconds for which a broken connection to the coordinator, or to etcd, is tried again"},
    RdzvKey{"protocol", "http", "etcd: http or https"},
    RdzvKey{"cacert", "", "etcd, https: PEM file with the authority that signed etcd's certificate"},
    RdzvKey{"cert", "", "etcd, https: PEM file with the certificate that this agent shows"},
    RdzvKey{"key", "", "etcd, https: PEM file with its key, readable by its owner alone"},
    RdzvKey{"etcd_prefix", "/muster", "etcd: what the keys of all jobs begin with"},
    RdzvKey{"lease_ttl", "10", "etcd: seconds until an agent that etcd does not hear is taken for gone"},
};

/// What the keys say; nothing where a key is not given and its default is not a constant.
struct ElasticConf {
  Millis join_timeout{600'000};
  Millis last_call_timeout{30'000};
  Millis keep_alive_interval{5'000};
  int keep_alive_max_attempt = 3;
  Millis cool_down{30'000};
  Millis reconnect_grace{3'000};
  std::optional<Millis> read_timeout;
  std::optional<Millis> stop_timeout;
  std::optional<Millis> reconnect_timeout;
  std::optional<bool> is_host;
  std::string protocol = "http";
  std::string cacert;
  std::string cert;
  std::string key;
  std::string etcd_prefix = "/muster";
  std::int64_t lease_ttl_seconds = 10;
  std::string etcd_key;  ///< one of the keys of etcd alone that was given; empty: none

  friend bool operator==(const ElasticConf&, const ElasticConf&) = default;
};
[[nodiscard]] Result<ElasticConf> parse_elastic_conf(std::string_view conf);

}  // namespace muster::launcher
