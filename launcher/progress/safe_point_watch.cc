// SPDX-License-Identifier: Apache-2.0
#include "launcher/progress/safe_point_watch.h"

#include <array>
#include <cstddef>
#include <cstring>
#include <sys/inotify.h>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>

#include "rendezvous/base/syscall.h"
#include "rendezvous/base/unique_fd.h"

namespace muster::launcher {

SafePointWatch::SafePointWatch(boost::asio::io_context& io, std::vector<std::string> files,
                               std::function<void()> announced, const Log& log)
    : files_(std::move(files)), announced_(std::move(announced)), events_(io) {
  if (files_.empty()) return;
  UniqueFd fd(::inotify_init1(IN_NONBLOCK | IN_CLOEXEC));
  int failed = fd ? 0 : errno;
  for (const std::string& file : files_) {
    if (failed != 0) break;
    const auto slash = file.rfind('/');
    // A touch of a file that is there changes its times only.
    const int watch = ::inotify_add_watch(fd.get(), file.substr(0, slash).c_str(),
                                          IN_CLOSE_WRITE | IN_MOVED_TO | IN_ATTRIB);
    if (watch < 0)
      failed = errno;
    else
      names_.emplace(std::pair(watch, file.substr(slash + 1)), file);
  }
  if (failed != 0) {
    log.warning(fmt::format("--join-at: cannot watch for safe points: inotify: {}", errno_text(failed)));
    return;
  }
  events_.assign(fd.release());
  wait();
}

void SafePointWatch::wait() {
  lifetime_.when_readable(events_, [this] {
    const bool announced = drain();
    wait();
    if (announced) announced_();
  });
}

/// Whether one of the files was made or touched.
bool SafePointWatch::drain() {
  alignas(inotify_event) std::array<char, 4096> buffer;
  bool out = false;
  while (true) {
    const ssize_t n =
        retry_eintr([&] { return ::read(events_.native_handle(), buffer.data(), buffer.size()); });
    if (n <= 0) return out;
    for (std::size_t at = 0; at < static_cast<std::size_t>(n);) {
      inotify_event event;
      std::memcpy(&event, buffer.data() + at, sizeof event);
      // The name is padded with zeros.
      const char* const name = buffer.data() + at + sizeof event;
      at += sizeof event + event.len;
      if (event.len == 0) continue;
      const auto file = names_.find({event.wd, std::string(name, ::strnlen(name, event.len))});
      // A change of its times may also be that of its removal.
      if (file != names_.end() && ::access(file->second.c_str(), F_OK) == 0) out = true;
    }
  }
}

void SafePointWatch::pass() {
  for (const std::string& file : files_) (void)::unlink(file.c_str());
}

}  // namespace muster::launcher
