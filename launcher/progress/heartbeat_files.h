// SPDX-License-Identifier: Apache-2.0
// HeartbeatFiles: when the files of --heartbeat-file changed last, read by a thread of its own: stat() of a
// file on a network file system whose server is gone does not return, and the agent's loop must. Owned by
// LifeSigns; one loop. The thread is begun with the first read. Where it does not answer in time, nothing is
// known of the files, and the destructor leaves it behind: it owns what it touches. It ends with the process.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <sys/stat.h>
#include <vector>

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>

namespace muster::launcher {

/// Changes whenever a file does.
using FileMark = std::uint64_t;
[[nodiscard]] FileMark mark_of(const struct stat& info);

class HeartbeatFiles {
 public:
  static constexpr std::chrono::seconds kPatience{1};
  /// How a mark is got; nothing: there is no such file. To be called by another thread.
  using Look = std::function<std::optional<FileMark>(const std::string& path)>;

  HeartbeatFiles(boost::asio::io_context& io, std::vector<std::string> paths, Look look = look_at_file);
  ~HeartbeatFiles();
  HeartbeatFiles(const HeartbeatFiles&) = delete;
  HeartbeatFiles& operator=(const HeartbeatFiles&) = delete;

  /// `done` comes once, on the loop and not from within: whether marks() are of now. Not before the last one
  /// has come.
  void read(std::function<void(bool in_time)> done);
  [[nodiscard]] const std::vector<std::optional<FileMark>>& marks() const { return marks_; }

  [[nodiscard]] static std::optional<FileMark> look_at_file(const std::string& path);

 private:
  struct Shared;

  void wait();
  void finish(bool in_time);

  boost::asio::io_context& io_;
  std::shared_ptr<Shared> shared_;  // with the thread
  boost::asio::posix::stream_descriptor answered_;
  boost::asio::steady_timer deadline_;
  std::vector<std::optional<FileMark>> marks_;
  std::function<void(bool)> done_;
  bool begun_ = false;
  std::shared_ptr<bool> alive_;
};

}  // namespace muster::launcher
