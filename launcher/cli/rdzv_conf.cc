// SPDX-License-Identifier: Apache-2.0
#include "launcher/cli/rdzv_conf.h"

#include <algorithm>
#include <cctype>

#include <fmt/format.h>

#include "launcher/cli/options.h"
#include "launcher/text/seconds_text.h"
#include "launcher/text/usage_error.h"
#include "rendezvous/base/env.h"
#include "rendezvous/base/split.h"

namespace muster::launcher {
namespace {

tl::unexpected<Error> wrong(std::string_view key, std::string_view value, std::string_view right) {
  return usage("--rdzv-conf {}={}: {}", key, value, right);
}

std::optional<bool> parse_bool(std::string value) {
  std::ranges::transform(value, value.begin(), [](unsigned char c) { return std::tolower(c); });
  for (const std::string_view yes : {"1", "true", "t", "yes", "y"})
    if (value == yes) return true;
  for (const std::string_view no : {"0", "false", "f", "no", "n"})
    if (value == no) return false;
  return std::nullopt;
}

// Each puts the value where it belongs.

/// torchrun knows whole seconds; fractions do no harm.
Result<void> put_value(const RdzvKey& row, const std::string& value, Millis& to) {
  const auto seconds = parse_seconds(value, row.least, row.most);
  if (!seconds)
    return wrong(row.name, value, fmt::format("seconds from {} to {:.0f} are right", row.least, row.most));
  to = *seconds;
  return {};
}

Result<void> put_value(const RdzvKey& row, const std::string& value, std::int64_t& to) {
  MUSTER_TRY(to, parse_integer(fmt::format("--rdzv-conf {}", row.name), value,
                               static_cast<std::int64_t>(row.least), static_cast<std::int64_t>(row.most)));
  return {};
}

Result<void> put_value(const RdzvKey& row, const std::string& value, bool& to) {
  const auto given = parse_bool(value);
  if (!given) return wrong(row.name, value, "true or false is right");
  to = *given;
  return {};
}

Result<void> put_value(const RdzvKey&, const std::string& value, std::string& to) {
  to = value;
  return {};
}

template <class T>
Result<void> put_value(const RdzvKey& row, const std::string& value, std::optional<T>& to) {
  return put_value(row, value, to.emplace());
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
      return usage("--rdzv-conf={}: '{}' is not key=value", conf, trimmed(part));
    out.emplace_back(key, value);
  }
  return out;
}

Result<ElasticConf> parse_elastic_conf(std::string_view conf, ElasticConf out) {
  MUSTER_TRY(ConfPairs pairs, split_rdzv_conf(conf));
  // join_timeout, wherever it stands, beats timeout.
  std::stable_partition(pairs.begin(), pairs.end(), [](const auto& pair) { return pair.first == "timeout"; });
  for (const auto& pair : pairs) {
    const auto &key = pair.first, &value = pair.second;
    const auto* const row = std::ranges::find(kRdzvKeys, key, &RdzvKey::name);
    if (row == kRdzvKeys.end())
      return usage("--rdzv-conf: unknown key {}{}", key, nearest_name("; the nearest is ", kRdzvKeys, key));
    MUSTER_OK(std::visit([&](auto to) { return put_value(*row, value, out.*to); }, row->target));
    if (row->of_etcd) out.etcd_key = key;
    if (out.store_type != "tcp") return wrong(key, value, "the coordinator is reached by TCP only");
    if (out.protocol != "http" && out.protocol != "https") return wrong(key, value, "http or https is right");
    while (out.etcd_prefix.ends_with('/')) out.etcd_prefix.pop_back();
    if (out.etcd_prefix.empty() || out.etcd_prefix.size() > 255)
      return wrong(key, value, "1 to 255 characters are right, not slashes alone");
  }
  return out;
}

}  // namespace muster::launcher
