// SPDX-License-Identifier: Apache-2.0
// OutputSink: the launcher's own stdout or stderr as a target for workers' output. Never blocks the loop on a
// slow terminal or pipe: what does not fit is queued, and readers stop while the queue is long (so the worker
// is slowed, as it would be if it wrote there itself). The shared descriptor's flags are left alone; where it
// cannot be opened anew (after sudo -u, say), a thread beside the loop writes. A closed reader (EPIPE)
// swallows the rest; what a full disk does not take is lost, and the next write is tried. One loop; must
// outlive nothing: pending waits are cancelled by the destructor.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>

#include "rendezvous/base/clock.h"
#include "rendezvous/net/helper_thread.h"

namespace muster::launcher {

class OutputSink {
 public:
  static constexpr std::size_t kBackpressureBytes = 256 * 1024;

  /// `fd`: 1 or 2; stays open.
  OutputSink(boost::asio::io_context& io, int fd);
  ~OutputSink();
  OutputSink(const OutputSink&) = delete;
  OutputSink& operator=(const OutputSink&) = delete;

  void write(std::string_view bytes);
  /// Likewise whole lines, which do not begin within a line that somebody else has not ended.
  void write_lines(std::string_view lines) {
    if (line_open_) write("\n");
    write(lines);
  }

  [[nodiscard]] bool backpressure() const { return queued_bytes_ > kBackpressureBytes; }
  /// `resume` is called once when the queue has become short.
  void when_writable(std::function<void()> resume) { waiting_.push_back(std::move(resume)); }
  /// Writes what is queued, as long as the reader takes some of it within each `patience`. Returns the bytes
  /// that it did not take.
  [[nodiscard]] std::size_t flush(Millis patience);
  /// `failed` is called with errno at the first write that fails though somebody would read it: a full disk.
  void when_failing(std::function<void(int)> failed) { failed_ = std::move(failed); }

 private:
  enum class Mode { kBlocking, kNonBlocking, kSocket, kThread, kGone };

  /// Bytes taken; 0 when it would block.
  std::size_t write_some(std::string_view bytes);
  void pump();
  void arm();
  void failed(int error);
  void hand_over();
  void take_written();
  void resume_readers();

  int fd_;  // written to; not owned when it is the given one
  Mode mode_ = Mode::kBlocking;
  boost::asio::posix::stream_descriptor waiter_;  // tells when fd_ takes bytes again
  std::deque<std::string> queue_;
  std::size_t taken_ = 0;  // of the first one
  std::size_t queued_bytes_ = 0;
  bool armed_ = false;
  bool line_open_ = false;
  std::function<void(int)> failed_;
  std::vector<std::function<void()>> waiting_;
  struct Written;
  std::shared_ptr<Written> written_;  // with kThread: what the thread has to write now
  std::optional<net::HelperThread> thread_;
};

}  // namespace muster::launcher
