// SPDX-License-Identifier: Apache-2.0
#include "launcher/output/log_writer.h"

#include <fcntl.h>
#include <random>
#include <regex>
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

TEST_CASE("another writer goes on where one was killed, and what was in the pipe meanwhile is there") {
  const test::TemporaryDirectory directory;
  const std::string path = directory.path() + "/log";
  auto writer = LogWriter::start({1 << 20, 2});
  REQUIRE_OK(writer);
  pid_t told = 0;
  writer->on_replaced([&](pid_t pid) { told = pid; });
  auto stream = writer->open(create(path), path, "");
  REQUIRE_OK(stream);
  write_to(stream->worker, "one\ntw");
  REQUIRE(writer->settle(SteadyClock::now() + kPatience));
  const pid_t former = writer->pid();
  REQUIRE(::kill(former, SIGKILL) == 0);
  write_to(stream->worker, "o\nthree\n");  // nobody reads it now, and the worker does not notice
  const auto replaced = writer->replace();
  REQUIRE_OK(replaced);
  REQUIRE(writer->pid() != former);
  REQUIRE(told == writer->pid());
  REQUIRE(writer->settle(SteadyClock::now() + kPatience));
  if (replaced->lost == 0)  // it was killed before it had read anything
    REQUIRE(*read_file(path) == "one\ntwo\nthree\n");
  else
    REQUIRE_THAT(*read_file(path), Catch::Contains("bytes are missing here"));
  write_to(stream->worker, "four\n");
  stream->worker.reset();
  REQUIRE(writer->settle(SteadyClock::now() + kPatience));
  REQUIRE_THAT(*read_file(path), Catch::EndsWith("\nfour\n"));
  writer->let_go();
  REQUIRE(stream->state->ended);
}

TEST_CASE("writers that are killed in a flood lose what they held and nothing else") {
  constexpr int kLines = 400'000;
  constexpr int kKills = 25;
  constexpr int kKeep = 10'000;
  const test::TemporaryDirectory directory;
  const std::string path = directory.path() + "/log";
  std::string written;
  for (int i = 0; i < kLines; ++i) written += fmt::format("line {:06}\n", i);
  auto writer = LogWriter::start({16384, kKeep});
  REQUIRE_OK(writer);
  auto stream = writer->open(create(path), path, "");
  REQUIRE_OK(stream);
  const pid_t worker = ::fork();
  REQUIRE(worker >= 0);
  if (worker == 0) ::_exit(write_all(stream->worker.get(), written) ? 0 : 3);
  stream->worker.reset();
  const auto seed = std::random_device{}();
  INFO("seed " << seed);
  std::mt19937 random(seed);
  std::uint64_t lost = 0;
  const Instant deadline = SteadyClock::now() + 3 * kPatience;
  for (int i = 0; i < kKills; ++i) {
    // Somewhere in the next part of the flood; a few steps more, to be in the middle of something else.
    const std::uint64_t target = stream->state->taken + random() % (written.size() / kKills);
    while (stream->state->taken < target && !stream->state->ended && SteadyClock::now() < deadline)
      ::sched_yield();
    const Instant then = SteadyClock::now() + std::chrono::microseconds(random() % 300);
    while (SteadyClock::now() < then) {
    }
    REQUIRE(::kill(writer->pid(), SIGKILL) == 0);
    const auto replaced = writer->replace();
    REQUIRE_OK(replaced);
    lost += replaced->lost;
  }
  int status = -1;
  REQUIRE(::waitpid(worker, &status, 0) == worker);
  REQUIRE(status == 0);  // it has never seen a broken pipe
  REQUIRE(writer->settle(deadline));
  REQUIRE(stream->state->turn % 2 == 0);

  std::string text;
  int files = 0;
  while (::access(fmt::format("{}.{}", path, files + 1).c_str(), F_OK) == 0) ++files;
  for (int number = files; number >= 1; --number) text += *read_file(fmt::format("{}.{}", path, number));
  text += *read_file(path);
  REQUIRE(directory.entries().size() == static_cast<std::size_t>(files) + 1);  // no draft is left
  // Between two notes there is a part of what was written, and between two parts no more is missing than the
  // note says. A note in the middle of a line ends it.
  const std::regex note("muster: the log writer was killed: up to (\\d+) bytes are missing here\n");
  std::size_t at = 0, most = 0, missing = 0;
  const auto check = [&](std::string part) {
    const auto fits = [&](const std::string& bytes) {
      for (std::size_t from = at; from <= at + most && from + bytes.size() <= written.size(); ++from) {
        if (written.compare(from, bytes.size(), bytes) != 0) continue;
        missing += from - at;
        at = from + bytes.size();
        most = 0;
        return true;
      }
      return false;
    };
    if (part.empty() || fits(part)) return;
    REQUIRE(part.back() == '\n');
    part.pop_back();
    REQUIRE(fits(part));
  };
  auto from = text.cbegin();
  for (std::smatch found; std::regex_search(from, text.cend(), found, note); from = found[0].second) {
    check(std::string(from, found[0].first));
    most += std::stoul(found[1]);
  }
  check(std::string(from, text.cend()));
  REQUIRE(written.size() - at <= most);
  missing += written.size() - at;
  INFO(missing << " bytes are missing, up to " << lost << " were said to be");
  REQUIRE(missing <= lost);
}
