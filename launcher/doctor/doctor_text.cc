// SPDX-License-Identifier: Apache-2.0
#include "launcher/doctor/doctor_text.h"

#include <algorithm>
#include <map>
#include <set>

#include <fmt/format.h>

#include "launcher/text/text_table.h"

namespace muster::launcher {
namespace {

using Outcome = Reach::Outcome;
using Rows = std::vector<std::optional<DoctorRow>>;

constexpr std::size_t kMaxLines = 40;
constexpr std::size_t kMostInTable = 12;  // nodes; a wider table fits no terminal
struct OutcomeText {
  std::string_view name, hint;
};
// By Outcome.
constexpr OutcomeText kOutcomes[] = {
    {"works", ""},
    {"MTU",
     "small messages pass and big ones do not: an MTU is set larger than the network carries (ip link set "
     "dev "
     "NAME mtu 1500)"},
    {"silent", ""},
    {"timeout",
     "no answer at all: a firewall drops what comes, or the route back is missing; let the nodes reach each "
     "other on all TCP ports"},
    {"refused", "refused though the port was open: a firewall between the nodes rejects"},
    {"no route",
     "no route: the nodes share no network, or a route is missing; --iface=NAME chooses one that they share"},
    {"another",
     "another host answers at an address that several have, as a bridge's of containers; --iface=NAME leaves "
     "it out"},
    {"error", ""}};

std::string_view text_of(Outcome outcome) {
  return kOutcomes[static_cast<std::size_t>(outcome)].name;
}

struct ReachView {
  const std::vector<DoctorNode>& nodes;
  const Rows& rows;

  [[nodiscard]] std::size_t size() const { return nodes.size(); }
  /// nullptr: the result of `from` is missing.
  [[nodiscard]] const Path* path(std::size_t from, std::size_t to) const {
    return rows[from] ? &(*rows[from])[to] : nullptr;
  }
  /// visit(from, to, path) for each two nodes.
  template <class Visit>
  void each_path(const Visit& visit) const {
    for (std::size_t from = 0; from < size(); ++from)
      for (std::size_t to = 0; to < size(); ++to)
        if (from != to && rows[from]) visit(from, to, (*rows[from])[to]);
  }
  /// "10.0.0.1 (eth0)"
  [[nodiscard]] std::string title(std::size_t node, const std::string& address) const {
    const std::string_view interface = interface_of(node, address);
    return interface.empty() ? address : fmt::format("{} ({})", address, interface);
  }
  [[nodiscard]] std::string_view interface_of(std::size_t node, std::string_view address) const {
    for (const OfferedAddress& each : nodes[node].addresses)
      if (each.address == address) return each.interface;
    return {};
  }
};

/// The try that got furthest; nullptr: there was none.
const Reach* nearest_miss(const Path& path) {
  const auto least = std::ranges::min_element(path.tried, {}, &Reach::outcome);
  return least == path.tried.end() ? nullptr : &*least;
}

std::string cell(const ReachView& view, std::size_t from, std::size_t to) {
  if (from == to) return "-";
  const Path* path = view.path(from, to);
  if (path == nullptr) return "?";
  if (const Reach* best = path->best())
    return fmt::format("{:.2f} ms {}", static_cast<double>(best->round_trip_us) / 1000, best->interface);
  const Reach* miss = nearest_miss(*path);
  return miss == nullptr ? "x: no address" : std::string(text_of(miss->outcome));
}

std::string table_of_paths(const ReachView& view) {
  std::vector<std::vector<std::string>> rows = {{"from \\ to"}};
  for (const DoctorNode& node : view.nodes) rows[0].push_back(node.host);
  for (std::size_t from = 0; from < view.size(); ++from) {
    rows.push_back({view.nodes[from].host});
    for (std::size_t to = 0; to < view.size(); ++to) rows.back().push_back(cell(view, from, to));
  }
  return text_table(rows);
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

std::string broken_paths(const ReachView& view) {
  Lines out;
  for (std::size_t from = 0; from < view.size(); ++from)
    if (!view.rows[from]) out.add(fmt::format("{}: its result is missing", view.nodes[from].host));
  view.each_path([&](std::size_t from, std::size_t to, const Path& path) {
    if (path.best() != nullptr) return;
    std::string tried;
    for (const Reach& each : path.tried) {
      tried += fmt::format("{}{}: {}", tried.empty() ? "" : "; ", view.title(to, each.address),
                           text_of(each.outcome));
      if (!each.text.empty() && each.outcome == Outcome::kOther) tried += ": " + each.text;
    }
    out.add(fmt::format("{} does not reach {}: {}", view.nodes[from].host, view.nodes[to].host,
                        tried.empty() ? "it offers no address" : tried));
  });
  return out.take();
}

/// Addresses that are offered and cannot be reached by some nodes, though another address of that node works.
std::string dead_addresses(const ReachView& view) {
  std::map<std::pair<std::size_t, std::string>, std::size_t> missed;
  view.each_path([&](std::size_t, std::size_t to, const Path& path) {
    for (const Reach& each : path.tried)
      if (path.best() != nullptr && each.outcome != Outcome::kWorks) ++missed[{to, each.address}];
  });
  Lines out;
  for (const auto& [which, count] : missed)
    out.add(fmt::format("remark: {} of {} is not reached by {} of {} nodes; what chooses it hangs",
                        view.title(which.first, which.second), view.nodes[which.first].host, count,
                        view.size() - 1));
  return out.take();
}

std::string hints(const ReachView& view) {
  std::set<Outcome> seen;
  view.each_path([&](std::size_t, std::size_t, const Path& path) {
    if (const Reach* miss = path.best() != nullptr ? nullptr : nearest_miss(path)) seen.insert(miss->outcome);
  });
  std::string out;
  for (const Outcome outcome : seen)
    if (const auto hint = kOutcomes[static_cast<std::size_t>(outcome)].hint; !hint.empty())
      out += fmt::format("hint: {}\n", hint);
  return out;
}

/// Where nodes have several interfaces: one by which every node reaches every other.
std::string common_interface(const ReachView& view) {
  std::set<std::string> all, common;
  for (const DoctorNode& node : view.nodes)
    for (const OfferedAddress& each : node.addresses) all.insert(each.interface);
  common = all;
  common.erase("");
  for (const auto& row : view.rows)
    if (!row) common.clear();
  view.each_path([&](std::size_t, std::size_t to, const Path& path) {
    std::erase_if(common, [&](const std::string& name) {
      return std::ranges::none_of(path.tried, [&](const Reach& each) {
        return each.outcome == Outcome::kWorks && view.interface_of(to, each.address) == name;
      });
    });
  });
  if (common.empty() || all.size() == 1 || view.size() == 1) return {};
  return fmt::format("hint: every node reaches every other by --iface={}\n", *common.begin());
}

}  // namespace

Diagnosis diagnose(const std::vector<DoctorNode>& nodes, const Rows& rows) {
  const ReachView view{nodes, rows};
  const std::size_t paths = view.size() * (view.size() - 1);
  std::size_t working = 0;
  view.each_path([&](std::size_t, std::size_t, const Path& path) { working += path.best() != nullptr; });
  Diagnosis out;
  out.healthy = working == paths;
  if (view.size() <= kMostInTable) out.text = table_of_paths(view);
  out.text += broken_paths(view) + dead_addresses(view) + hints(view) + common_interface(view);
  if (view.size() == 1)
    out.text += "verdict: one node, there is nobody to reach\n";
  else if (out.healthy)
    out.text += fmt::format("verdict: {} nodes, every node reaches every other\n", view.size());
  else
    out.text +=
        fmt::format("verdict: {} nodes, {} of {} paths do not work\n", view.size(), paths - working, paths);
  // What other nodes sent must not control the terminal.
  for (char& c : out.text)
    if (c != '\n' && (static_cast<unsigned char>(c) < 32 || c == 127)) c = '?';
  return out;
}

}  // namespace muster::launcher
