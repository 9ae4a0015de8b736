// SPDX-License-Identifier: Apache-2.0
// OutputFormatter: what of the workers' output reaches the launcher's own stdout and stderr, and how (--view,
// --local-ranks-filter, --ranks-filter, the prefix template).
//  - all: as it is; teed lines get a prefix.
//  - rank0: rank 0 whole and without prefix; the others from their first line that looks like an error.
//  - fold: equal lines of this node's ranks once, as [x8]; a line waits 300 ms for the others to say it.
// Whole lines only. A slow reader stops what feeds it (backpressure). One loop. Owned by a LogRouter, per
// attempt.
#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>
#include <iterator>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <boost/asio/io_context.hpp>

#include "launcher/job/job.h"
#include "launcher/output/fold_buffer.h"
#include "launcher/output/output_sink.h"
#include "rendezvous/base/lifetime.h"

namespace muster::launcher {

/// Bytes of several sources into one stream, in which sources alternate at line ends only. Bytes are passed
/// on at once; the source that has begun a line goes on, and the others wait until it ends, or kTimeout for
/// one that does not, such as a prompt: then a line end is put behind it. Nobody waits for a progress bar,
/// which is a line that returned to its beginning (\r): another bar takes its place, as on any terminal.
/// Pure: time is an argument.
class LineInterleaver {
 public:
  // A writer of whole lines that had no room for the end of one may have to wait on a busy machine,
  // where the others write megabytes meanwhile.
  static constexpr Millis kTimeout{1000};
  static constexpr std::size_t kMaxHeldBytes = std::size_t{64} << 20;

  /// Calls `emit(std::string_view)` for what can be written now.
  template <class Emit>
  void add(int source, std::string_view bytes, Instant now, Emit&& emit) {
    if (bytes.empty()) return;
    if (held_.empty() && owner_ && *owner_ != source && bar_) {
      if (bytes[0] != '\r') emit(std::string_view("\n"));
      owner_.reset();
    }
    if (held_.empty() && (!owner_ || *owner_ == source)) {
      emit(bytes);
      return begun(source, bytes);
    }
    Held& mine = held_.try_emplace(source, Held{{}, 0, now}).first->second;
    if (const auto end = bytes.rfind('\n'); end != std::string_view::npos)
      mine.lines_end = mine.bytes.size() + end + 1;
    mine.bytes.append(bytes);
    held_bytes_ += bytes.size();
    release(now, emit);
    tick(now, emit);
  }

  /// When tick() may have something to write.
  [[nodiscard]] std::optional<Instant> deadline() const {
    if (held_.empty()) return std::nullopt;
    const auto oldest =
        std::ranges::min_element(held_, {}, [](const auto& each) { return each.second.since; });
    return oldest->second.since + kTimeout;
  }

  /// Nobody was listened to until `now`, so that nobody could end a line.
  void excuse(Instant now) {
    for (auto& [source, held] : held_) held.since = now;
  }

  template <class Emit>
  void tick(Instant now, Emit&& emit) {
    if (held_.empty() || (now < *deadline() && held_bytes_ <= kMaxHeldBytes)) return;
    finish(emit);
  }

  /// Writes all that is held, an unfinished line as one.
  template <class Emit>
  void finish(Emit&& emit) {
    const auto write = [&](int source, const std::string& bytes) {
      if (owner_ && *owner_ != source) emit(std::string_view("\n"));
      emit(std::string_view(bytes));
      begun(source, bytes);
    };
    if (owner_)
      if (const auto mine = held_.extract(*owner_)) write(mine.key(), mine.mapped().bytes);
    for (const auto& [source, held] : held_) write(source, held.bytes);
    held_.clear();
    held_bytes_ = 0;
  }

 private:
  struct Held {
    std::string bytes;
    std::size_t lines_end;  // behind its last line end; 0: there is none
    Instant since;          // when the beginning of it came, or before
  };
  using Place = std::map<int, Held>::iterator;

  /// `source` has written `bytes`, and may be within a line now.
  void begun(int source, std::string_view bytes) {
    const auto line = bytes.rfind('\n');
    if (line == std::string_view::npos) {
      bar_ = (bar_ && owner_ == source) || bytes.find('\r') != std::string_view::npos;
    } else {
      bar_ = bytes.find('\r', line) != std::string_view::npos;
    }
    owner_ = bytes.back() == '\n' ? std::nullopt : std::optional<int>(source);
  }

  /// The whole lines that are held, the owner's first.
  template <class Emit>
  void release(Instant now, Emit&& emit) {
    if (owner_) {
      const auto mine = held_.find(*owner_);
      if (mine == held_.end() || !take_lines(mine, now, emit)) return;
      owner_.reset();
    }
    for (auto at = held_.begin(); at != held_.end();) {
      const auto next = std::next(at);
      (void)take_lines(at, now, emit);
      at = next;
    }
  }

  /// False: there is no line end in it.
  template <class Emit>
  bool take_lines(Place at, Instant now, Emit&& emit) {
    std::string& bytes = at->second.bytes;
    const std::size_t end = std::exchange(at->second.lines_end, 0);
    if (end == 0) return false;
    emit(std::string_view(bytes).substr(0, end));
    held_bytes_ -= end;
    bytes.erase(0, end);
    at->second.since = now;
    if (bytes.empty()) held_.erase(at);
    return true;
  }

  std::optional<int> owner_;  // whose line is open in what was written
  bool bar_ = false;          // and it is a progress bar
  std::map<int, Held> held_;
  std::size_t held_bytes_ = 0;
};

class OutputFormatter {
 public:
  enum class Form { kHidden, kBytes, kLines };

  OutputFormatter(boost::asio::io_context& io, const Job& job, const Assignment& assignment, OutputSink& out,
                  OutputSink& err);
  ~OutputFormatter();

  [[nodiscard]] bool shown(int local_rank) const;
  /// How output that does not go to a file is to be fed: as it comes, or as lines.
  [[nodiscard]] Form form(int local_rank) const;

  /// Whether a worker's stdout has to pass through here even where it is shown as it comes: others share the
  /// stream, and lines of theirs are not to begin within one of its.
  [[nodiscard]] bool shares(int local_rank) const;

  void bytes(int local_rank, Std stream, std::string_view text) { put(local_rank, stream, text); }
  /// A message of the launcher's, to stderr.
  void log(std::string_view line);
  /// One line, without its end. flush() after a batch of them.
  void line(int local_rank, Std stream, std::string_view text);
  void flush();
  /// The prefix of a worker's lines as it is now.
  [[nodiscard]] std::string prefix(int local_rank) const;
  /// The workers are gone: nothing more is to be waited for.
  void finish();

  [[nodiscard]] bool backpressure(Std stream) const {
    return (stream == Std::kOut ? out_ : err_).sink.backpressure();
  }
  /// `resume` is called once when there is room again.
  void when_writable(Std stream, std::function<void()> resume);

 private:
  struct Source;  // one worker

  /// The launcher's own stdout or stderr.
  struct Target {
    OutputSink& sink;
    std::string lines = {};  // of this batch
    LineInterleaver interleaver = {};
  };
  [[nodiscard]] Target& target(Std stream) { return stream == Std::kOut ? out_ : err_; }
  void append(Source& source, Std stream, std::string_view text);
  void append(const FoldBuffer::Entry& entry);
  void put(int source, Std stream, std::string_view text);
  void wait();

  const Job& job_;
  const Assignment& assignment_;
  Target out_, err_;
  std::vector<Source> sources_;
  std::string time_;  // of this batch, once somebody wants it
  std::optional<FoldBuffer> fold_;
  int num_shown_ = 0;  // of this node's ranks
  LoopTimer timer_;
  Instant awaited_ = Instant::max();  // when that is due
  Lifetime lifetime_;
};

}  // namespace muster::launcher
