// SPDX-License-Identifier: Apache-2.0
// UniqueFd: sole owner of a file descriptor; closes it. Not thread-safe.
#pragma once

#include <unistd.h>
#include <utility>

namespace muster {

class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(other.release()) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    if (this != &other) reset(other.release());
    return *this;
  }
  ~UniqueFd() { reset(); }

  [[nodiscard]] int get() const { return fd_; }
  [[nodiscard]] explicit operator bool() const { return fd_ >= 0; }
  /// Gives up ownership without closing.
  int release() { return std::exchange(fd_, -1); }
  void reset(int fd = -1) {
    // close(2) releases the descriptor on Linux even when it reports EINTR, so it is called once.
    if (const int old = std::exchange(fd_, fd); old >= 0) ::close(old);
  }

 private:
  int fd_ = -1;  // -1: none
};

}  // namespace muster
