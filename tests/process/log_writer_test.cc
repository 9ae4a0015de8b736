// SPDX-License-Identifier: Apache-2.0
#include "launcher/output/log_writer.h"

#include <algorithm>
#include <fcntl.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <boost/asio/io_context.hpp>
#include <fmt/format.h>

#include "rendezvous/base/syscall.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_directory.h"

using namespace muster;
using namespace muster::launcher;

namespace {

constexpr Millis kTimeout{20'000};

UniqueFd create(const std::string& path) {
  UniqueFd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666));
  REQUIRE(file);
  return file;
}

void write_to(const UniqueFd& fd, std::string_view text) {
  REQUIRE_OK(write_all(fd.get(), text));
}

/// Runs the loop until what is in the pipes is in the files.
bool flush(boost::asio::io_context& io, LogWriter& writer) {
  bool done = false;
  writer.flush([&] { done = true; });
  const Instant deadline = SteadyClock::now() + kTimeout;
  for (io.restart(); !done && SteadyClock::now() < deadline; io.restart()) io.run_one_until(deadline);
  return done;
}

}  // namespace

TEST_CASE("after a flush, what was written to the pipes is in the files") {
  const test::TemporaryDirectory directory;
  boost::asio::io_context io(1);
  auto writer = LogWriter::start(io, {10, 3});
  REQUIRE_OK(writer);
  std::vector<LogWriter::Stream> streams;
  for (int i = 0; i < 40; ++i) {
    const std::string path = fmt::format("{}/{}", directory.path(), i);
    auto stream = (*writer)->open(0, create(path), path);
    REQUIRE_OK(stream);
    write_to(stream->worker, fmt::format("stream {}\n", i));
    streams.push_back(*std::move(stream));
  }
  REQUIRE(flush(io, **writer));
  for (int i = 0; i < 40; ++i)
    REQUIRE(*read_file(fmt::format("{}/{}", directory.path(), i)) == fmt::format("stream {}\n", i));
  REQUIRE(::fcntl(streams[0].worker.get(), F_GETFL) == O_WRONLY);  // blocking, as a program expects it
}

TEST_CASE("files are renamed as they grow, and the state says how often") {
  const test::TemporaryDirectory directory;
  const std::string path = directory.path() + "/log";
  boost::asio::io_context io(1);
  auto writer = LogWriter::start(io, {4, 2});
  REQUIRE_OK(writer);
  auto stream = (*writer)->open(0, create(path), path);
  REQUIRE_OK(stream);
  for (const char* line : {"aaa\n", "bbb\n", "ccc\n", "ddd\n"}) write_to(stream->worker, line);
  REQUIRE(flush(io, **writer));
  REQUIRE(stream->state->rotations == 3);
  REQUIRE(*read_file(path) == "ddd\n");
  REQUIRE(*read_file(path + ".1") == "ccc\n");
  REQUIRE(*read_file(path + ".2") == "bbb\n");
  REQUIRE(directory.entries().size() == 3);
}

TEST_CASE("what cannot be written is told") {
  boost::asio::io_context io(1);
  auto writer = LogWriter::start(io, {4096, 2});
  REQUIRE_OK(writer);
  auto stream = (*writer)->open(0, UniqueFd(::open("/dev/full", O_WRONLY | O_CLOEXEC)), "/dev/full");
  REQUIRE_OK(stream);
  write_to(stream->worker, "lost\n");
  REQUIRE(flush(io, **writer));
  REQUIRE(stream->state->error == ENOSPC);
  REQUIRE(stream->state->missing == 5);
}

TEST_CASE("the writer goes on after its launcher was killed, until its pipes are at their end") {
  const test::TemporaryDirectory directory;
  const std::string path = directory.path() + "/log";
  int ready[2], pipe_to_log[2];
  REQUIRE(::pipe2(ready, O_CLOEXEC) == 0);
  REQUIRE(::pipe2(pipe_to_log, O_CLOEXEC) == 0);
  const pid_t launcher = ::fork();
  REQUIRE(launcher >= 0);
  if (launcher == 0) {
    boost::asio::io_context io(1);
    auto writer = LogWriter::start(io, {1 << 20, 2});
    if (!writer) ::_exit(1);
    auto stream = (*writer)->open(0, create(path), path);
    if (!stream || !flush(io, **writer)) ::_exit(2);
    // A worker: it outlives its launcher by a moment, as the guardian lets it.
    const pid_t worker = ::fork();
    if (worker == 0) {
      char byte = 0;
      (void)!::read(pipe_to_log[0], &byte, 1);  // until the test has seen the launcher's end
      for (int i = 0; i < 50'000; ++i)
        if (!write_all(stream->worker.get(), fmt::format("line {}\n", i))) ::_exit(3);
      ::_exit(0);
    }
    (void)write_all(ready[1], fmt::format("{}\n", (*writer)->pid()));
    ::pause();
  }
  ::close(pipe_to_log[0]);
  const UniqueFd go(pipe_to_log[1]), reader(ready[0]);
  ::close(ready[1]);
  char text[32]{};
  REQUIRE(::read(reader.get(), text, sizeof text - 1) > 1);
  const auto pid = static_cast<pid_t>(std::stol(text));
  REQUIRE(::kill(launcher, SIGKILL) == 0);
  REQUIRE(::waitpid(launcher, nullptr, 0) == launcher);
  REQUIRE(::kill(pid, 0) == 0);
  write_to(go, "g");
  const Instant deadline = SteadyClock::now() + kTimeout;
  const auto gone = [&] {
    const auto status = read_file(fmt::format("/proc/{}/stat", pid));
    return !status || status->find(") Z") != std::string::npos;
  };
  while (!gone() && SteadyClock::now() < deadline) ::sched_yield();
  REQUIRE(gone());
  std::string expected;
  for (int i = 0; i < 50'000; ++i) expected += fmt::format("line {}\n", i);
  REQUIRE(*read_file(path) == expected);
}

TEST_CASE("signals of a terminal do not end the writer") {
  const test::TemporaryDirectory directory;
  const std::string path = directory.path() + "/log";
  boost::asio::io_context io(1);
  auto writer = LogWriter::start(io, {1 << 20, 2});
  REQUIRE_OK(writer);
  auto stream = (*writer)->open(0, create(path), path);
  REQUIRE_OK(stream);
  for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGPIPE})
    REQUIRE(::kill((*writer)->pid(), signal) == 0);
  write_to(stream->worker, "still here\n");
  REQUIRE(flush(io, **writer));
  REQUIRE(*read_file(path) == "still here\n");
}

TEST_CASE("where the writer was killed its launcher writes the files itself, as the writer did") {
  const test::TemporaryDirectory directory;
  const std::string path = directory.path() + "/log", second = directory.path() + "/second";
  boost::asio::io_context io(1);
  auto writer = LogWriter::start(io, {4, 2});
  REQUIRE_OK(writer);
  std::vector<std::string> logged;
  (*writer)->begin_attempt([&](std::string_view text) { logged.emplace_back(text); }, [] {});
  auto stream = (*writer)->open(0, create(path), path);
  REQUIRE_OK(stream);
  write_to(stream->worker, "one\n");
  REQUIRE(flush(io, **writer));
  REQUIRE(::kill((*writer)->pid(), SIGKILL) == 0);
  write_to(stream->worker, "two\n");  // nobody reads it now, and the worker does not notice
  while (logged.empty()) io.run_one();
  write_to(stream->worker, "three\n");
  REQUIRE(flush(io, **writer));
  REQUIRE(logged.size() == 1);
  REQUIRE_THAT(logged[0],
               Catch::Contains(fmt::format("the log writer (pid {}) was killed", (*writer)->pid())));
  REQUIRE(*read_file(path) == "three\n");
  REQUIRE(*read_file(path + ".1") == "two\n");
  REQUIRE(*read_file(path + ".2") == "one\n");
  auto later = (*writer)->open(1, create(second), second);
  REQUIRE_OK(later);
  write_to(later->worker, "a line\nand another\n");
  REQUIRE(flush(io, **writer));
  REQUIRE(*read_file(second) == "and another\n");
  REQUIRE(*read_file(second + ".1") == "a line\n");
}

TEST_CASE("where the writer was killed and a file is out of reach, its worker does not wait for a reader") {
  const test::TemporaryDirectory directory;
  const std::string folder = directory.path() + "/folder", path = folder + "/log";
  REQUIRE(::mkdir(folder.c_str(), 0700) == 0);
  boost::asio::io_context io(1);
  auto writer = LogWriter::start(io, {1 << 20, 2});
  REQUIRE_OK(writer);
  std::vector<std::string> logged;
  (*writer)->begin_attempt([&](std::string_view text) { logged.emplace_back(text); }, [] {});
  auto stream = (*writer)->open(7, create(path), path);
  REQUIRE_OK(stream);
  REQUIRE(flush(io, **writer));
  REQUIRE(::rename(folder.c_str(), (directory.path() + "/elsewhere").c_str()) == 0);
  REQUIRE(::kill((*writer)->pid(), SIGKILL) == 0);
  write_to(stream->worker, "one\n");
  while (logged.size() < 2) io.run_one();
  REQUIRE_THAT(logged[1],
               Catch::StartsWith("rank 7: open " + path) && Catch::EndsWith("; its output is lost"));
  REQUIRE(flush(io, **writer));
  int unread = -1;
  REQUIRE(::ioctl(stream->worker.get(), FIONREAD, &unread) == 0);
  REQUIRE(unread == 0);
}

TEST_CASE("a writer that takes no requests is not taken for a dead one") {
  const test::TemporaryDirectory directory;
  boost::asio::io_context io(1);
  auto writer = LogWriter::start(io, {1 << 20, 2});
  REQUIRE_OK(writer);
  std::vector<std::string> logged;
  (*writer)->begin_attempt([&](std::string_view text) { logged.emplace_back(text); }, [] {});
  REQUIRE(::kill((*writer)->pid(), SIGSTOP) == 0);  // as a disk that does not answer
  std::vector<LogWriter::Stream> streams;
  // Each request is as long as it may be, so that there is room for a few.
  const std::string folder = directory.path() + std::string(3000, '/');
  for (int i = 0; i < 400 && logged.empty(); ++i) {
    const std::string path = fmt::format("{}{}", folder, i);
    auto stream = (*writer)->open(i, create(path), path);
    REQUIRE_OK(stream);
    write_to(stream->worker, "a line\n");
    streams.push_back(*std::move(stream));
  }
  const std::string last = fmt::format("{}{}", folder, streams.size() - 1);
  REQUIRE(logged.size() == 1);
  REQUIRE_THAT(logged[0], Catch::Contains("takes no requests") && Catch::Contains(last + " itself"));
  REQUIRE(*read_file(last) == "a line\n");
  REQUIRE(::kill((*writer)->pid(), SIGCONT) == 0);
  REQUIRE(flush(io, **writer));
  for (std::size_t i = 0; i < streams.size(); ++i)
    REQUIRE(*read_file(fmt::format("{}{}", folder, i)) == "a line\n");
  REQUIRE(logged.size() == 1);
}

TEST_CASE("a flood goes on through the death of its writer, and loses what that held at the most") {
  constexpr int kLines = 400'000;
  const test::TemporaryDirectory directory;
  const std::string path = directory.path() + "/log";
  std::string written;
  for (int i = 0; i < kLines; ++i) written += fmt::format("line {:06}\n", i);
  boost::asio::io_context io(1);
  auto writer = LogWriter::start(io, {std::uint64_t{1} << 30, 2});
  REQUIRE_OK(writer);
  auto stream = (*writer)->open(0, create(path), path);
  REQUIRE_OK(stream);
  const pid_t worker = ::fork();
  REQUIRE(worker >= 0);
  if (worker == 0) ::_exit(write_all(stream->worker.get(), written) ? 0 : 3);
  stream->worker.reset();
  const Instant deadline = SteadyClock::now() + kTimeout;
  struct stat info {};
  while (info.st_size < static_cast<off_t>(written.size() / 10) && SteadyClock::now() < deadline) {
    REQUIRE(::stat(path.c_str(), &info) == 0);
    ::sched_yield();
  }
  REQUIRE(::kill((*writer)->pid(), SIGKILL) == 0);
  siginfo_t end{};
  while (::waitid(P_PID, static_cast<id_t>(worker), &end, WEXITED | WNOHANG | WNOWAIT) == 0 &&
         end.si_pid == 0 && SteadyClock::now() < deadline)
    io.run_one_for(Millis(10));
  int status = -1;
  REQUIRE(::waitpid(worker, &status, 0) == worker);
  REQUIRE(status == 0);  // it has never seen a broken pipe
  while (flush(io, **writer) && read_file(path)->find("line 399999\n") == std::string::npos) {
    REQUIRE(SteadyClock::now() < deadline);
  }
  const std::string text = *read_file(path);
  REQUIRE(text.size() <= written.size());
  REQUIRE(written.size() - text.size() <= 256 * 1024);
  // What is there is a beginning and an end of what was written.
  const auto differs =
      static_cast<std::size_t>(std::mismatch(text.begin(), text.end(), written.begin()).first - text.begin());
  REQUIRE(written.compare(written.size() - (text.size() - differs), std::string::npos, text, differs,
                          std::string::npos) == 0);
}
