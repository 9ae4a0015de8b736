// SPDX-License-Identifier: Apache-2.0
#include "launcher/output/rotating_file.h"

#include <fcntl.h>
#include <filesystem>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fmt/format.h>

#include "launcher/output/followed_file.h"
#include "launcher/output/stderr_file.h"
#include "rendezvous/base/syscall.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_directory.h"

using namespace muster;
using namespace muster::launcher;

namespace {

using Names = std::vector<std::string>;

RotatingFile open_log(const std::string& path, Rotation rules, LogStreamState* state = nullptr) {
  UniqueFd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666));
  REQUIRE(file);
  return {std::move(file), path, "", rules, [state] {
            if (state != nullptr) ++state->turn;
          }};
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

TEST_CASE("a file is renamed at the last line end that fits, whatever the pieces that lines come in") {
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
  REQUIRE(file.error() + file.rotation_error() == 0);
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
  REQUIRE(files_of(path) == Names{"before\n", line, "after\n"});
  const std::string endless(RotatingFile::kLongestLine + 5000, 'y');
  file.write(endless);
  std::string joined;
  for (const std::string& part : files_of(path)) {
    REQUIRE(part.size() <= 1000 + RotatingFile::kLongestLine);
    joined += part;
  }
  REQUIRE(joined == "before\n" + line + "after\n" + endless);
}

TEST_CASE("the states of a progress bar are lines, and the two bytes of a line end stay together") {
  const test::TemporaryDirectory directory;
  const std::string path = directory.path() + "/log";
  RotatingFile file = open_log(path, {8, 10});
  for (const char* piece : {"\r 10%", "\r 20%", "\r 30%", "\r", "\nabcdefg\r", "\nh\r\n"}) file.write(piece);
  std::string joined;
  for (const std::string& part : files_of(path)) {
    REQUIRE((part.empty() || part[0] != '\n'));
    joined += part;
  }
  REQUIRE(joined == "\r 10%\r 20%\r 30%\r\nabcdefg\r\nh\r\n");
  REQUIRE(files_of(path).size() > 2);
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
    REQUIRE(file.error() == EFBIG);
    REQUIRE(file.missing() == 3);
    file.write("third, in");
    REQUIRE(file.missing() == 12);
    limit.set(1 << 20);
    file.write(" pieces\nfourth\n");
  }
  REQUIRE(file.error() == 0);
  REQUIRE(file.missing() == 20);
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
  REQUIRE(file.rotation_error() == EISDIR);
  REQUIRE(text_of(path) == "abc\na line that is longer\n");
  REQUIRE(::rmdir((path + ".new").c_str()) == 0);
  file.write("then\n");
  REQUIRE(file.rotation_error() == 0);
  REQUIRE(files_of(path) == Names{"abc\na line that is longer\n", "then\n"});
}

TEST_CASE("a follower reads on through files that are renamed under it") {
  const test::TemporaryDirectory directory;
  const std::string path = directory.path() + "/log";
  const auto state = std::make_shared<LogStreamState>();
  RotatingFile file = open_log(path, {10, 20}, state.get());
  auto followed = FollowedFile::open(path, state, 20);
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
  REQUIRE(followed->take_skipped() == 0);
  REQUIRE(followed->left() == 0);
}

TEST_CASE("a follower that is too slow skips whole files and counts them") {
  const test::TemporaryDirectory directory;
  const std::string path = directory.path() + "/log";
  const auto state = std::make_shared<LogStreamState>();
  RotatingFile file = open_log(path, {2, 2}, state.get());
  auto followed = FollowedFile::open(path, state, 2);
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
  REQUIRE(followed->take_skipped() == 2);
}

TEST_CASE("a follower that rests keeps no file, and goes on where it was") {
  const test::TemporaryDirectory directory;
  const std::string path = directory.path() + "/log";
  const auto state = std::make_shared<LogStreamState>();
  RotatingFile file = open_log(path, {4, 2}, state.get());
  auto followed = FollowedFile::open(path, state, 2);
  REQUIRE_OK(followed);
  const auto read_all = [&] {
    std::string out;
    char buffer[2];
    for (std::size_t n = 1; n > 0;) {
      n = followed->read(buffer, sizeof buffer);
      out.append(buffer, n);
    }
    followed->rest();
    REQUIRE(followed->fd() == -1);
    return out;
  };
  file.write("a\n");
  REQUIRE(read_all() == "a\n");
  file.write("b\n");
  file.write("c\nd\n");
  REQUIRE(read_all() == "b\nc\nd\n");
  REQUIRE(followed->take_skipped() == 0);
  for (const char* text : {"e\nf\n", "g\nh\n", "i\nj\n", "k\n"}) file.write(text);
  REQUIRE(read_all() == "g\nh\ni\nj\nk\n");
  REQUIRE(followed->take_skipped() == 2);  // one that was read, and one that was not
  REQUIRE(read_all().empty());
}

TEST_CASE("a worker's rotated stderr keeps no file of its own open") {
  const test::TemporaryDirectory directory;
  const std::string path = directory.path() + "/stderr.log";
  const auto state = std::make_shared<LogStreamState>();
  RotatingFile file = open_log(path, {4096, 1}, state.get());
  StderrFile searched(path);
  auto followed = FollowedFile::open(path, state, 1);
  REQUIRE_OK(followed);
  searched.rotates(*std::move(followed));
  const auto open_files = [&] {
    int out = 0;
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
      std::error_code gone;
      const std::string target = std::filesystem::read_symlink(entry.path(), gone).string();
      out += target.rfind(path, 0) == 0 ? 1 : 0;
    }
    return out;
  };
  REQUIRE(open_files() == 1);  // the writer's own
  for (int i = 0; i < 1000; ++i) file.write(fmt::format("line {} of many\n", i));
  file.write("ValueError: the reason\n");
  std::string buffer(4096, '\0');
  (void)searched.error_so_far(buffer);
  file.write("Traceback (most recent call last):\n  File \"x.py\", line 7, in <module>\nValueError: that\n");
  const auto cause = searched.error_so_far(buffer);
  REQUIRE(cause);
  REQUIRE(cause->text == "ValueError: that");
  REQUIRE(open_files() == 1);
}

TEST_CASE("an interrupted rotation is finished or undone, wherever it was, and loses no file") {
  // As rotate() goes: a draft, older files moved from the oldest on, the current one linked, the draft
  // renamed.
  const auto before = [](const std::string& path, int held) {
    for (int number = held; number >= 1; --number)
      open_log(fmt::format("{}.{}", path, number), {}).write(fmt::format("old {}\n", number));
    open_log(path, {}).write("current\n");
  };
  constexpr int kKeep = 3;
  for (int held = 0; held <= kKeep; ++held) {
    const int moves = std::min(held, kKeep - 1);
    for (int step = 0; step <= moves + 2; ++step) {
      INFO(held << " older files, interrupted after step " << step);
      const test::TemporaryDirectory directory;
      const std::string path = directory.path() + "/log";
      const auto name = [&](int number) { return fmt::format("{}.{}", path, number); };
      before(path, held);
      const std::string draft = path + ".new";
      open_log(draft, {});
      for (int i = 0; i < std::min(step, moves); ++i)
        REQUIRE(::rename(name(moves - i).c_str(), name(moves - i + 1).c_str()) == 0);
      if (step > moves) REQUIRE(::link(path.c_str(), name(1).c_str()) == 0);
      if (step > moves + 1) REQUIRE(::rename(draft.c_str(), path.c_str()) == 0);
      const bool rotated = finish_rotation(path, kKeep);
      REQUIRE(rotated == (step > 0));
      REQUIRE(::access(draft.c_str(), F_OK) != 0);
      Names expected;
      for (int number = rotated ? moves : held; number >= 1; --number)
        expected.push_back(fmt::format("old {}\n", number));
      expected.push_back("current\n");
      if (rotated) expected.push_back("");
      REQUIRE(files_of(path) == expected);
      // And it goes on.
      RotatingFile next = open_log(path, {1, kKeep});
      next.go_on(0);
      next.write("a\n");
      next.write("b\n");
      REQUIRE(files_of(path).back() == "b\n");
      REQUIRE(files_of(path).size() <= kKeep + 1);
    }
  }
}

TEST_CASE("where a writer was killed a line of its own says how much may be missing") {
  const test::TemporaryDirectory directory;
  const std::string path = directory.path() + "/log";
  open_log(path, {1 << 20, 3}).write("one\ntw");
  RotatingFile second = open_log(path, {1 << 20, 3});
  second.go_on(0);
  second.write("o\n");
  RotatingFile third = open_log(path, {1 << 20, 3});
  third.go_on(77);
  third.write("three\nfo");
  RotatingFile fourth = open_log(path, {1 << 20, 3});
  fourth.go_on(5);
  REQUIRE(text_of(path) ==
          "one\ntwo\nmuster: the log writer was killed: up to 77 bytes are missing here\nthree\nfo\n"
          "muster: the log writer was killed: up to 5 bytes are missing here\n");
}

TEST_CASE("the end of a log reaches back into the file before") {
  const test::TemporaryDirectory directory;
  const std::string path = directory.path() + "/log";
  RotatingFile file = open_log(path, {6, 2});
  file.write("one 1\ntwo\n");
  REQUIRE(end_of_log(path, 6) == "1\ntwo\n");
  REQUIRE(end_of_log(path, 100) == "one 1\ntwo\n");
}
