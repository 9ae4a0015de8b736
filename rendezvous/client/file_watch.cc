// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/client/file_watch.h"

#include <algorithm>
#include <poll.h>
#include <sys/inotify.h>
#include <sys/vfs.h>

#include <climits>

#include "rendezvous/base/syscall.h"

namespace muster {
namespace {

/// File systems on which every writer runs on this kernel, so that inotify sees every change.
bool sees_every_change(const std::string& path) {
  struct statfs info {};
  if (::statfs(path.c_str(), &info) != 0) return false;
  constexpr unsigned long kLocal[] = {
      0x01021994,  // tmpfs
      0x858458f6,  // ramfs
      0xef53,      // ext2, ext3, ext4
      0x58465342,  // xfs
      0x9123683e,  // btrfs
      0xf2f52010,  // f2fs
      0x2fc12fc1,  // zfs
      0x794c7630,  // overlayfs
  };
  return std::find(std::begin(kLocal), std::end(kLocal), static_cast<unsigned long>(info.f_type)) !=
         std::end(kLocal);
}

}  // namespace

FileWatch::FileWatch(const std::string& path)
    : backoff_({.first = Millis(10), .max = Millis(100)}, static_cast<std::uint64_t>(::getpid())) {
  if (!sees_every_change(path)) return;
  // Fails when the user's instances (128 by default) are used up.
  UniqueFd fd(::inotify_init1(IN_CLOEXEC | IN_NONBLOCK));
  if (!fd || ::inotify_add_watch(fd.get(), path.c_str(), IN_MODIFY | IN_DELETE_SELF | IN_ATTRIB) < 0) return;
  inotify_ = std::move(fd);
}

void FileWatch::wait(Instant deadline) {
  Millis left = time_left(deadline, SteadyClock::now());
  if (!inotify_) left = std::min(left, backoff_.next());
  pollfd entry{inotify_.get(), POLLIN, 0};  // -1: poll() ignores it and only sleeps
  const int timeout = static_cast<int>(std::min<std::int64_t>(left.count(), INT_MAX));
  if (::poll(&entry, 1, timeout) <= 0 || !inotify_) return;
  alignas(inotify_event) char events[4096];
  while (retry_eintr([&] { return ::read(inotify_.get(), events, sizeof events); }) > 0) {
  }
}

}  // namespace muster
