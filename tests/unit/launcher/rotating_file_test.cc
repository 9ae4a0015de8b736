// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fmt/format.h>

#include "launcher/output/log_writer.h"
#include "launcher/output/tail_reader.h"
#include "rendezvous/base/syscall.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_directory.h"

using namespace muster;
using namespace muster::launcher;

namespace {

using Names = std::vector<std::string>;

RotatingFile open_log(const std::string& path, Rotation rules) {
  UniqueFd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666));
  REQUIRE(file);
  return {std::move(file), path, rules};
}

std::string text_of(const std::string& path) {
  auto text = read_file(path);
  REQUIRE_OK(text);
  return *text;
}

/// Oldest first.
std::vector<std::string> files_of(const std::string& path) {
  std::vector<std::string> out{text_of(path)};
  for (int number = 1; ::access(fmt::format("{}.{}", path, number).c_str(), F_OK) == 0; ++number)
    out.insert(out.begin(), text_of(fmt::format("{}.{}", path, number)));
  return out;
}

/// How much a file of this process may hold; SIGXFSZ is blocked meanwhile, as it is in the log writer.
class FileLimit {
 public:
  explicit FileLimit(rlim_t bytes) {
    sigset_t signals;
    ::sigemptyset(&signals);
    ::sigaddset(&signals, SIGXFSZ);
    ::sigprocmask(SIG_BLOCK, &signals, nullptr);
    ::getrlimit(RLIMIT_FSIZE, &before_);
    set(bytes);
  }
  ~FileLimit() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    sigset_t signals;
    ::sigemptyset(&signals);
    ::sigaddset(&signals, SIGXFSZ);
    const timespec now{};
    ::sigtimedwait(&signals, nullptr, &now);
    ::sigprocmask(SIG_UNBLOCK, &signals, nullptr);
  }
  FileLimit(const FileLimit&) = delete;
  FileLimit& operator=(const FileLimit&) = delete;

  void set(rlim_t bytes) const {
    const rlimit limit{bytes, before_.rlim_max};
    REQUIRE(::setrlimit(RLIMIT_FSIZE, &limit) == 0);
  }

 private:
  rlimit before_{};
};

}  // namespace

TEST_CASE(
    "a file is renamed behind the line that reaches its limit, whatever the pieces that lines come in") {
  for (const std::size_t piece : {1U, 2U, 3U, 5U, 7U, 11U, 64U, 1000U}) {
    INFO("pieces of " << piece);
    const test::TemporaryDirectory directory;
    const std::string path = directory.path() + "/log";
    RotatingFile file = open_log(path, {20, 100});
    std::string all;
    for (int i = 0; i < 30; ++i) all += fmt::format("line {}\n", i * i);
    for (std::size_t at = 0; at < all.size(); at += piece)
      file.write(std::string_view(all).substr(at, piece));
    std::string joined;
    for (const std::string& part : files_of(path)) {
      REQUIRE(part.back() == '\n');
      REQUIRE(part.size() <= 20 + 9);
      joined += part;
    }
    REQUIRE(joined == all);
    REQUIRE(files_of(path).size() >= 10);
  }
}

TEST_CASE("older files are counted from the youngest on, and what is beyond the number kept is gone") {
  const test::TemporaryDirectory directory;
  const std::string path = directory.path() + "/log";
  RotatingFile file = open_log(path, {2, 3});
  for (const char* line : {"a\n", "b\n", "c\n", "d\n", "e\n", "f\n"}) file.write(line);
  REQUIRE(directory.entries() == Names{"log", "log.1", "log.2", "log.3"});
  REQUIRE(files_of(path) == Names{"c\n", "d\n", "e\n", "f\n"});
  REQUIRE(file.state().error + file.state().rotation_error == 0);
}

TEST_CASE("an older file that somebody has removed is no reason to call the rotation failed") {
  const test::TemporaryDirectory directory;
  const std::string path = directory.path() + "/log";
  RotatingFile file = open_log(path, {2, 4});
  for (const char* line : {"a\n", "b\n", "c\n", "d\n"}) file.write(line);
  REQUIRE(::unlink((path + ".2").c_str()) == 0);
  file.write("e\n");
  REQUIRE(file.state().rotation_error == 0);
  REQUIRE(directory.entries() == Names{"log", "log.1", "log.2", "log.4"});
}

TEST_CASE("one older file is enough to keep") {
  const test::TemporaryDirectory directory;
  const std::string path = directory.path() + "/log";
  RotatingFile file = open_log(path, {2, 1});
  for (const char* line : {"a\n", "b\n", "c\n"}) file.write(line);
  REQUIRE(directory.entries() == Names{"log", "log.1"});
  REQUIRE(files_of(path) == Names{"b\n", "c\n"});
}

TEST_CASE("a line that is longer than a file stays whole, up to a limit") {
  const test::TemporaryDirectory directory;
  const std::string path = directory.path() + "/log";
  RotatingFile file = open_log(path, {1000, 10});
  const std::string line = std::string(1'000'000, 'x') + "\n";
  file.write("before\n");
  for (std::size_t at = 0; at < line.size(); at += 4096) file.write(line.substr(at, 4096));
  file.write("after\n");
  REQUIRE(files_of(path) == Names{"before\n" + line, "after\n"});
  const std::string endless(RotatingFile::kLongestLine + 5000, 'y');
  file.write(endless);
  std::string joined;
  for (const std::string& part : files_of(path)) {
    REQUIRE(part.size() <= 1000 + RotatingFile::kLongestLine);
    joined += part;
  }
  REQUIRE(joined == "before\n" + line + "after\n" + endless);
}

TEST_CASE("bytes of any value come through") {
  const test::TemporaryDirectory directory;
  const std::string path = directory.path() + "/log";
  RotatingFile file = open_log(path, {512, 100});
  std::string all;
  for (int i = 0; i < 20'000; ++i) all.push_back(static_cast<char>(i * 7));
  for (std::size_t at = 0; at < all.size(); at += 333) file.write(std::string_view(all).substr(at, 333));
  std::string joined;
  for (const std::string& part : files_of(path)) joined += part;
  REQUIRE(joined == all);
}

TEST_CASE("what a full disk does not take is counted, and noted at a line's beginning once there is room") {
  const test::TemporaryDirectory directory;
  const std::string path = directory.path() + "/log";
  RotatingFile file = open_log(path, {});
  {
    const FileLimit limit(10);
    file.write("first\nsecond\n");
    REQUIRE(file.state().error == EFBIG);
    REQUIRE(file.state().missing == 3);
    file.write("third, in");
    REQUIRE(file.state().missing == 12);
    limit.set(1 << 20);
    file.write(" pieces\nfourth\n");
  }
  REQUIRE(file.state().error == 0);
  REQUIRE(file.state().missing == 20);
  REQUIRE(text_of(path) ==
          "first\nseco\nmuster: 20 bytes are missing here: " + errno_text(EFBIG) + "\nfourth\n");
}

TEST_CASE("a file that cannot be renamed grows on") {
  const test::TemporaryDirectory directory;
  const std::string path = directory.path() + "/log";
  RotatingFile file = open_log(path, {4, 3});
  REQUIRE(::mkdir((path + ".new").c_str(), 0777) == 0);
  file.write("abc\n");
  file.write("a line that is longer\n");
  REQUIRE(file.state().rotation_error == EISDIR);
  REQUIRE(text_of(path) == "abc\na line that is longer\n");
  REQUIRE(::rmdir((path + ".new").c_str()) == 0);
  file.write("then\n");
  REQUIRE(file.state().rotation_error == 0);
  REQUIRE(files_of(path) == Names{"abc\na line that is longer\n", "then\n"});
}

TEST_CASE("a follower reads on through files that are renamed under it") {
  const test::TemporaryDirectory directory;
  const std::string path = directory.path() + "/log";
  RotatingFile file = open_log(path, {10, 20});
  auto followed = TailReader::open(path, 20);
  REQUIRE_OK(followed);
  std::string written, seen;
  char buffer[16];
  const auto read_all = [&] {
    for (std::size_t n = 1; n > 0;) {
      n = followed->read(buffer, sizeof buffer);
      seen.append(buffer, n);
    }
  };
  for (int i = 0; i < 200; ++i) {
    const std::string line = fmt::format("l {}\n", i);
    file.write(line);
    written += line;
    if (i % 7 == 0) read_all();
  }
  REQUIRE(followed->left() == written.size() - seen.size());
  read_all();
  REQUIRE(seen == written);
  REQUIRE(!followed->take_skipped());
  REQUIRE(followed->left() == 0);
}

TEST_CASE("a follower that is too slow skips whole files and counts them") {
  const test::TemporaryDirectory directory;
  const std::string path = directory.path() + "/log";
  RotatingFile file = open_log(path, {2, 2});
  auto followed = TailReader::open(path, 2);
  REQUIRE_OK(followed);
  for (const char* line : {"a\n", "b\n", "c\n", "d\n", "e\n", "f\n"}) file.write(line);
  std::string seen;
  char buffer[16];
  for (std::size_t n = 1; n > 0;) {
    n = followed->read(buffer, sizeof buffer);
    seen.append(buffer, n);
  }
  // It still had the first one open.
  REQUIRE(seen == "a\nd\ne\nf\n");
  REQUIRE(followed->take_skipped());
}

TEST_CASE("a follower whose file was not renamed stays with it") {
  const test::TemporaryDirectory directory;
  const std::string path = directory.path() + "/log";
  RotatingFile file = open_log(path, {});
  auto followed = TailReader::open(path, 0);
  REQUIRE_OK(followed);
  char buffer[16];
  REQUIRE(followed->read(buffer, sizeof buffer) == 0);
  file.write("a\n");
  REQUIRE(followed->read(buffer, sizeof buffer) == 2);
  REQUIRE(!followed->take_moved());
}

TEST_CASE("the error in a log is found in whichever of its files it is") {
  const test::TemporaryDirectory directory;
  const std::string path = directory.path() + "/stderr.log";
  RotatingFile file = open_log(path, {4096, 2});
  REQUIRE(!find_error_in_log(path, 2));
  file.write("Traceback (most recent call last):\n  File \"x.py\", line 7, in <module>\nValueError: that\n");
  for (int i = 0; i < 300; ++i) file.write(fmt::format("line {} of many\n", i));
  const auto cause = find_error_in_log(path, 2);
  REQUIRE(cause);
  REQUIRE(cause->text == "ValueError: that");
  for (int i = 0; i < 1000; ++i) file.write(fmt::format("line {} of many\n", i));
  REQUIRE(!find_error_in_log(path, 2));  // rotated away
}

TEST_CASE("of a large log the beginning and the end are searched") {
  const test::TemporaryDirectory directory;
  const std::string path = directory.path() + "/stderr.log";
  RotatingFile file = open_log(path, {std::uint64_t{16} << 20, 5});
  const std::string mebibyte((1 << 20) - 1, 'x');
  const auto fill = [&](int count) {
    for (int i = 0; i < count; ++i) file.write(mebibyte + "\n");
  };
  fill(35);
  file.write("CUDA error: in the middle\n");
  fill(35);
  REQUIRE(!find_error_in_log(path, 5));
  file.write("CUDA error: at the end\n");
  const auto cause = find_error_in_log(path, 5);
  REQUIRE(cause);
  REQUIRE(cause->text == "CUDA error: at the end");
}

TEST_CASE("the last lines of a log reach back into the file before") {
  const test::TemporaryDirectory directory;
  const std::string path = directory.path() + "/log";
  RotatingFile file = open_log(path, {6, 2});
  file.write("one 1\ntwo\n");
  REQUIRE(last_lines_of_log(path, 1) == Names{"two"});
  REQUIRE(last_lines_of_log(path, 9) == Names{"one 1", "two"});
}
