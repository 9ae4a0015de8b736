// SPDX-License-Identifier: Apache-2.0
// JobView: what musterctl top shows: the status document of a job's first agent (GET /api/status) as values,
// what keys do to the view of it, and the lines that stand on a screen of some size, or without one. Pure;
// for ctl/ alone. The document came over a network and has texts of workers: none steers a terminal, and a
// field that is missing, null or of another type is shown as "-".
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <muster/result.h>

namespace muster::launcher {

struct Cell {
  std::string text;
  double number;  ///< NaN: the text alone counts
};

struct RankRow {
  std::int64_t rank = 0;
  std::vector<Cell> cells;  ///< one for each column
};

struct JobView {
  std::vector<std::string> heading;  ///< of the whole job
  std::vector<std::string> alerts;   ///< straggler, silent nodes, failure, hang
  std::vector<RankRow> ranks;
  std::vector<std::string> gpus;     ///< a table, the first line its titles
  std::vector<std::string> events;   ///< the newest last
  std::vector<std::string> failure;  ///< the report; empty: none
  std::vector<std::string> hang;     ///< likewise, with stacks
};

/// kProtocol: it is no status document.
[[nodiscard]] Result<JobView> parse_job_view(std::string_view json);
/// `text` as lines that may be shown.
[[nodiscard]] std::vector<std::string> shown_lines(std::string_view text);

struct TopState {
  enum class Page : std::uint8_t { kRanks, kLog, kHang, kFailure, kGpus, kEvents, kHelp };

  Page page = Page::kRanks;
  std::size_t sort = 0;  ///< a column
  bool reversed = false;
  std::string filter;
  bool typing = false;                  ///< the filter
  std::int64_t selected = 0;            ///< a rank
  std::size_t first = 0;                ///< row or line at the top
  std::vector<std::string> log;         ///< of the selected rank; the newest last
  std::string trouble = {};             ///< why the view is old
  std::size_t rows = 24, columns = 80;  ///< of the screen
};

/// A key is a printable character or one of these.
struct Key {
  enum : int { kUp = 0x100, kDown, kPageUp, kPageDown, kHome, kEnd, kEnter, kErase, kEscape };
};
enum class Action : std::uint8_t { kNone, kQuit, kReadLog };
[[nodiscard]] Action press(TopState& state, const JobView& view, int key);

struct ScreenLine {
  enum class Style : std::uint8_t { kPlain, kBold, kAlert, kReverse };
  std::string text;
  Style style = Style::kPlain;
  friend bool operator==(const ScreenLine&, const ScreenLine&) = default;
};
/// At most `state.rows`, none longer than `state.columns`; keeps `state.first` where there is something.
[[nodiscard]] std::vector<ScreenLine> screen_of(TopState& state, const JobView& view);
/// All of it.
[[nodiscard]] std::string plain_text(const JobView& view);

}  // namespace muster::launcher
