// SPDX-License-Identifier: Apache-2.0
// What musterctl top shows of a status document, and what keys do to it.
#include "launcher/ctl/job_view.h"

#include <algorithm>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "tests/support/catch.h"

using namespace muster;
using namespace muster::launcher;
using Json = nlohmann::json;
using Style = ScreenLine::Style;
using Page = TopState::Page;

namespace {

Json document(int num_ranks) {
  Json out = Json::parse(R"({
    "job": {"run_id": "train", "program": "train.py", "state": "running", "generation": 1, "restarts": 0,
            "max_restarts": 3, "nodes": 2, "world_size": 8, "began": 1000, "now": 1754, "version": "0.1"},
    "nodes": [{"node": 0, "host": "n1", "state": "running", "age_s": 0.2, "gpus": [
                {"gpu": 3, "name": "H100", "ranks": [1], "util_percent": 97, "memory_used_bytes": 42949672960,
                 "memory_total_bytes": 85899345920, "power_w": 512.3, "temperature_c": 61,
                 "sm_clock_mhz": 1980, "xid": null}]},
              {"node": 1, "host": "n2", "state": "running", "age_s": 0.2, "gpus": []}],
    "ranks": {}, "straggler": null, "events": [], "failure": null, "hang": null})");
  Json& ranks = out["ranks"];
  const int per_node = std::max(1, num_ranks / 2);
  for (int rank = 0; rank < num_ranks; ++rank) {
    ranks["rank"].push_back(rank);
    ranks["local_rank"].push_back(rank % per_node);
    ranks["node"].push_back(rank / per_node);
    ranks["state"].push_back("running");
    ranks["epoch"].push_back(2);
    ranks["step"].push_back(1400 - rank % 7);
    ranks["steps"].push_back(15000);
    ranks["step_s"].push_back(0.25);
    ranks["throughput"].push_back(rank == 1 ? Json() : Json(1234.5));
    ranks["loss"].push_back(0.3125);
    ranks["phase"].push_back(rank == 3 ? "data" : "all_reduce");
    ranks["idle_s"].push_back(0.4);
    ranks["resident_bytes"].push_back(std::int64_t{3} << 30);
    ranks["straggler"].push_back(rank == 3);
  }
  return out;
}

JobView view_of(const Json& from) {
  auto out = parse_job_view(from.dump());
  REQUIRE(out);
  return *std::move(out);
}

TopState screen(std::size_t rows, std::size_t columns) {
  TopState out;
  out.rows = rows;
  out.columns = columns;
  return out;
}

std::vector<std::string> texts(TopState& state, const JobView& view) {
  std::vector<std::string> out;
  for (const ScreenLine& line : screen_of(state, view)) out.push_back(line.text);
  return out;
}

/// Ranks on the screen, from the first column.
std::vector<int> ranks_on(TopState& state, const JobView& view) {
  std::vector<int> out;
  for (const std::string& line : texts(state, view))
    if (!line.empty() && line[0] >= '0' && line[0] <= '9') out.push_back(std::stoi(line));
  return out;
}

void type(TopState& state, const JobView& view, std::string_view keys) {
  for (const char key : keys) (void)press(state, view, key);
}

}  // namespace

TEST_CASE("a job is shown as lines with its ranks, its GPUs and what slows it down") {
  Json from = document(4);
  from["straggler"] = {{"rank", 3}, {"host", "n2"}, {"text", "spends 0.31 s per step in data, 48 % more"}};
  from["events"].push_back(
      {{"time", 1700.5}, {"event", "running"}, {"rank", nullptr}, {"host", "n1"}, {"text", ""}});
  REQUIRE(
      plain_text(view_of(from)) ==
      "train (train.py): running, for 12m\n"
      "nodes 2  ranks 8  generation 1  restarts 0/3\n"
      "straggler: spends 0.31 s per step in data, 48 % more\n"
      "\n"
      "RANK  HOST  STATE         EPOCH  STEP        S/STEP  RATE  LOSS    PHASE       IDLE  MEMORY    GPU\n"
      "0     n1    running       2      1400/15000  0.25    1234  0.3125  all_reduce  0s    3072 MiB  -\n"
      "1     n1    running       2      1399/15000  0.25    -     0.3125  all_reduce  0s    3072 MiB  97%\n"
      "2     n2    running       2      1398/15000  0.25    1234  0.3125  all_reduce  0s    3072 MiB  -\n"
      "3     n2    running slow  2      1397/15000  0.25    1234  0.3125  data        0s    3072 MiB  -\n"
      "\n"
      "HOST  GPU  RANK  UTIL  MEMORY  OF      POWER    TEMP  CLOCK     XID  NAME\n"
      "n1    3    1     97%   40 GiB  80 GiB  512.3 W  61 C  1980 MHz  -    H100\n"
      "\n"
      "last event: 53s ago running on n1\n");
}

TEST_CASE("what is missing, null or of another type is shown as unknown") {
  for (const char* text : {"", "[]", "{}", R"({"job":{},"ranks":[]})", R"({"job":{"run_id":"x"},"ra)"})
    CHECK_FALSE(parse_job_view(text));
  JobView empty = view_of(Json::parse(R"({"job":{},"ranks":{}})"));
  CHECK(empty.ranks.empty());
  TopState state = screen(10, 40);
  CHECK(screen_of(state, empty).size() == 10);
  for (const char key : std::string_view("lhfge?q/q")) (void)press(state, empty, key);

  const JobView odd = view_of(Json::parse(R"({"job":{"run_id":7,"state":null,"began":"x"},"nodes":{"a":1},
      "ranks":{"rank":[0,"x",null,-3],"node":[0],"step":[1e300,true,-5],"resident_bytes":[-1,1e300],
      "idle_s":[1e300],"loss":"x","state":[1,2,3],"local_rank":[-1,1e18]},"events":[1,{"time":[]}],
      "failure":[],"hang":"x","straggler":1})"));
  REQUIRE(odd.ranks.size() == 4);
  CHECK(odd.ranks[3].rank == -3);
  CHECK(odd.ranks[0].cells[4].text == "1e+300");
  CHECK(odd.ranks[1].cells[4].text == "-");
  CHECK(odd.ranks[0].cells[10].text == "-");
  CHECK(odd.alerts.empty());
}

TEST_CASE("what is nested too deep to be shown is left out") {
  std::string text = R"({"job":{},"ranks":{},"failure":{"text":"it failed","report":)";
  text += std::string(100'000, '[') + std::string(100'000, ']') + "}}";
  const auto view = parse_job_view(text);
  REQUIRE(view);
  CHECK(view->alerts == std::vector<std::string>{"failure: it failed (f)"});
}

TEST_CASE("texts from workers do not reach the terminal raw") {
  Json from = document(2);
  const std::string hostile =
      "a\x1b[2Jb\n\tc\x07\xc2\x9b"
      "31m";
  for (const char* name : {"run_id", "program", "state"}) from["job"][name] = hostile;
  from["nodes"][0]["host"] = hostile;
  from["nodes"][0]["gpus"][0]["name"] = hostile;
  for (const char* name : {"state", "phase"}) from["ranks"][name] = {hostile, hostile};
  from["failure"] = {{"text", hostile}, {"report", hostile + "\n" + hostile}};
  from["hang"] = {{"text", hostile}, {"report", {{"ranks", hostile}}}};
  from["straggler"] = {{"rank", 1}, {"host", hostile}, {"text", hostile}};
  from["events"].push_back({{"time", hostile}, {"event", hostile}, {"host", hostile}, {"text", hostile}});
  const JobView view = view_of(from);
  const auto is_clean = [](std::string_view text) {
    return std::none_of(text.begin(), text.end(), [](unsigned char c) { return c < 0x20 && c != '\n'; }) &&
           text.find("\xc2\x9b") == std::string_view::npos;
  };
  CHECK(is_clean(plain_text(view)));
  TopState state = screen(40, 200);
  for (const char key : std::string_view(" hfge?")) {
    type(state, view, std::string(1, key));
    for (const std::string& line : texts(state, view)) CHECK(is_clean(line));
  }
  for (const std::string& line : shown_lines(hostile)) CHECK(is_clean(line));
}

TEST_CASE("keys sort, reverse and filter the ranks, unknown ones last both ways") {
  const JobView view = view_of(document(4));
  TopState state = screen(20, 120);
  CHECK(ranks_on(state, view) == std::vector{0, 1, 2, 3});
  type(state, view, "r");
  CHECK(ranks_on(state, view) == std::vector{3, 2, 1, 0});
  type(state, view, "rssss");
  CHECK(texts(state, view).back().starts_with("by STEP "));
  CHECK(ranks_on(state, view) == std::vector{3, 2, 1, 0});
  type(state, view, "ss");
  CHECK(texts(state, view).back().starts_with("by RATE "));
  CHECK(ranks_on(state, view) == std::vector{0, 2, 3, 1});
  type(state, view, "r");
  CHECK(ranks_on(state, view).back() == 1);

  type(state, view, "/n2x");
  CHECK(texts(state, view).back() == "filter: n2x_");
  CHECK(ranks_on(state, view).empty());
  (void)press(state, view, Key::kErase);
  (void)press(state, view, Key::kEnter);
  CHECK(ranks_on(state, view) == std::vector{2, 3});
  CHECK(texts(state, view).back().find("with \"n2\"") != std::string::npos);
  type(state, view, "/");
  (void)press(state, view, Key::kEscape);
  CHECK(ranks_on(state, view).size() == 4);
}

TEST_CASE("the selected rank is kept on the screen among 4096, whatever its size") {
  const JobView view = view_of(document(4096));
  TopState state = screen(24, 80);
  for (const auto& [key, rank] : {std::pair{Key::kDown, 1},
                                  {Key::kPageDown, 21},
                                  {Key::kEnd, 4095},
                                  {Key::kDown, 4095},
                                  {Key::kPageUp, 4075},
                                  {Key::kUp, 4074},
                                  {Key::kHome, 0},
                                  {Key::kUp, 0},
                                  {Key::kEnd, 4095}}) {
    (void)press(state, view, key);
    CHECK(state.selected == rank);
    const auto lines = screen_of(state, view);
    REQUIRE(lines.size() == 24);
    CHECK(std::count_if(lines.begin(), lines.end() - 1, [&state](const ScreenLine& line) {
            return line.style == Style::kReverse && std::stoi(line.text) == state.selected;
          }) == 1);
  }
  for (std::size_t rows = 1; rows < 12; ++rows)
    for (std::size_t columns : {1, 7, 300}) {
      state.rows = rows;
      state.columns = columns;
      const auto lines = screen_of(state, view);
      CHECK(lines.size() == rows);
      for (const ScreenLine& line : lines) CHECK(line.text.size() <= columns);
    }
}

TEST_CASE("a key opens a page over the ranks and another leads back") {
  Json from = document(4);
  from["failure"] = {{"text", "rank 3 failed"}, {"report", "rank 3 on n2\nRuntimeError: x\n"}};
  from["hang"] = {{"text", "1 rank hangs"}, {"report", "rank 2 waits"}};
  const JobView view = view_of(from);
  TopState state = screen(12, 100);
  const auto shows = [&](std::string_view text) {
    const auto lines = texts(state, view);
    return std::find(lines.begin(), lines.end(), text) != lines.end();
  };
  CHECK(shows("failure: rank 3 failed (f)"));
  CHECK(shows("hang: 1 rank hangs (h)"));
  type(state, view, "f");
  CHECK(shows("RuntimeError: x"));
  type(state, view, "h");
  CHECK(shows("rank 2 waits"));
  CHECK(press(state, view, 'q') == Action::kNone);
  (void)press(state, view, Key::kDown);
  CHECK(press(state, view, Key::kEnter) == Action::kReadLog);
  CHECK(shows("log of rank 1"));
  for (int i = 0; i < 50; ++i) state.log.push_back(fmt::format("line {}", i));
  CHECK(shows("line 0"));
  (void)press(state, view, Key::kEnd);
  CHECK(shows("line 49"));
  (void)press(state, view, Key::kPageUp);
  CHECK_FALSE(shows("line 49"));
  (void)press(state, view, Key::kEscape);
  CHECK(state.page == Page::kRanks);
  CHECK(press(state, view, 'q') == Action::kQuit);
}

TEST_CASE("the stacks begin with the selected rank's, which stands out") {
  Json from = document(4);
  std::string report = "muster: hang on n1: ranks 0-3 made no progress\n  outlier: rank 1 on n1, in data\n";
  for (int i = 0; i < 10; ++i) report += "  sign of life: progress\n";
  report +=
      "  rank 1 on n1: sleeping in read\n    gdb: read <- load\n  ranks 0,2-3 on n1, n2: running\n"
      "    py-spy: all_reduce (train.py:7)\n  and 2 more places\n  ranks\n  rank x: y\n  ranks 9-4: z\n";
  from["hang"] = {{"text", "4 ranks hang"}, {"report", report}};
  const JobView view = view_of(from);
  TopState state = screen(10, 100);
  const auto body = [&](Style style) {
    std::vector<std::string> out;
    for (const ScreenLine& line : screen_of(state, view))
      if (line.style == style && line.text.starts_with("  ")) out.push_back(line.text);
    return out;
  };
  const std::vector<std::string> of_1 = {"  rank 1 on n1: sleeping in read", "    gdb: read <- load"},
                                 of_3 = {"  ranks 0,2-3 on n1, n2: running",
                                         "    py-spy: all_reduce (train.py:7)"};
  state.selected = 1;
  type(state, view, "h");
  CHECK(body(Style::kBold) == of_1);
  CHECK(body(Style::kPlain).front() == of_3.front());
  (void)press(state, view, Key::kEscape);
  state.selected = 3;
  type(state, view, "h");
  CHECK(body(Style::kBold) == of_3);
  (void)press(state, view, Key::kHome);
  CHECK(body(Style::kPlain).front() == "  outlier: rank 1 on n1, in data");
  state.selected = 7;
  type(state, view, "h");
  CHECK(body(Style::kBold).empty());
  CHECK(state.first == 0);
}

TEST_CASE("old data are said to be old, and so are silent nodes") {
  Json from = document(2);
  from["nodes"][1]["age_s"] = 42;
  const JobView view = view_of(from);
  CHECK(view.alerts == std::vector<std::string>{"no news of: n2 (42s)"});
  TopState state = screen(12, 100);
  state.trouble = "as of 9 s ago: connect 127.0.0.1:1: refused";
  CHECK(texts(state, view)[3] == state.trouble);
}
