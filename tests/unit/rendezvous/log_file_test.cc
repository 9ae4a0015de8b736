// SPDX-License-Identifier: Apache-2.0
// The state log as a file: its owner, its torn tail, its rewriting, a disk without room.
#include "rendezvous/wal/log_file.h"

#include <filesystem>
#include <fstream>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "rendezvous/base/syscall.h"
#include "rendezvous/wal/journal.h"
#include "tests/support/catch.h"
#include "tests/support/log_records.h"
#include "tests/support/temporary_directory.h"

using namespace muster;
using muster::test::TemporaryDirectory;

namespace {

LogFile::Opened open_log(const std::string& directory, RecoveredState& saved) {
  auto opened = LogFile::open(directory, saved.sink());
  REQUIRE_OK(opened);
  return *std::move(opened);
}

void set(LogFile& file, std::string_view key, std::string_view value) {
  journal::Encoder records;
  records.add(test::set(key, value));
  REQUIRE_OK(file.append(records));
}

std::string content(const std::string& path) {
  auto out = read_file(path);
  REQUIRE_OK(out);
  return *out;
}

void overwrite(const std::string& path, std::string_view bytes) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  REQUIRE(file.good());
}

}  // namespace

TEST_CASE("a log goes on where it was, in a directory that only its owner can read") {
  const TemporaryDirectory folder;
  const std::string directory = folder.path() + "/state";
  {
    RecoveredState saved;
    auto opened = open_log(directory, saved);
    REQUIRE(opened.num_frames == 0);
    set(opened.file, "/a", "1");
    set(opened.file, "/b", "2");
  }
  namespace fs = std::filesystem;
  REQUIRE(fs::status(directory).permissions() == fs::perms::owner_all);
  REQUIRE(fs::status(directory + "/state.log").permissions() ==
          (fs::perms::owner_read | fs::perms::owner_write));
  RecoveredState saved;
  auto opened = open_log(directory, saved);
  REQUIRE(opened.num_frames == 2);
  REQUIRE(opened.notice.empty());
  REQUIRE(saved.store.get("/b") == "2");
  set(opened.file, "/a", "3");
  RecoveredState again;
  REQUIRE(journal::replay(content(opened.file.path()), again.sink()).num_frames == 3);
  REQUIRE(again.store.get("/a") == "3");
}

TEST_CASE("a directory has one owner, and the second is told who that is") {
  const TemporaryDirectory folder;
  RecoveredState saved;
  const auto first = open_log(folder.path(), saved);
  const auto second = LogFile::open(folder.path(), saved.sink());
  REQUIRE_FALSE(second);
  REQUIRE(second.error().code == ErrorCode::kExhausted);
  REQUIRE_THAT(second.error().message, Catch::Contains("running process " + std::to_string(::getpid())) &&
                                           Catch::Contains(folder.path()));
}

TEST_CASE("a torn tail of any length is cut and reported, and the log goes on behind it") {
  const TemporaryDirectory folder;
  const std::string path = folder.path() + "/state.log";
  std::size_t good = 0;
  {
    RecoveredState saved;
    auto opened = open_log(folder.path(), saved);
    set(opened.file, "/a", "1");
    good = opened.file.size();
    set(opened.file, "/b", "2");
  }
  const std::string whole = content(path);
  for (std::size_t size = good + 1; size < whole.size(); ++size) {
    overwrite(path, std::string_view(whole).substr(0, size));
    {
      RecoveredState saved;
      auto opened = open_log(folder.path(), saved);
      CAPTURE(size, opened.notice);
      REQUIRE_THAT(opened.notice, Catch::Contains("cut " + std::to_string(size - good) + " bytes at offset " +
                                                  std::to_string(good)));
      REQUIRE(saved.store.keys().size() == 1);
      set(opened.file, "/c", "3");
    }
    RecoveredState saved;
    REQUIRE(open_log(folder.path(), saved).notice.empty());
    REQUIRE(saved.store.get("/a") == "1");
    REQUIRE(saved.store.get("/b").empty());
    REQUIRE(saved.store.get("/c") == "3");
  }
}

TEST_CASE("a damaged log is refused with its path, the offset and the advice, and stays as it is") {
  const TemporaryDirectory folder;
  const std::string path = folder.path() + "/state.log";
  {
    RecoveredState saved;
    auto opened = open_log(folder.path(), saved);
    set(opened.file, "/a", "1");
    set(opened.file, "/b", "2");
  }
  std::string bytes = content(path);
  bytes[journal::kFileHeaderBytes + journal::kFrameHeaderBytes + 3] ^= 1;
  overwrite(path, bytes);
  RecoveredState saved;
  const auto opened = LogFile::open(folder.path(), saved.sink());
  REQUIRE_FALSE(opened);
  REQUIRE(opened.error().code == ErrorCode::kCorrupt);
  REQUIRE_THAT(opened.error().message, Catch::Contains(path) && Catch::Contains("after byte 20") &&
                                           Catch::Contains("truncate -s 20"));
  REQUIRE(content(path) == bytes);
}

TEST_CASE("a rewritten log holds what it was told and nothing else, and goes on") {
  const TemporaryDirectory folder;
  RecoveredState saved;
  {
    auto opened = open_log(folder.path(), saved);
    for (int i = 0; i < 100; ++i) set(opened.file, "/a", std::to_string(i));
    const std::size_t before = opened.file.size();
    REQUIRE_OK(opened.file.rewrite([](const journal::LogSink& to) {
      to(test::set("/a", "99"));
      to(test::set("/long", std::string(3 << 20, 'x')));
      to(test::push("/q", "1"));
    }));
    REQUIRE(opened.file.size() > before);
    set(opened.file, "/b", "2");
  }
  REQUIRE(folder.entries() == std::vector<std::string>{"lock", "state.log"});
  RecoveredState after;
  REQUIRE(open_log(folder.path(), after).notice.empty());
  REQUIRE(after.store.get("/a") == "99");
  REQUIRE(after.store.get("/long").size() == 3 << 20);
  REQUIRE(after.store.queue_len("/q") == 1);
  REQUIRE(after.store.get("/b") == "2");
}

TEST_CASE("what is left of a rewriting that was interrupted is removed") {
  const TemporaryDirectory folder;
  RecoveredState saved;
  {
    auto opened = open_log(folder.path(), saved);
    set(opened.file, "/a", "1");
  }
  overwrite(folder.path() + "/state.log.new", "half of someth");
  RecoveredState after;
  (void)open_log(folder.path(), after);
  REQUIRE(after.store.get("/a") == "1");
  REQUIRE(folder.entries() == std::vector<std::string>{"lock", "state.log"});
}

TEST_CASE("where there is no room nothing is half written, and it goes on when there is") {
  const TemporaryDirectory folder;
  // A child, since a limit on the size of files is a process's.
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    ::signal(SIGXFSZ, SIG_IGN);
    const auto run = [&]() -> int {
      RecoveredState saved;
      auto opened = LogFile::open(folder.path(), saved.sink());
      if (!opened) return 1;
      LogFile& file = opened->file;
      journal::Encoder records;
      records.add(test::set("/a", "1"));
      if (!file.append(records)) return 2;
      records.clear();
      const std::size_t size = file.size();
      records.add(test::set("/b", std::string(5000, 'b')));
      rlimit limit{};
      ::getrlimit(RLIMIT_FSIZE, &limit);
      const rlimit before = limit;
      limit.rlim_cur = size + 1000;
      ::setrlimit(RLIMIT_FSIZE, &limit);
      const auto full = file.append(records);
      if (full || full.error().code != ErrorCode::kExhausted) return 3;
      if (full.error().message.find("EFBIG") == std::string::npos) return 4;
      if (std::filesystem::file_size(file.path()) != size) return 5;
      const auto rewritten =
          file.rewrite([](const journal::LogSink& to) { to(test::set("/c", std::string(9000, 'c'))); });
      if (rewritten || rewritten.error().code != ErrorCode::kExhausted) return 6;
      if (std::filesystem::exists(file.path() + ".new")) return 7;
      ::setrlimit(RLIMIT_FSIZE, &before);
      return file.append(records) ? 0 : 8;
    };
    ::_exit(run());
  }
  int status = 0;
  retry_eintr([&] { return ::waitpid(child, &status, 0); });
  REQUIRE(WIFEXITED(status));
  REQUIRE(WEXITSTATUS(status) == 0);
  RecoveredState saved;
  REQUIRE(open_log(folder.path(), saved).notice.empty());
  REQUIRE(saved.store.get("/a") == "1");
  REQUIRE(saved.store.get("/b").size() == 5000);
}
