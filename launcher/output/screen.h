// SPDX-License-Identifier: Apache-2.0
// Screen: what of the workers' output reaches the launcher's own stdout and stderr, and how (--view,
// --local-ranks-filter, --ranks-filter, the prefix template).
//  - all: as it is; teed lines get a prefix.
//  - rank0: rank 0 whole and without prefix; the others from their first line that looks like an error.
//  - fold: equal lines of this node's ranks once, as [x8]; a line waits 300 ms for the others to say it.
// Whole lines only. A slow reader stops whoever feeds a screen. One loop. Owned by a LogRouter, per attempt.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>

#include "launcher/job/job.h"
#include "launcher/output/fold_buffer.h"
#include "launcher/output/line_turns.h"
#include "launcher/output/output_sink.h"

namespace muster::launcher {

class Screen {
 public:
  enum class Form { kHidden, kBytes, kLines };

  Screen(boost::asio::io_context& io, const Job& job, const Assignment& assignment, OutputSink& out,
         OutputSink& err);
  ~Screen();

  [[nodiscard]] bool shown(int local_rank) const;
  /// How output that does not go to a file is to be fed: as it comes, or as lines.
  [[nodiscard]] Form form(int local_rank) const;

  /// Whether a worker's stdout has to pass through here even where it is shown as it comes: others share the
  /// stream, and lines of theirs are not to begin within one of its.
  [[nodiscard]] bool shares(int local_rank) const;

  void bytes(int local_rank, Std stream, std::string_view text);
  /// A message of the launcher's, to stderr.
  void say(std::string_view line);
  /// One line, without its end. flush() after a batch of them.
  void line(int local_rank, Std stream, std::string_view text);
  void flush();
  /// The prefix of a worker's lines as it is now.
  [[nodiscard]] std::string prefix(int local_rank) const;
  /// The workers are gone: nothing more is to be waited for.
  void finish();

  /// Waits for the reader. False: it has not taken everything by `deadline`.
  [[nodiscard]] bool make_room(Std stream, Instant deadline) { return sink(stream).flush(deadline) == 0; }
  [[nodiscard]] bool congested(Std stream) const { return (stream == Std::kOut ? out_ : err_).congested(); }
  /// `resume` is called once when there is room again.
  void when_clear(Std stream, std::function<void()> resume);

 private:
  struct Source;  // one worker

  [[nodiscard]] OutputSink& sink(Std stream) { return stream == Std::kOut ? out_ : err_; }
  void append(Source& source, Std stream, std::string_view text);
  void append(const FoldBuffer::Entry& entry);
  void put(int source, Std stream, std::string_view text);
  void wait_for_fold();
  void wait_for_turn();

  const Job& job_;
  const Assignment& assignment_;
  OutputSink& out_;
  OutputSink& err_;
  std::vector<Source> sources_;
  std::string out_lines_, err_lines_;  // of this batch
  std::string time_;                   // of this batch, once somebody wants it
  LineTurns out_turns_, err_turns_;
  std::optional<FoldBuffer> fold_;
  int num_shown_ = 0;  // of this node's ranks
  boost::asio::steady_timer fold_timer_;
  boost::asio::steady_timer turn_timer_;
  bool turn_awaited_ = false;
  std::shared_ptr<bool> alive_;
};

}  // namespace muster::launcher
