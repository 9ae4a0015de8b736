// SPDX-License-Identifier: Apache-2.0
#include "launcher/cli/rdzv_conf.h"

#include <algorithm>
#include <cctype>

#include <fmt/format.h>

#include "launcher/cli/options.h"
#include "launcher/text/seconds_text.h"
#include "launcher/text/split.h"
#include "launcher/text/suggestions.h"
#include "rendezvous/base/env.h"

namespace muster::launcher {
namespace {

tl::unexpected<Error> wrong(const std::string& key, const std::string& value, std::string_view right) {
  return usage(fmt::format("--rdzv-conf {}={}: {}", key, value, right));
}

/// torchrun knows whole seconds; fractions do no harm.
Result<Millis> parse_seconds(const std::string& key, const std::string& value, double smallest) {
  constexpr double kMost = 1e7;
  if (const auto out = launcher::parse_seconds(value, smallest, kMost)) return *out;
  return wrong(key, value, fmt::format("seconds from {} to {:.0f} are right", smallest, kMost));
}

Result<bool> parse_bool(const std::string& key, const std::string& value) {
  std::string lower = value;
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  for (const std::string_view yes : {"1", "true", "t", "yes", "y"})
    if (lower == yes) return true;
  for (const std::string_view no : {"0", "false", "f", "no", "n"})
    if (lower == no) return false;
  return wrong(key, value, "true or false is right");
}

// The keys of etcd alone. False: it is none of them.
Result<bool> parse_etcd_key(const std::string& key, const std::string& value, ElasticConf& out) {
  if (key == "protocol") {
    if (value != "http" && value != "https") return wrong(key, value, "http or https is right");
    out.protocol = value;
  } else if (key == "cacert") {
    out.cacert = value;
  } else if (key == "cert") {
    out.cert = value;
  } else if (key == "key") {
    out.key = value;
  } else if (key == "etcd_prefix") {
    out.etcd_prefix = value;
    while (out.etcd_prefix.ends_with('/')) out.etcd_prefix.pop_back();
    if (out.etcd_prefix.empty() || out.etcd_prefix.size() > 255)
      return wrong(key, value, "1 to 255 characters are right, not slashes alone");
  } else if (key == "lease_ttl") {
    MUSTER_TRY(out.lease_ttl_seconds, parse_integer("--rdzv-conf lease_ttl", value, 2, 3600));
  } else {
    return false;
  }
  out.etcd_key = key;
  return true;
}

}  // namespace

Result<ConfPairs> split_rdzv_conf(std::string_view conf) {
  ConfPairs out;
  if (trimmed(conf).empty()) return out;
  for (const std::string_view part : split(conf, ',')) {
    const auto equals = part.find('=');
    const std::string_view key = trimmed(part.substr(0, equals));
    const std::string_view value = equals == std::string_view::npos ? "" : trimmed(part.substr(equals + 1));
    if (key.empty() || value.empty())
      return usage(fmt::format("--rdzv-conf={}: '{}' is not key=value", conf, trimmed(part)));
    out.emplace_back(key, value);
  }
  return out;
}

Result<ElasticConf> parse_elastic_conf(std::string_view conf) {
  constexpr double kShortest = 0.001;
  MUSTER_TRY(const ConfPairs pairs, split_rdzv_conf(conf));
  ElasticConf out;
  bool join_given = false;
  for (const auto& [key, value] : pairs) {
    if (std::none_of(kRdzvKeys.begin(), kRdzvKeys.end(),
                     [&name = key](const RdzvKey& row) { return row.name == name; }))
      return usage(
          fmt::format("--rdzv-conf: unknown key {}; the nearest is {}", key, nearest_name(kRdzvKeys, key)));
    if (key == "join_timeout") {
      MUSTER_TRY(out.join_timeout, parse_seconds(key, value, kShortest));
      join_given = true;
    } else if (key == "timeout") {
      MUSTER_TRY(const Millis timeout, parse_seconds(key, value, kShortest));
      if (!join_given) out.join_timeout = timeout;
    } else if (key == "last_call_timeout") {
      MUSTER_TRY(out.last_call_timeout, parse_seconds(key, value, 0));
    } else if (key == "read_timeout") {
      MUSTER_TRY(out.read_timeout, parse_seconds(key, value, kShortest));
    } else if (key == "keep_alive_interval") {
      MUSTER_TRY(out.keep_alive_interval, parse_seconds(key, value, 0.01));
    } else if (key == "keep_alive_max_attempt") {
      MUSTER_TRY(const std::int64_t attempts, parse_integer("--rdzv-conf " + key, value, 1, 10'000));
      out.keep_alive_max_attempt = static_cast<int>(attempts);
    } else if (key == "cool_down") {
      MUSTER_TRY(out.cool_down, parse_seconds(key, value, 0));
    } else if (key == "reconnect_grace") {
      MUSTER_TRY(out.reconnect_grace, parse_seconds(key, value, 0));
    } else if (key == "stop_timeout") {
      MUSTER_TRY(out.stop_timeout, parse_seconds(key, value, 0));
    } else if (key == "reconnect_timeout") {
      MUSTER_TRY(out.reconnect_timeout, parse_seconds(key, value, 0));
    } else if (key == "is_host") {
      MUSTER_TRY(out.is_host, parse_bool(key, value));
    } else if (key == "store_type") {
      if (value != "tcp") return wrong(key, value, "the coordinator is reached by TCP only");
    } else {
      MUSTER_TRY(const bool done, parse_etcd_key(key, value, out));
      if (done) continue;
      MUSTER_TRY([[maybe_unused]] const Millis unused, parse_seconds(key, value, kShortest));
    }
  }
  return out;
}

}  // namespace muster::launcher
