// SPDX-License-Identifier: Apache-2.0
#include "launcher/telemetry/federated_metrics.h"

#include <algorithm>
#include <charconv>
#include <unordered_map>

#include <fmt/format.h>

#include "rendezvous/base/metrics_text.h"
#include "rendezvous/base/split.h"

namespace muster::launcher {
namespace {

constexpr std::string_view kUp = "muster_agent_up";

struct Family {
  std::string_view name, help, type;  // help: the whole line
  std::string samples;
};

bool is_name(std::string_view text) {
  constexpr std::string_view kOf = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_0123456789";
  return !text.empty() && text.find_first_not_of(kOf) == std::string_view::npos &&
         (text[0] < '0' || text[0] > '9');
}

bool is_sample_value(std::string_view text) {
  double value = 0;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool plain =
      text.find_first_not_of("0123456789+-.eE") == std::string_view::npos;  // no "nan", no "inf"
  return text == "NaN" || text == "+Inf" || text == "-Inf" ||
         (plain && read.ec == std::errc() && read.ptr == text.data() + text.size());
}

/// Takes `name="value"`, with commas between them, and the brace behind the last off the front of `rest`.
/// False: that is not what there is, or a name is there twice or is not a node's to use.
bool take_labels(std::string_view& rest) {
  std::vector<std::string_view> names = {"node"};
  while (true) {
    const std::string_view name = take_front(rest, '=');
    if (!is_name(name) || name.starts_with("__") || std::ranges::find(names, name) != names.end())
      return false;
    names.push_back(name);
    if (!rest.starts_with('"')) return false;
    std::size_t end = 1;
    while (end < rest.size() && rest[end] != '"') end += rest[end] == '\\' ? 2 : 1;
    if (end + 1 >= rest.size()) return false;
    const char next = rest[end + 1];
    rest.remove_prefix(end + 2);
    if (next != ',') return next == '}';
  }
}

/// The sample with one more label in front of its others.
void add_sample(Family& family, std::string_view line, std::size_t node) {
  std::string_view rest = line.substr(std::min(line.size(), line.find_first_of("{ ")));
  const std::string_view name = line.substr(0, line.size() - rest.size());
  if (!name.starts_with(family.name) || !is_utf8(line)) return;
  const std::string_view suffix = name.substr(family.name.size());
  if (!suffix.empty() && (family.type != "summary" || (suffix != "_sum" && suffix != "_count"))) return;
  const std::string_view labels = rest.starts_with('{') ? rest.substr(1) : std::string_view();
  if (!labels.empty()) {
    rest = labels;
    if (!take_labels(rest)) return;
  }
  if (!rest.starts_with(' ') || !is_sample_value(rest.substr(1))) return;
  family.samples += labels.empty() ? fmt::format("{}{{node=\"{}\"}}{}\n", name, node, rest)
                                   : fmt::format("{}{{node=\"{}\",{}\n", name, node, labels);
}

}  // namespace

std::vector<std::string> federated_lines(std::string_view metrics) {
  if (metrics.size() > kMaxFederatedBytes)
    metrics = metrics.substr(0, metrics.rfind('\n', kMaxFederatedBytes - 1) + 1);
  std::vector<std::string> out;
  while (!metrics.empty()) out.emplace_back(take_front(metrics, '\n'));
  return out;
}

std::string federated_metrics(std::span<const std::string> nodes) {
  MetricsText up;
  up.family(kUp, MetricType::kGauge,
            "1: the metrics of this node are here; 0: it did not answer, or serves none.");
  for (std::size_t i = 0; i < nodes.size(); ++i)
    up.sample(nodes[i].empty() ? 0 : 1, {{"node", fmt::format("{}", i)}});
  std::vector<Family> families;  // as they are met first
  std::unordered_map<std::string_view, std::size_t> places;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    Family* family = nullptr;
    for (std::string_view line : split(nodes[i], '\n')) {
      const std::string_view whole = line;
      const bool is_help = line.starts_with("# HELP "), is_type = line.starts_with("# TYPE ");
      if (!is_help && !is_type) {
        if (family != nullptr) add_sample(*family, line, i);
        continue;
      }
      line.remove_prefix(7);
      const std::string_view name = take_front(line, ' ');
      if (is_help) {
        family = nullptr;
        if (!is_name(name) || name == kUp || !is_utf8(whole)) continue;
        const auto [place, is_new] = places.try_emplace(name, families.size());
        if (is_new) families.push_back({name, whole, {}, {}});
        family = &families[place->second];
      } else if (family != nullptr && name == family->name && family->type.empty() &&
                 (line == "gauge" || line == "counter" || line == "summary")) {
        family->type = line;
      }
    }
  }
  std::string out = up.take();
  for (const Family& family : families)
    if (!family.samples.empty() && !family.type.empty())
      out += fmt::format("{}\n# TYPE {} {}\n{}", family.help, family.name, family.type, family.samples);
  return out;
}

}  // namespace muster::launcher
