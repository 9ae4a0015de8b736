// SPDX-License-Identifier: Apache-2.0
#include "launcher/output/output_channel.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <termios.h>

#include "rendezvous/base/syscall.h"

namespace muster::launcher {
namespace {

Result<OutputChannel> open_pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return fail(errno_error("pipe for a worker's output", errno));
  OutputChannel out{UniqueFd(ends[0]), UniqueFd(ends[1])};
  // The reader only: the worker must find its end blocking, as any program expects its stderr.
  ::fcntl(out.reader.get(), F_SETFL, O_NONBLOCK);
  return out;
}

Result<OutputChannel> open_terminal(int terminal) {
  OutputChannel out;
  out.reader.reset(::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC | O_NONBLOCK));
  if (!out.reader || ::unlockpt(out.reader.get()) != 0)
    return fail(errno_error("open a pseudo-terminal", errno));
  out.writer.reset(::ioctl(out.reader.get(), TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC));
  if (!out.writer) return fail(errno_error("open a pseudo-terminal's other end", errno));
  termios mode{};
  if (::tcgetattr(out.writer.get(), &mode) == 0) {
    mode.c_oflag &= ~static_cast<tcflag_t>(OPOST);  // the real terminal processes the bytes, once
    mode.c_lflag &= ~static_cast<tcflag_t>(ECHO);
    ::tcsetattr(out.writer.get(), TCSANOW, &mode);
  }
  copy_window_size(terminal, out.reader.get());
  return out;
}

}  // namespace

void copy_window_size(int terminal, int reader) {
  winsize size{};
  if (::ioctl(terminal, TIOCGWINSZ, &size) == 0) ::ioctl(reader, TIOCSWINSZ, &size);
}

Result<OutputChannel> open_output_channel(int terminal) {
  if (terminal >= 0)
    if (auto channel = open_terminal(terminal))
      return channel;  // out of pseudo-terminals: a pipe still shows everything
  return open_pipe();
}

}  // namespace muster::launcher
