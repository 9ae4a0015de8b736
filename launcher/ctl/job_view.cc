// SPDX-License-Identifier: Apache-2.0
#include "launcher/ctl/job_view.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <map>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "launcher/ctl/commands.h"
#include "launcher/text/rank_ranges.h"
#include "launcher/text/text_table.h"
#include "rendezvous/base/split.h"
#include "rendezvous/base/text.h"

namespace muster::launcher {
namespace {

using Json = nlohmann::json;
using Style = ScreenLine::Style;
using Page = TopState::Page;

constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();
constexpr double kSilent = 5;  // seconds without news of a node that are worth a line
constexpr std::size_t kMaxCell = 40;

constexpr std::string_view kHints =
    "q quit  s sort  r reverse  / filter  Enter log  h stacks  f failure  g GPUs  e events  ? help";
constexpr std::string_view kHelp = R"(arrows, page keys, Home, End   move
s   sort by the next column        r   the other way round
/   show ranks with a text, such as a host or a phase; Enter keeps it, Esc ends it
Enter, l   the end of the selected rank's log
h   stacks: the hang report, from the selected rank on    f   why the job failed
g   all GPUs                           e   events
Esc, q     back to the ranks; q there ends musterctl, not the job)";

const Json& field(const Json& object, const char* name) {
  static const Json kNull;
  const auto found = object.is_object() ? object.find(name) : object.end();
  return object.is_object() && found != object.end() ? *found : kNull;
}

const Json::array_t& items(const Json& value) {
  static const Json::array_t kNone;
  return value.is_array() ? value.get_ref<const Json::array_t&>() : kNone;
}

double number(const Json& value) {
  return value.is_number() ? value.get<double>() : kUnknown;
}

std::string text(const Json& value, std::size_t max_bytes = 300) {
  return value.is_string() ? one_line(value.get_ref<const std::string&>(), max_bytes) : std::string();
}

std::string plain(double value) {
  const bool whole = std::abs(value) >= 1000 && std::abs(value) < 1e15;
  return std::isnan(value) ? "-" : whole ? fmt::format("{:.0f}", value) : fmt::format("{:.4g}", value);
}

std::string bytes(double value) {
  return value >= 0 && value < 1e18 ? size_text(static_cast<std::uint64_t>(value)) : "-";
}

std::string seconds(double value) {
  return value >= 0 && value < 1e15 ? age_of(0, static_cast<std::int64_t>(value)) : "-";
}

std::string percent(double value) {
  return std::isnan(value) ? "-" : plain(value) + "%";
}

// Columns of the table: a text where there is no `shown`.
struct Column {
  const char* name;
  std::string_view title;
  std::string (*shown)(double);
};
constexpr Column kColumns[] = {{"rank", "RANK", plain},
                               {"host", "HOST", nullptr},
                               {"state", "STATE", nullptr},
                               {"epoch", "EPOCH", plain},
                               {"step", "STEP", plain},
                               {"step_s", "S/STEP", plain},
                               {"throughput", "RATE", plain},
                               {"loss", "LOSS", plain},
                               {"phase", "PHASE", nullptr},
                               {"idle_s", "IDLE", seconds},
                               {"resident_bytes", "MEMORY", bytes},
                               {"gpu", "GPU", percent}};

using Nodes = std::map<double, const Json*>;

RankRow row_of(const Json& ranks, std::size_t i, const Nodes& nodes) {
  const auto at = [&](const char* name) -> const Json& {
    const auto& column = items(field(ranks, name));
    static const Json kNull;
    return i < column.size() ? column[i] : kNull;
  };
  const double on = number(at("node"));
  const auto found = std::isnan(on) ? nodes.end() : nodes.find(on);
  const Json& node = found == nodes.end() ? field({}, "") : *found->second;
  RankRow out;
  out.rank = at("rank").is_number_integer() ? at("rank").get<std::int64_t>() : static_cast<std::int64_t>(i);
  for (const Column& column : kColumns) {
    const std::string_view name = column.name;
    if (column.shown == nullptr) {
      out.cells.push_back(
          {or_dash(text(name == "host" ? field(node, "host") : at(column.name), kMaxCell)), kUnknown});
      continue;
    }
    double value = number(at(column.name));
    if (name == "gpu") {
      const auto uses = [&](const Json& gpu) {
        const auto& users = items(field(gpu, "ranks"));
        return std::ranges::find(users, at("rank")) != users.end();
      };
      const auto& gpus = items(field(node, "gpus"));
      if (const auto its = std::ranges::find_if(gpus, uses); its != gpus.end())
        value = number(field(*its, "util_percent"));
    }
    std::string shown = column.shown(value);
    if (const double all = number(at("steps")); name == "step" && !std::isnan(value) && all > 0)
      shown += "/" + plain(all);
    out.cells.push_back({std::move(shown), value});
  }
  if (at("straggler") == true && out.cells[2].text != "-") out.cells[2].text += " slow";
  return out;
}

void add_gpus(const Json& node, std::vector<std::vector<std::string>>& rows) {
  for (const Json& gpu : items(field(node, "gpus"))) {
    const auto value = [&](const char* name) { return number(field(gpu, name)); };
    const auto unit = [&](const char* name, const char* text) {
      const std::string shown = plain(value(name));
      return shown == "-" ? shown : shown + text;
    };
    std::vector<std::string> ranks;
    for (const Json& rank : items(field(gpu, "ranks"))) ranks.push_back(plain(number(rank)));
    rows.push_back({text(field(node, "host"), kMaxCell), plain(value("gpu")),
                    ranks.empty() ? "-" : fmt::format("{}", fmt::join(ranks, ",")),
                    percent(value("util_percent")), bytes(value("memory_used_bytes")),
                    bytes(value("memory_total_bytes")), unit("power_w", " W"), unit("temperature_c", " C"),
                    unit("sm_clock_mhz", " MHz"), plain(value("xid")), text(field(gpu, "name"), kMaxCell)});
  }
}

std::string on_rank(const Json& of) {
  const double rank = number(field(of, "rank"));
  const std::string host = text(field(of, "host"));
  return (std::isnan(rank) ? "" : " rank " + plain(rank)) + (host.empty() ? "" : " on " + host);
}

void add_finding(const Json& finding, const char* what, const char* key, JobView& view,
                 std::vector<std::string>& report) {
  if (!finding.is_object()) return;
  view.alerts.push_back(fmt::format("{}: {} ({})", what, text(field(finding, "text")), key));
  const Json& full = field(finding, "report");
  report = shown_lines(full.is_string() ? full.get<std::string>()
                                        : full.dump(1, ' ', false, Json::error_handler_t::replace));
}

/// Between two characters.
std::string cut(std::string line, std::size_t columns) {
  std::size_t end = 0;
  for (std::size_t n = 0; end < line.size() && (n += (line[end] & 0xc0) != 0x80) <= columns;) ++end;
  line.resize(end);
  return line;
}

std::vector<const RankRow*> rows_of(const JobView& view, const TopState& state) {
  std::vector<const RankRow*> out;
  for (const RankRow& row : view.ranks)
    if (std::ranges::any_of(
            row.cells, [&](const Cell& cell) { return cell.text.find(state.filter) != std::string::npos; }))
      out.push_back(&row);
  std::ranges::stable_sort(out, [&](const RankRow* left, const RankRow* right) {
    const Cell &a = left->cells[state.sort], &b = right->cells[state.sort];
    if (a.text == "-" || b.text == "-") return a.text != "-" && b.text == "-";  // unknown: behind
    const Cell &low = state.reversed ? b : a, &high = state.reversed ? a : b;
    return std::isnan(a.number) || std::isnan(b.number) ? low.text < high.text : low.number < high.number;
  });
  return out;
}

std::size_t place_of(const std::vector<const RankRow*>& rows, std::int64_t rank) {
  const auto found = std::ranges::find(rows, rank, &RankRow::rank);
  return found == rows.end() ? 0 : static_cast<std::size_t>(found - rows.begin());
}

std::vector<std::string> table_of(const std::vector<const RankRow*>& rows) {
  std::vector<std::vector<std::string>> cells(1);
  for (const Column& column : kColumns) cells[0].emplace_back(column.title);
  for (const RankRow* row : rows) {
    auto& line = cells.emplace_back();
    for (const Cell& cell : row->cells) line.push_back(cell.text);
  }
  return shown_lines(text_table(cells));
}

/// By Page: the ranks are a table, and the log has a key of its own.
struct PageRow {
  char key;
  std::string_view title, none;  // `none`: what is shown where there are no lines
  std::vector<std::string> JobView::*lines;
};
constexpr PageRow kPages[] = {{'\0', "ranks", "", nullptr},
                              {'\0', "log", "asked for", nullptr},
                              {'h', "stacks", "no hang was reported", &JobView::hang},
                              {'f', "failure", "the job has not failed", &JobView::failure},
                              {'g', "GPUs", "no GPU is known", &JobView::gpus},
                              {'e', "events", "no event is known", &JobView::events},
                              {'?', "help", kHelp, nullptr}};

const PageRow& page_row(const TopState& state) {
  return kPages[static_cast<std::size_t>(state.page)];
}

std::vector<std::string> page_of(const TopState& state, const JobView& view) {
  const PageRow& row = page_row(state);
  auto lines = state.page == Page::kLog ? state.log : row.lines ? view.*row.lines : shown_lines({});
  return lines.empty() ? shown_lines(row.none) : lines;
}

/// Where a hang report (hang_report.h) tells of the rank: "  ranks 0-2,5 on a, b: ...", and below it, further
/// in, its stack. Empty where it does not.
std::pair<std::size_t, std::size_t> lines_of_rank(const std::vector<std::string>& report, std::int64_t rank) {
  for (std::size_t i = 0; i < report.size(); ++i) {
    std::string_view ranges = report[i];
    if (!ranges.starts_with("  rank ") && !ranges.starts_with("  ranks ")) continue;
    ranges.remove_prefix(ranges.find(' ', 2) + 1);
    const auto ranks =
        parse_ranges(ranges.substr(0, ranges.find_first_of(" :")), std::numeric_limits<int>::max());
    if (!ranks || !std::binary_search(ranks->begin(), ranks->end(), rank)) continue;
    std::size_t end = i + 1;
    while (end < report.size() && report[end].starts_with("    ")) ++end;
    return {i, end};
  }
  return {};
}

/// Rows that are left for the body.
std::size_t body_rows(const TopState& state, const JobView& view) {
  const std::size_t around = view.heading.size() + view.alerts.size() + (state.trouble.empty() ? 0 : 1) + 2;
  return state.rows > around + 1 ? state.rows - around : 1;
}

}  // namespace

std::vector<std::string> shown_lines(std::string_view text) {
  std::vector<std::string> out;
  for (const std::string_view line : split(text, '\n')) out.push_back(one_line(line));
  if (!out.empty() && out.back().empty()) out.pop_back();
  return out;
}

Result<JobView> parse_job_view(std::string_view document) {
  // Nothing of what is nested deeper is kept: showing it would recurse as deep.
  const auto is_shallow = [](int depth, Json::parse_event_t, const Json&) { return depth < 100; };
  const Json json = Json::parse(document, is_shallow, false);
  const Json &job = field(json, "job"), &ranks = field(json, "ranks");
  if (!job.is_object() || !ranks.is_object())
    return fail(ErrorCode::kProtocol, "what came is no status document of a job");
  JobView out;
  const auto of_job = [&](const char* name) { return number(field(job, name)); };
  const std::string program = text(field(job, "program"));
  out.heading.push_back(fmt::format("{}{}: {}, for {}", text(field(job, "run_id")),
                                    program.empty() ? "" : " (" + program + ")", text(field(job, "state")),
                                    seconds(of_job("now") - of_job("began"))));
  out.heading.push_back(fmt::format("nodes {}  ranks {}  generation {}  restarts {}/{}",
                                    plain(of_job("nodes")), plain(of_job("world_size")),
                                    plain(of_job("generation")), plain(of_job("restarts")),
                                    plain(of_job("max_restarts"))));
  add_finding(field(json, "failure"), "failure", "f", out, out.failure);
  add_finding(field(json, "hang"), "hang", "h", out, out.hang);
  if (const Json& slow = field(json, "straggler"); slow.is_object())
    out.alerts.push_back("straggler: " + text(field(slow, "text")));
  Nodes nodes;
  std::vector<std::string> silent;
  std::vector<std::vector<std::string>> gpus = {
      {"HOST", "GPU", "RANK", "UTIL", "MEMORY", "OF", "POWER", "TEMP", "CLOCK", "XID", "NAME"}};
  for (const Json& node : items(field(json, "nodes"))) {
    if (const double at = number(field(node, "node")); !std::isnan(at)) nodes[at] = &node;
    if (const double age = number(field(node, "age_s")); age > kSilent)
      silent.push_back(fmt::format("{} ({})", text(field(node, "host"), kMaxCell), seconds(age)));
    add_gpus(node, gpus);
  }
  if (gpus.size() > 1) out.gpus = shown_lines(text_table(gpus));
  if (silent.size() > 4) silent = {silent[0], silent[1], fmt::format("{} more", silent.size() - 2)};
  if (!silent.empty()) out.alerts.push_back(fmt::format("no news of: {}", fmt::join(silent, ", ")));
  for (std::size_t i = 0; i < items(field(ranks, "rank")).size(); ++i)
    out.ranks.push_back(row_of(ranks, i, nodes));
  for (const Json& event : items(field(json, "events"))) {
    const std::string said = text(field(event, "text"));
    out.events.push_back(fmt::format("{} ago {}{}{}{}", seconds(of_job("now") - number(field(event, "time"))),
                                     text(field(event, "event")), on_rank(event), said.empty() ? "" : ": ",
                                     said));
  }
  return out;
}

Action press(TopState& state, const JobView& view, int key) {
  const auto rows = rows_of(view, state);
  const auto turn_to = [&](Page page) {
    state.page = page;
    state.first = 0;
    return Action::kNone;
  };
  if (state.typing) {
    if (key < Key::kUp) state.filter.push_back(static_cast<char>(key));
    if (key == Key::kErase && !state.filter.empty()) state.filter.pop_back();
    if (key == Key::kEscape) state.filter.clear();
    state.typing = key != Key::kEscape && key != Key::kEnter;
    state.first = 0;
    return Action::kNone;
  }
  const bool on_ranks = state.page == Page::kRanks;
  const std::size_t page = body_rows(state, view);
  const std::size_t all = on_ranks ? rows.size() : page_of(state, view).size();
  std::size_t at = on_ranks ? place_of(rows, state.selected) : state.first;
  const std::size_t last = on_ranks ? std::max<std::size_t>(all, 1) - 1 : all - std::min(all, page);
  if (key == Key::kUp) at -= std::min<std::size_t>(at, 1);
  if (key == Key::kDown) at += 1;
  if (key == Key::kPageUp) at -= std::min(at, page);
  if (key == Key::kPageDown) at += page;
  if (key == Key::kHome) at = 0;
  if (key == Key::kEnd) at = last;
  switch (key) {
    case Key::kEscape:
      return turn_to(Page::kRanks);
    case 'q':
      return on_ranks ? Action::kQuit : turn_to(Page::kRanks);
    case 's':
      state.sort = (state.sort + 1) % std::size(kColumns);
      break;
    case 'r':
      state.reversed = !state.reversed;
      break;
    case '/':
      state.typing = true;
      return turn_to(Page::kRanks);
    case Key::kEnter:
    case 'l':
      if (!on_ranks || rows.empty()) break;
      state.selected = rows[at]->rank;
      state.log.clear();
      (void)turn_to(Page::kLog);
      return Action::kReadLog;
    default:
      for (const PageRow& row : kPages)
        if (key == row.key) {
          (void)turn_to(static_cast<Page>(&row - kPages));
          if (state.page == Page::kHang) state.first = lines_of_rank(view.hang, state.selected).first;
          return Action::kNone;
        }
  }
  at = std::min(at, last);
  if (!on_ranks)
    state.first = at;
  else if (at < all)
    state.selected = rows[at]->rank;
  return Action::kNone;
}

std::vector<ScreenLine> screen_of(TopState& state, const JobView& view) {
  std::vector<ScreenLine> out;
  const auto add = [&](std::string line, Style style) {
    if (out.size() + 1 < state.rows) out.push_back({cut(std::move(line), state.columns), style});
  };
  for (const std::string& line : view.heading) add(line, Style::kBold);
  for (const std::string& line : view.alerts) add(line, Style::kAlert);
  if (!state.trouble.empty()) add(state.trouble, Style::kAlert);
  const std::size_t most = body_rows(state, view);
  if (state.page == Page::kRanks) {
    const auto rows = rows_of(view, state);
    const std::size_t at = place_of(rows, state.selected);
    if (at < rows.size()) state.selected = rows[at]->rank;
    state.first = std::min(state.first, at);
    if (at >= state.first + most) state.first = at + 1 - most;
    state.first = std::min(state.first, rows.size() - std::min(rows.size(), most));
    const auto table = table_of(rows);
    add(table[0], Style::kBold);
    for (std::size_t i = state.first; i < std::min(rows.size(), state.first + most); ++i)
      add(table[i + 1], i == at && !state.typing ? Style::kReverse : Style::kPlain);
  } else {
    const auto lines = page_of(state, view);
    state.first = std::min(state.first, lines.size() - std::min(lines.size(), most));
    add(fmt::format("{}{}", page_row(state).title,
                    state.page == Page::kLog ? fmt::format(" of rank {}", state.selected) : ""),
        Style::kBold);
    const auto mine = state.page == Page::kHang ? lines_of_rank(lines, state.selected)
                                                : std::pair<std::size_t, std::size_t>();
    for (std::size_t i = state.first; i < std::min(lines.size(), state.first + most); ++i)
      add(lines[i], i >= mine.first && i < mine.second ? Style::kBold : Style::kPlain);
  }
  while (out.size() + 1 < state.rows) out.push_back({});
  std::string foot =
      fmt::format("by {}{}{}  {}", kColumns[state.sort].title, state.reversed ? " reversed" : "",
                  state.filter.empty() ? "" : fmt::format(" with \"{}\"", state.filter), kHints);
  if (state.typing) foot = fmt::format("filter: {}_", state.filter);
  if (state.page != Page::kRanks) foot = "q back  arrows, page keys: move";
  out.push_back({cut(std::move(foot), state.columns), Style::kReverse});
  return out;
}

std::string plain_text(const JobView& view) {
  std::string out = fmt::format("{}\n", fmt::join(view.heading, "\n"));
  for (const std::string& line : view.alerts) out += line + "\n";
  out += fmt::format("\n{}\n", fmt::join(table_of(rows_of(view, {})), "\n"));
  if (!view.gpus.empty()) out += fmt::format("\n{}\n", fmt::join(view.gpus, "\n"));
  if (!view.events.empty()) out += "\nlast event: " + view.events.back() + "\n";
  return out;
}

}  // namespace muster::launcher
