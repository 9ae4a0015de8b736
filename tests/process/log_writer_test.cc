// SPDX-License-Identifier: Apache-2.0
#include "launcher/log_writer.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fmt/format.h>

#include "rendezvous/base/syscall.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_directory.h"

using namespace muster;
using namespace muster::launcher;

namespace {

constexpr std::chrono::seconds kPatience{20};

UniqueFd create(const std::string& path) {
  UniqueFd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666));
  REQUIRE(file);
  return file;
}

void write_to(const UniqueFd& fd, std::string_view text) {
  REQUIRE_OK(write_all(fd.get(), text));
}

}  // namespace

TEST_CASE("after settling, what was written to the pipes is in the files") {
  const test::TemporaryDirectory directory;
  auto writer = LogWriter::start({10, 3});
  REQUIRE_OK(writer);
  std::vector<LogWriter::Stream> streams;
  for (int i = 0; i < 40; ++i) {
    const std::string path = fmt::format("{}/{}", directory.path(), i);
    auto stream = writer->open(create(path), path, "");
    REQUIRE_OK(stream);
    write_to(stream->worker, fmt::format("stream {}\n", i));
    streams.push_back(*std::move(stream));
  }
  REQUIRE(writer->settle(SteadyClock::now() + kPatience));
  for (int i = 0; i < 40; ++i)
    REQUIRE(*read_file(fmt::format("{}/{}", directory.path(), i)) == fmt::format("stream {}\n", i));
  REQUIRE(::fcntl(streams[0].worker.get(), F_GETFL) == O_WRONLY);  // blocking, as a program expects it
}

TEST_CASE("files, and links to them, are renamed as they grow, and the state says how often") {
  const test::TemporaryDirectory directory;
  const std::string path = directory.path() + "/log", link = directory.path() + "/link";
  REQUIRE(::symlink("log", link.c_str()) == 0);
  auto writer = LogWriter::start({4, 2});
  REQUIRE_OK(writer);
  auto stream = writer->open(create(path), path, link);
  REQUIRE_OK(stream);
  for (const char* line : {"aaa\n", "bbb\n", "ccc\n", "ddd\n"}) write_to(stream->worker, line);
  REQUIRE(writer->settle(SteadyClock::now() + kPatience));
  REQUIRE(stream->state->turn == 6);
  REQUIRE(*read_file(link) == "ddd\n");
  REQUIRE(*read_file(link + ".1") == "ccc\n");
  REQUIRE(*read_file(link + ".2") == "bbb\n");
  REQUIRE(directory.entries().size() == 6);
}

TEST_CASE("what cannot be written is told") {
  auto writer = LogWriter::start({4096, 2});
  REQUIRE_OK(writer);
  auto stream = writer->open(UniqueFd(::open("/dev/full", O_WRONLY | O_CLOEXEC)), "/dev/full", "");
  REQUIRE_OK(stream);
  write_to(stream->worker, "lost\n");
  REQUIRE(writer->settle(SteadyClock::now() + kPatience));
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
    auto writer = LogWriter::start({1 << 20, 2});
    if (!writer) ::_exit(1);
    auto stream = writer->open(create(path), path, "");
    if (!stream || !writer->settle(SteadyClock::now() + kPatience)) ::_exit(2);
    // A worker: it outlives its launcher by a moment, as the guardian lets it.
    const pid_t worker = ::fork();
    if (worker == 0) {
      char byte = 0;
      (void)!::read(pipe_to_log[0], &byte, 1);  // until the test has seen the launcher's end
      for (int i = 0; i < 50'000; ++i)
        if (!write_all(stream->worker.get(), fmt::format("line {}\n", i))) ::_exit(3);
      ::_exit(0);
    }
    (void)write_all(ready[1], fmt::format("{}\n", writer->pid()));
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
  const Instant deadline = SteadyClock::now() + kPatience;
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
  auto writer = LogWriter::start({1 << 20, 2});
  REQUIRE_OK(writer);
  auto stream = writer->open(create(path), path, "");
  REQUIRE_OK(stream);
  for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGPIPE})
    REQUIRE(::kill(writer->pid(), signal) == 0);
  write_to(stream->worker, "still here\n");
  REQUIRE(writer->settle(SteadyClock::now() + kPatience));
  REQUIRE(*read_file(path) == "still here\n");
}

TEST_CASE("a writer that was killed is noticed") {
  auto writer = LogWriter::start({1 << 20, 2});
  REQUIRE_OK(writer);
  REQUIRE(::kill(writer->pid(), SIGKILL) == 0);
  REQUIRE(!writer->settle(SteadyClock::now() + kPatience));
  REQUIRE(!writer->clear_bell());
}
