// SPDX-License-Identifier: Apache-2.0
// Musterd: the built daemon as a child of a test, its standard error in a pipe. Killed and reaped when it
// goes.
#pragma once

#include <cstdint>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdexcept>
#include <string>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

#include "rendezvous/base/clock.h"
#include "rendezvous/base/syscall.h"
#include "rendezvous/base/unique_fd.h"
#include "tests/support/raw_client.h"

namespace muster::test {

class Musterd {
 public:
  /// Runs `musterd <arguments>`; port() waits until it listens.
  explicit Musterd(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), MUSTER_TEST_BIN "/musterd");
    std::vector<char*> argv;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error("pipe2: " + errno_text(errno));
    errors_.reset(ends[0]);
    const UniqueFd writing(ends[1]);
    posix_spawn_file_actions_t actions;
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawn_file_actions_adddup2(&actions, writing.get(), STDERR_FILENO);
    const int error = ::posix_spawn(&pid_, argv[0], &actions, nullptr, argv.data(), ::environ);
    ::posix_spawn_file_actions_destroy(&actions);
    if (error != 0) throw std::runtime_error(std::string(argv[0]) + ": " + errno_text(error));
  }

  /// A daemon on a free port.
  static Musterd listening(std::vector<std::string> arguments = {}) {
    arguments.insert(arguments.begin(), {"--host", "127.0.0.1", "--port", "0"});
    Musterd daemon(std::move(arguments));
    const std::string line = daemon.wait_for_line("listening on ");
    daemon.port_ = static_cast<std::uint16_t>(std::stoi(line.substr(line.rfind(':') + 1)));
    return daemon;
  }

  Musterd(Musterd&& other) noexcept
      : pid_(std::exchange(other.pid_, -1)),
        errors_(std::move(other.errors_)),
        text_(std::move(other.text_)),
        port_(other.port_) {}

  ~Musterd() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    retry_eintr([&] { return ::waitpid(pid_, nullptr, 0); });
  }

  [[nodiscard]] std::uint16_t port() const { return port_; }
  [[nodiscard]] pid_t pid() const { return pid_; }
  /// After one that ends the daemon: finish(). Killed while it writes its coverage profile, it leaves half of
  /// one, which every later daemon complains about.
  void signal(int number) const { ::kill(pid_, number); }
  /// Its standard error has no reader any more.
  void stop_reading() { errors_.reset(); }

  /// The first line of standard error not asked for before that contains `text`.
  std::string wait_for_line(std::string_view text) {
    const Instant deadline = SteadyClock::now() + kTimeout;
    while (true) {
      if (const auto at = text_.find(text); at != std::string::npos) {
        if (const auto end = text_.find('\n', at); end != std::string::npos) {
          const auto begin = at == 0 ? 0 : text_.rfind('\n', at) + 1;  // npos + 1 is 0
          std::string line = text_.substr(begin, end - begin);
          text_.erase(0, end + 1);
          return line;
        }
      }
      if (!read_more(deadline))
        throw std::runtime_error("no line with \"" + std::string(text) + "\" in: " + text_);
    }
  }

  /// True if it has said so until now; does not wait.
  bool has_said(std::string_view text) {
    pollfd entry{errors_.get(), POLLIN, 0};
    while (::poll(&entry, 1, 0) > 0 && read_more(SteadyClock::now())) {
    }
    return text_.find(text) != text_.npos;
  }

  /// Everything it still says until it ends, and its exit code (128 + n for signal n).
  std::pair<int, std::string> finish() {
    const Instant deadline = SteadyClock::now() + kTimeout;
    while (read_more(deadline)) {
    }
    int status = 0;
    retry_eintr([&] { return ::waitpid(pid_, &status, 0); });
    pid_ = -1;
    return {WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), std::exchange(text_, {})};
  }

 private:
  // False at the end of the stream.
  bool read_more(Instant deadline) {
    pollfd entry{errors_.get(), POLLIN, 0};
    if (::poll(&entry, 1, static_cast<int>(time_left(deadline, SteadyClock::now()).count())) <= 0)
      throw std::runtime_error("musterd says nothing more, after: " + text_);
    char block[4096];
    const ssize_t n = retry_eintr([&] { return ::read(errors_.get(), block, sizeof block); });
    if (n <= 0) return false;
    text_.append(block, static_cast<std::size_t>(n));
    return true;
  }

  pid_t pid_ = -1;
  UniqueFd errors_;
  std::string text_;
  std::uint16_t port_ = 0;
};

}  // namespace muster::test
