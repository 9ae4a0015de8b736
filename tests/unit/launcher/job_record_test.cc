// SPDX-License-Identifier: Apache-2.0
#include "launcher/process/job_record.h"

#include <algorithm>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/support/catch.h"
#include "tests/support/temporary_directory.h"

namespace muster::launcher {
namespace {

JobRecord example() {
  JobRecord out;
  out.name = "train-3f9a";
  out.pid = ::getpid();
  out.start_time = start_time_of(out.pid);
  out.boot_id = boot_id();
  out.host = "node7";
  out.directory = "/work";
  out.command = {"muster", "--detach", "train.py", "\xff\x1b[2J"};
  out.output = "/work/out.log";
  out.began = 17;
  out.state = "running";
  out.generation = 3;
  out.restarts = 1;
  out.nodes = 2;
  out.world_size = 4;
  out.workers = {{2, 100, "/dev/shm/muster-1/0"}, {3, 101}};
  out.metrics = "127.0.0.1:9400";
  out.page_token = "0a1b";
  return out;
}

}  // namespace

TEST_CASE("An entry of a job survives its file") {
  test::TemporaryDirectory directory;
  REQUIRE(prepare_runtime_directory(directory.path()));
  JobRecord entry = example();
  entry.command.pop_back();  // bytes that are no UTF-8 come back as the replacement character
  REQUIRE(write_job_record(directory.path(), entry));
  std::vector<std::string> complaints;
  const auto entries = read_job_records(directory.path(), complaints);
  CHECK(complaints.empty());
  REQUIRE(entries.size() == 1);
  CHECK(to_json(entries[0]) == to_json(entry));
  CHECK(is_alive(entries[0]));
  CHECK(job_record_from_json(to_json(example()))->command.back() == "\xef\xbf\xbd\x1b[2J");
}

TEST_CASE("An entry is stale when its process began at another time, or before another boot") {
  JobRecord entry = example();
  entry.start_time += 1;
  CHECK_FALSE(is_alive(entry));
  entry = example();
  entry.boot_id[0] = entry.boot_id[0] == '0' ? '1' : '0';
  CHECK_FALSE(is_alive(entry));
  entry = example();
  entry.start_time = 0;
  CHECK_FALSE(is_alive(entry));
}

TEST_CASE("What is no entry of a job is refused, whatever field is wrong") {
  const std::string good = to_json(example());
  REQUIRE(job_record_from_json(good));
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    const auto at = text.find(from);
    REQUIRE(at != std::string::npos);
    return text.replace(at, from.size(), to);
  };
  for (const auto& [from, to] :
       std::vector<std::pair<std::string, std::string>>{{"\"train-3f9a\"", "\"../etc\""},
                                                        {"\"train-3f9a\"", "7"},
                                                        {"\"generation\": 3", "\"generation\": 3.5"},
                                                        {"\"nodes\": 2", "\"nodes\": 99999999999"},
                                                        {"\"nodes\": 2", "\"nodes\": -99999999999"},
                                                        {"\"nodes\": 2", "\"nodes\": 18446744073709551615"},
                                                        {"\"rank\": 2", "\"rank\": \"2\""},
                                                        {"\"muster\"", "null"},
                                                        {"\"state\"", "\"stat\""}}) {
    CAPTURE(from, to);
    CHECK_FALSE(job_record_from_json(with(from, to)));
  }
  CHECK_FALSE(job_record_from_json(with("\"pid\": " + std::to_string(::getpid()), "\"pid\": 1")));
  for (std::size_t size = 0; size < good.size() - 2; ++size)
    CHECK_FALSE(job_record_from_json(std::string_view(good).substr(0, size)));
}

TEST_CASE("A name of a job is no path and no option") {
  for (const char* name : {"a", "train-3f9a", "x.y_z", "0"}) CHECK(is_job_name(name));
  for (const char* name : {"", ".", "..", "../x", "a/b", "-x", ".x", "a b", "\xc3\xa4"})
    CHECK_FALSE(is_job_name(name));
  CHECK_FALSE(is_job_name(std::string(65, 'a')));
}

TEST_CASE("Entries and directories that others can write to are not believed") {
  test::TemporaryDirectory directory;
  REQUIRE(write_job_record(directory.path(), example()));
  const std::string path = directory.path() + "/train-3f9a.json";
  REQUIRE(::chmod(path.c_str(), 0666) == 0);
  std::vector<std::string> complaints;
  CHECK(read_job_records(directory.path(), complaints).empty());
  REQUIRE(complaints.size() == 1);
  CHECK(complaints[0].find("writable by nobody else") != std::string::npos);
  REQUIRE(::chmod(directory.path().c_str(), 0777) == 0);
  CHECK_FALSE(prepare_runtime_directory(directory.path()));
  REQUIRE(::chmod(directory.path().c_str(), 0700) == 0);
  const std::string link = directory.path() + "/link";
  REQUIRE(::symlink(directory.path().c_str(), link.c_str()) == 0);
  CHECK_FALSE(prepare_runtime_directory(link));
}

TEST_CASE("Jobs are written down where it was said, else in a directory of the user") {
  CHECK(runtime_directory({{"MUSTER_RUNTIME_DIR", "/x"}, {"XDG_RUNTIME_DIR", "/y"}}) == "/x");
  CHECK(runtime_directory({{"XDG_RUNTIME_DIR", "/y"}}) == "/tmp/muster-" + std::to_string(::getuid()));
}

}  // namespace muster::launcher
