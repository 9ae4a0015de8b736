// SPDX-License-Identifier: Apache-2.0
#include "launcher/doctor/doctor_text.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <string_view>

#include <fmt/format.h>

namespace muster::launcher {
namespace {

using Outcome = Reach::Outcome;
using Rows = std::vector<std::optional<DoctorRow>>;

constexpr std::size_t kMaxLines = 40;
constexpr double kBigClockMs = 1000;

struct View {
  const std::vector<DoctorNode>& nodes;
  const Rows& rows;

  [[nodiscard]] std::size_t size() const { return nodes.size(); }
  [[nodiscard]] const Way* way(std::size_t from, std::size_t to) const {
    return rows[from] ? &rows[from]->ways[to] : nullptr;
  }
  [[nodiscard]] bool works(std::size_t from, std::size_t to) const {
    const Way* found = way(from, to);
    return from == to || (found != nullptr && found->best() != nullptr);
  }
  [[nodiscard]] std::string_view interface_of(std::size_t node, std::string_view address) const {
    for (const OfferedAddress& each : nodes[node].addresses)
      if (each.address == address) return each.interface;
    return {};
  }
};

/// The one that got furthest: a way on which small messages pass says more than one that times out.
const Reach* nearest_miss(const Way& way) {
  const auto rank = [](Outcome outcome) {
    switch (outcome) {
      case Outcome::kBigLost:
        return 0;
      case Outcome::kSilent:
        return 1;
      case Outcome::kSomebody:
      case Outcome::kOther:
        return 4;
      case Outcome::kNoRoute:
        return 3;
      default:
        return 2;
    }
  };
  const auto least =
      std::min_element(way.tried.begin(), way.tried.end(),
                       [&](const Reach& a, const Reach& b) { return rank(a.outcome) < rank(b.outcome); });
  return least == way.tried.end() ? nullptr : &*least;
}

std::string wide_cell(const View& view, std::size_t from, std::size_t to) {
  if (from == to) return "-";
  const Way* way = view.way(from, to);
  if (way == nullptr) return "?";
  if (const Reach* best = way->best())
    return fmt::format("{:.2f} ms {}", best->round_trip_ms, best->interface);
  const Reach* miss = nearest_miss(*way);
  return miss == nullptr ? "no address" : std::string(to_string(miss->outcome));
}

char narrow_cell(const View& view, std::size_t from, std::size_t to) {
  if (from == to) return '-';
  const Way* way = view.way(from, to);
  if (way == nullptr) return '?';
  if (way->best() != nullptr) return '.';
  const Reach* miss = nearest_miss(*way);
  return miss == nullptr ? 'x' : to_string(miss->outcome).front();
}

std::string wide_table(const View& view) {
  std::vector<std::vector<std::string>> rows = {{"from \\ to"}};
  for (const DoctorNode& node : view.nodes) rows[0].push_back(node.host);
  for (std::size_t from = 0; from < view.size(); ++from) {
    rows.push_back({view.nodes[from].host});
    for (std::size_t to = 0; to < view.size(); ++to) rows.back().push_back(wide_cell(view, from, to));
  }
  std::vector<std::size_t> width(view.size() + 1);
  for (const auto& row : rows)
    for (std::size_t i = 0; i < row.size(); ++i) width[i] = std::max(width[i], row[i].size());
  std::string out;
  for (const auto& row : rows) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) line += fmt::format("{:{}}  ", row[i], width[i]);
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + '\n';
  }
  return out;
}

std::string narrow_table(const View& view) {
  std::size_t width = 4;
  for (const DoctorNode& node : view.nodes) width = std::max(width, node.host.size());
  std::string out =
      "a row is a node, a column the node with that number: . works, t timeout, r refused, n no route, a "
      "another answers, s silent, M MTU, e error, x offers no address, ? nothing heard\n";
  for (std::size_t from = 0; from < view.size(); ++from) {
    out += fmt::format("{:>4} {:{}} ", from, view.nodes[from].host, width);
    for (std::size_t to = 0; to < view.size(); ++to) out += narrow_cell(view, from, to);
    out += '\n';
  }
  return out;
}

/// So many lines, and how many more there would be.
class Lines {
 public:
  void add(std::string line) {
    if (count_++ < kMaxLines) text_ += line + '\n';
  }
  [[nodiscard]] std::string take() const {
    return count_ > kMaxLines ? text_ + fmt::format("and {} more\n", count_ - kMaxLines) : text_;
  }

 private:
  std::string text_;
  std::size_t count_ = 0;
};

std::string what_was_tried(const View& view, const Way& way, std::size_t to) {
  std::string out;
  for (const Reach& each : way.tried) {
    const std::string_view interface = view.interface_of(to, each.address);
    out += fmt::format("{}{}{}: {}", out.empty() ? "" : "; ", each.address,
                       interface.empty() ? "" : fmt::format(" ({})", interface), to_string(each.outcome));
    if (!each.text.empty() && each.outcome == Outcome::kOther) out += ": " + each.text;
  }
  return out.empty() ? "it offers no address" : out;
}

std::string broken_ways(const View& view) {
  Lines out;
  for (std::size_t from = 0; from < view.size(); ++from) {
    if (!view.rows[from]) {
      out.add(fmt::format("{}: nothing was heard of what it found", view.nodes[from].host));
      continue;
    }
    for (std::size_t to = 0; to < view.size(); ++to)
      if (!view.works(from, to))
        out.add(fmt::format("{} does not reach {}: {}", view.nodes[from].host, view.nodes[to].host,
                            what_was_tried(view, *view.way(from, to), to)));
  }
  return out.take();
}

/// Interfaces by which every node reaches every other, by the names that they have on the nodes.
std::set<std::string> common_interfaces(const View& view) {
  std::set<std::string> out;
  for (const DoctorNode& node : view.nodes)
    for (const OfferedAddress& each : node.addresses) out.insert(each.interface);
  out.erase("");
  std::erase_if(out, [&](const std::string& name) {
    for (std::size_t from = 0; from < view.size(); ++from)
      for (std::size_t to = 0; to < view.size(); ++to) {
        if (from == to) continue;
        const Way* way = view.way(from, to);
        if (way == nullptr || std::none_of(way->tried.begin(), way->tried.end(), [&](const Reach& each) {
              return each.outcome == Outcome::kWorks && view.interface_of(to, each.address) == name;
            }))
          return true;
      }
    return false;
  });
  return out;
}

/// Addresses that are offered and lead nowhere for somebody, though the way works by another.
std::string dead_addresses(const View& view) {
  std::map<std::pair<std::size_t, std::string>, std::size_t> missed;
  for (std::size_t from = 0; from < view.size(); ++from)
    for (std::size_t to = 0; to < view.size(); ++to)
      if (from != to && view.rows[from] && view.works(from, to))
        for (const Reach& each : view.way(from, to)->tried)
          if (each.outcome != Outcome::kWorks) ++missed[{to, each.address}];
  Lines out;
  for (const auto& [which, count] : missed)
    out.add(fmt::format("remark: {}{} of {} is not reached by {} of {} nodes; what chooses it hangs",
                        which.second,
                        view.interface_of(which.first, which.second).empty()
                            ? ""
                            : fmt::format(" ({})", view.interface_of(which.first, which.second)),
                        view.nodes[which.first].host, count, view.size() - 1));
  return out.take();
}

std::string names(const View& view) {
  Lines out;
  for (std::size_t to = 0; to < view.size(); ++to) {
    std::map<std::string, std::vector<std::size_t>> said;
    for (std::size_t from = 0; from < view.size(); ++from) {
      const Way* way = view.way(from, to);
      if (way == nullptr || from == to) continue;
      if (!way->name_error.empty()) said["is not resolved by {}: " + way->name_error].push_back(from);
      const auto& offered = view.nodes[to].addresses;
      const auto own = [&](const std::string& address) {
        return std::any_of(offered.begin(), offered.end(),
                           [&](auto& each) { return each.address == address; });
      };
      if (!way->named_as.empty() && std::none_of(way->named_as.begin(), way->named_as.end(), own))
        said[fmt::format("is {} on {{}}, which is none of its addresses", way->named_as.front())].push_back(
            from);
    }
    for (const auto& [words, who] : said) {
      std::string hosts;
      for (std::size_t i = 0; i < std::min<std::size_t>(who.size(), 3); ++i)
        hosts += fmt::format("{}{}", i == 0 ? "" : ", ", view.nodes[who[i]].host);
      if (who.size() > 3) hosts += fmt::format(" and {} more", who.size() - 3);
      std::string line = words;
      line.replace(line.find("{}"), 2, hosts);
      out.add(fmt::format("remark: the name {} {}; muster does without names", view.nodes[to].host, line));
    }
  }
  return out.take();
}

std::string clocks(const View& view) {
  Lines out;
  double most = 0;
  bool known = false;
  for (std::size_t to = 1; to < view.size(); ++to) {
    const Way* way = view.way(0, to);
    const Reach* best = way == nullptr ? nullptr : way->best();
    if (best == nullptr) continue;
    known = true;
    most = std::max(most, std::abs(best->clock_ms));
    if (std::abs(best->clock_ms) > kBigClockMs)
      out.add(fmt::format("remark: the clock of {} is {:.1f} s {} that of {}", view.nodes[to].host,
                          std::abs(best->clock_ms) / 1000, best->clock_ms > 0 ? "ahead of" : "behind",
                          view.nodes[0].host));
  }
  if (known)
    out.add(fmt::format("clocks: within {:.2f} ms of that of {}, as far as they can be told apart", most,
                        view.nodes[0].host));
  return out.take();
}

std::string hint(const View& view) {
  std::set<Outcome> seen;
  for (std::size_t from = 0; from < view.size(); ++from)
    for (std::size_t to = 0; to < view.size(); ++to)
      if (const Way* way = view.way(from, to); way != nullptr && !view.works(from, to))
        if (const Reach* miss = nearest_miss(*way)) seen.insert(miss->outcome);
  std::string out;
  if (seen.contains(Outcome::kTimeout))
    out +=
        "hint: no answer at all: a firewall drops what comes, or the way back is missing; let the nodes "
        "reach each other on all TCP ports\n";
  if (seen.contains(Outcome::kRefused))
    out += "hint: refused though the port was open: a firewall between the nodes rejects\n";
  if (seen.contains(Outcome::kNoRoute))
    out +=
        "hint: no route: the nodes share no network, or a route is missing; --iface=NAME chooses one that "
        "they share\n";
  if (seen.contains(Outcome::kBigLost))
    out +=
        "hint: small messages pass and big ones do not: an MTU is set larger than the network carries "
        "(ip link set dev NAME mtu 1500)\n";
  if (seen.contains(Outcome::kSomebody))
    out +=
        "hint: another host answers at an address that several have, as a bridge's of containers; "
        "--iface=NAME leaves it out\n";
  return out;
}

}  // namespace

Diagnosis diagnose(const std::vector<DoctorNode>& nodes, const Rows& rows) {
  const View view{nodes, rows};
  std::size_t ways = 0, broken = 0;
  for (std::size_t from = 0; from < view.size(); ++from)
    for (std::size_t to = 0; to < view.size(); ++to) {
      if (from == to) continue;
      ++ways;
      broken += view.works(from, to) ? 0 : 1;
    }
  Diagnosis out;
  out.healthy = broken == 0;
  out.text = view.size() <= kMaxWideTable ? wide_table(view) : narrow_table(view);
  out.text += broken_ways(view) + dead_addresses(view) + names(view) + clocks(view) + hint(view);
  const std::set<std::string> common = common_interfaces(view);
  std::set<std::string> all;
  for (const DoctorNode& node : nodes)
    for (const OfferedAddress& each : node.addresses) all.insert(each.interface);
  if (!common.empty() && all.size() > 1 && view.size() > 1)
    out.text += fmt::format("hint: every node reaches every other by --iface={}\n", *common.begin());
  out.text += view.size() == 1 ? "verdict: one node, there is nobody to reach\n"
              : out.healthy
                  ? fmt::format("verdict: {} nodes, every node reaches every other\n", view.size())
                  : fmt::format("verdict: {} nodes, {} of {} ways do not work\n", view.size(), broken, ways);
  return out;
}

}  // namespace muster::launcher
