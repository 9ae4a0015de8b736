// SPDX-License-Identifier: Apache-2.0
// SendQueue: what a test has still to send on a socket that takes a part of it at a time. Tens of MiB of it
// are not moved for each part that goes.
#pragma once

#include <cstddef>
#include <string>
#include <sys/socket.h>

namespace muster::test {

class SendQueue {
 public:
  /// To append to.
  [[nodiscard]] std::string& bytes() { return bytes_; }
  [[nodiscard]] std::size_t size() const { return bytes_.size() - num_sent_; }

  /// Sends what the socket takes without waiting.
  void send(int fd) {
    while (size() > 0) {
      const ssize_t n = ::send(fd, bytes_.data() + num_sent_, size(), MSG_NOSIGNAL | MSG_DONTWAIT);
      if (n <= 0) return;
      num_sent_ += static_cast<std::size_t>(n);
    }
    bytes_.clear();
    num_sent_ = 0;
  }

 private:
  std::string bytes_;
  std::size_t num_sent_ = 0;
};

}  // namespace muster::test
