// SPDX-License-Identifier: Apache-2.0
// musterd --state-dir, killed, started again, refused, and without room on its disk.
#include "rendezvous/wal/state_log.h"

#include <filesystem>
#include <fstream>
#include <sys/resource.h>

#include <boost/asio/io_context.hpp>

#include "rendezvous/base/log.h"
#include "rendezvous/protocol/control.h"
#include "tests/support/catch.h"
#include "tests/support/kept_musterd.h"
#include "tests/support/raw_agent.h"
#include "tests/support/temporary_directory.h"

using namespace muster;
using muster::test::KeptMusterd;
using muster::test::Musterd;
using muster::test::number_from;
using muster::test::RawClient;
using muster::test::value_of;
using wire::Op;

TEST_CASE(
    "a full disk stops acknowledgements, says so, loses nothing, and agents live on until there is room") {
  KeptMusterd keeper({"--metrics-addr", "127.0.0.1:0"});
  const std::string page = keeper.daemon().wait_for_line("metrics at http://127.0.0.1:");
  const auto page_port = static_cast<std::uint16_t>(std::stoi(page.substr(page.find("127.0.0.1:") + 10)));
  const auto health = [&] {
    RawClient http(page_port);
    http.send("GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n");
    return http.receive(12);
  };
  REQUIRE(health() == "HTTP/1.1 200");
  RawClient agent(keeper.port());
  std::string hello;
  control::encode(control::Preamble{}, hello);
  control::encode(control::Message(control::Start{"job", "n1", {}}), hello);
  control::encode(control::Message(control::Proof{}), hello);
  agent.send(hello);
  control::Decoder decoder;
  control::Message message;
  while (!std::holds_alternative<control::Welcome>(message)) {
    const std::string byte = agent.receive(1);
    REQUIRE(byte.size() == 1);
    std::string_view input(byte);
    REQUIRE(decoder.next(input, message) != control::Decoder::Step::kError);
  }
  RawClient client = RawClient::modern(keeper.port());
  client.send({.op = Op::kAdd, .key = "/n", .number = 1});
  REQUIRE(number_from(client) == 1);

  rlimit limit{};
  const pid_t pid = keeper.daemon().pid();
  REQUIRE(::prlimit(pid, RLIMIT_FSIZE, nullptr, &limit) == 0);
  rlimit tight = limit;
  tight.rlim_cur = std::filesystem::file_size(keeper.log_path()) + 20;  // less than any frame
  REQUIRE(::prlimit(pid, RLIMIT_FSIZE, &tight, nullptr) == 0);
  client.send({.op = Op::kAdd, .key = "/n", .number = 1});
  const std::string line = keeper.daemon().wait_for_line("error");
  REQUIRE_THAT(line,
               Catch::Contains("state.log") && Catch::Contains("EFBIG") && Catch::Contains("make room"));
  REQUIRE(health() == "HTTP/1.1 503");

  SECTION("with room it goes on by itself") {
    std::string beat;
    control::encode(control::Message(control::Heartbeat{}), beat);
    agent.send(beat);
    REQUIRE(agent.receive(beat.size()) == beat);
    char byte = 0;
    REQUIRE(::recv(client.fd(), &byte, 1, MSG_DONTWAIT | MSG_PEEK) == -1);
    REQUIRE(::prlimit(pid, RLIMIT_FSIZE, &limit, nullptr) == 0);
    (void)keeper.daemon().wait_for_line("there is room again");
    REQUIRE(health() == "HTTP/1.1 200");
    REQUIRE(number_from(client) == 2);
    keeper.kill();
    keeper.start();
    RawClient after = RawClient::modern(keeper.port());
    REQUIRE(value_of(after, "/n") == "2");
  }
  SECTION("killed meanwhile it has what was acknowledged") {
    keeper.kill();
    keeper.start();
    RawClient after = RawClient::modern(keeper.port());
    REQUIRE(value_of(after, "/n") == "1");
  }
  SECTION("and it can be stopped") {
    keeper.daemon().signal(SIGTERM);
    const auto [code, text] = keeper.daemon().finish();
    REQUIRE(code == 1);
    REQUIRE_THAT(text, Catch::Contains("bytes of changes are lost"));
    REQUIRE(client.receive(8).empty());
    keeper.start();
    RawClient after = RawClient::modern(keeper.port());
    REQUIRE(value_of(after, "/n") == "1");
  }
}

// The sanitizers want to be loaded first.
#ifndef MUSTER_SANITIZED
TEST_CASE("what could not be synced is not acknowledged: musterd stops, and says why") {
  ::setenv("LD_PRELOAD", MUSTER_TEST_FAILING_SYNC, 1);
  ::setenv("FAIL_SYNC_FROM", "4", 1);
  KeptMusterd keeper;
  ::unsetenv("LD_PRELOAD");
  ::unsetenv("FAIL_SYNC_FROM");
  RawClient client = RawClient::modern(keeper.port());
  RawClient reader = RawClient::modern(keeper.port());
  for (int i = 1; i <= 3; ++i) {
    client.send({.op = Op::kAdd, .key = "/n", .number = 1});
    REQUIRE(number_from(client) == i);
  }
  const std::string_view keys[] = {"/m"};
  reader.send({.op = Op::kWait, .items = keys});
  REQUIRE(value_of(client, "/n") == "3");
  client.send({.op = Op::kAdd, .key = "/m", .number = 1});
  REQUIRE(client.receive(8).empty());
  REQUIRE(reader.receive(1).empty());  // nor is anybody woken by it
  const auto [code, text] = keeper.daemon().finish();
  REQUIRE(code == 1);
  REQUIRE_THAT(text, Catch::Contains("fdatasync " + keeper.log_path()) && Catch::Contains("EIO"));
  keeper.start();
  RawClient after = RawClient::modern(keeper.port());
  REQUIRE(value_of(after, "/n") == "3");
}

TEST_CASE("a log that may be in the page cache alone is synced before anybody is told of it") {
  KeptMusterd keeper;
  RawClient client = RawClient::modern(keeper.port());
  client.send({.op = Op::kAdd, .key = "/n", .number = 1});
  REQUIRE(number_from(client) == 1);
  keeper.kill();
  ::setenv("LD_PRELOAD", MUSTER_TEST_FAILING_SYNC, 1);
  ::setenv("FAIL_SYNC_FROM", "1", 1);
  Musterd daemon({"--host", "127.0.0.1", "--port", "0", "--state-dir", keeper.directory()});
  ::unsetenv("LD_PRELOAD");
  ::unsetenv("FAIL_SYNC_FROM");
  const auto [code, text] = daemon.finish();
  REQUIRE(code == 1);
  REQUIRE_THAT(text, Catch::Contains("fdatasync " + keeper.log_path()) && Catch::Contains("EIO"));
}

TEST_CASE("a change that is on the disk when musterd stops is acknowledged") {
  const test::TemporaryDirectory folder;
  const std::string slow = folder.path() + "/slow";
  ::setenv("LD_PRELOAD", MUSTER_TEST_FAILING_SYNC, 1);
  ::setenv("HOLD_FDATASYNC", slow.c_str(), 1);
  KeptMusterd keeper({"--log-level", "info"});
  ::unsetenv("LD_PRELOAD");
  ::unsetenv("HOLD_FDATASYNC");
  RawClient client = RawClient::modern(keeper.port());
  const auto before = std::filesystem::file_size(keeper.log_path());
  std::ofstream(slow).put('x');
  client.send({.op = Op::kAdd, .key = "/n", .number = 1});
  const Instant deadline = SteadyClock::now() + test::kTimeout;
  while (std::filesystem::file_size(keeper.log_path()) == before) REQUIRE(SteadyClock::now() < deadline);
  keeper.daemon().signal(SIGTERM);
  (void)keeper.daemon().wait_for_line("SIGTERM: stopping");
  std::filesystem::remove(slow);
  REQUIRE(number_from(client) == 1);
  REQUIRE(keeper.daemon().finish().first == 0);
}

TEST_CASE("while a sync or a snapshot takes long agents hear heartbeats, and its answers come after it") {
  const bool snapshot = GENERATE(false, true);
  CAPTURE(snapshot);
  const test::TemporaryDirectory folder;
  const std::string slow = folder.path() + "/slow";
  ::setenv("LD_PRELOAD", MUSTER_TEST_FAILING_SYNC, 1);
  ::setenv(snapshot ? "HOLD_FSYNC" : "HOLD_FDATASYNC", slow.c_str(), 1);
  KeptMusterd keeper({"--state-rewrite-min-bytes", snapshot ? "100" : "1000000000"});
  ::unsetenv("LD_PRELOAD");
  ::unsetenv("HOLD_FSYNC");
  ::unsetenv("HOLD_FDATASYNC");
  test::RawAgent agent(keeper.port());
  agent.open("job");
  agent.join(2);
  agent.expect<control::Waiting>();
  RawClient client = RawClient::modern(keeper.port());
  std::ofstream(slow).put('x');
  // A snapshot is written when the change is on the disk and answered: it holds up what comes next. One
  // request alone makes the log grow beyond all that it may have been rewritten with before.
  if (snapshot) {
    const std::string text(4000, 'x');
    client.send({.op = Op::kCompareSet, .key = "/long", .value = "", .desired = text});
    REQUIRE(client.receive(8 + text.size()).substr(8) == text);
  }
  client.send({.op = Op::kAdd, .key = "/n", .number = 1});
  // The agent is silent; these are not answers.
  for (int i = 0; i < 3; ++i) agent.expect<control::Heartbeat>();
  char byte = 0;
  REQUIRE(::recv(client.fd(), &byte, 1, MSG_DONTWAIT | MSG_PEEK) == -1);
  std::filesystem::remove(slow);
  REQUIRE(number_from(client) == 1);
  agent.send(control::Heartbeat{});
  agent.expect<control::Heartbeat>();
  keeper.kill();
  keeper.start();
  RawClient after = RawClient::modern(keeper.port());
  REQUIRE(value_of(after, "/n") == "1");
}
#endif

TEST_CASE("a second musterd on the directory is refused with the first one's pid") {
  KeptMusterd keeper;
  Musterd second({"--host", "127.0.0.1", "--port", "0", "--state-dir", keeper.directory()});
  const auto [code, text] = second.finish();
  REQUIRE(code == 1);
  REQUIRE_THAT(text, Catch::Contains("process " + std::to_string(keeper.daemon().pid())));
}

TEST_CASE(
    "a damaged log is not served: exit code 1, the offset and the advice, and a torn one is, with a line") {
  KeptMusterd keeper;
  {
    RawClient client = RawClient::modern(keeper.port());
    for (int i = 0; i < 3; ++i) {
      client.send({.op = Op::kAdd, .key = "/n", .number = 1});
      REQUIRE(number_from(client) == i + 1);
    }
  }
  keeper.kill();
  const std::string path = keeper.log_path();
  const auto size = std::filesystem::file_size(path);
  std::filesystem::resize_file(path, size - 3);
  std::vector<std::string> arguments = {"--host", "127.0.0.1",   "--port",
                                        "0",      "--state-dir", keeper.directory()};
  {
    Musterd daemon(arguments);
    const std::string line = daemon.wait_for_line("cut ");
    REQUIRE_THAT(line, Catch::Contains("warning") && Catch::Contains(path) && Catch::Contains("at offset "));
    const std::string listening = daemon.wait_for_line("listening on ");
    RawClient client =
        RawClient::modern(static_cast<std::uint16_t>(std::stoi(listening.substr(listening.rfind(':') + 1))));
    REQUIRE(value_of(client, "/n") == "2");
  }
  {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(40);
    file.put('\xff');
  }
  const auto [code, text] = Musterd(arguments).finish();
  REQUIRE(code == 1);
  REQUIRE_THAT(text, Catch::Contains(path) && Catch::Contains("damaged after byte 20"));
}

TEST_CASE("the log is rewritten when it has grown, and holds what is alive") {
  KeptMusterd keeper({"--state-rewrite-min-bytes", "600", "--log-level", "debug"});
  RawClient client = RawClient::modern(keeper.port());
  client.send({.op = Op::kSet, .key = "/kept", .value = "1"});
  for (int i = 0; i < 40; ++i) {
    client.send({.op = Op::kSet, .key = "/k", .value = std::to_string(i)});
    REQUIRE(client.alive());
  }
  (void)keeper.daemon().wait_for_line("rewritten");
  REQUIRE(std::filesystem::file_size(keeper.log_path()) < 700);
  keeper.kill();
  keeper.start();
  RawClient after = RawClient::modern(keeper.port());
  REQUIRE(value_of(after, "/k") == "39");
  REQUIRE(value_of(after, "/kept") == "1");
}

TEST_CASE("a log that grows over many short runs is rewritten, too") {
  KeptMusterd keeper({"--state-rewrite-min-bytes", "4KiB", "--log-level", "info"});
  for (int run = 0; run < 10; ++run) {
    RawClient client = RawClient::modern(keeper.port());
    // The second is answered after whatever the first one led to.
    for (int i = 0; i < 2; ++i) {
      client.send({.op = Op::kSet, .key = "/k", .value = std::string(2000, 'x')});
      REQUIRE(client.alive());
    }
    keeper.kill();
    keeper.start();
  }
  REQUIRE(std::filesystem::file_size(keeper.log_path()) < 10'000);
}

TEST_CASE("a torchrun job whose agents were killed with musterd is as one whose agents have gone") {
  const std::string_view keep = GENERATE("0", "600");
  KeptMusterd keeper({"--keep", std::string(keep), "--log-level", "info"});
  {
    RawClient agent = RawClient::modern(keeper.port());
    const std::string_view state = "/torch.rendezvous.job", round = "/torch.rendezvous.job.0/x",
                           other = "/mine";
    agent.send({.op = Op::kCompareSet, .key = state, .value = "", .desired = "with two nodes"});
    agent.send({.op = Op::kSet, .key = round, .value = "1"});
    agent.send({.op = Op::kSet, .key = other, .value = "1"});
    REQUIRE(agent.receive(8 + 14).size() == 8 + 14);
    REQUIRE(agent.alive());
    keeper.kill();
  }
  keeper.start();
  if (keep == "0")
    (void)keeper.daemon().wait_for_line("torchrun job job: its last agent has gone, 2 keys deleted");
  RawClient next = RawClient::modern(keeper.port());
  REQUIRE(value_of(next, "/torch.rendezvous.job") == (keep == "0" ? "" : "with two nodes"));
  REQUIRE(value_of(next, "/mine") == "1");
}

TEST_CASE("a log that closes is not rewritten: who knows the state may be gone") {
  const test::TemporaryDirectory directory;
  boost::asio::io_context loop;
  net::StateLogOptions options;
  options.directory = directory.path();
  options.rewrite_min_bytes = 1;
  const Log quiet("test", LogLevel::kOff);
  for (const std::string key : {"a", "b", "c"}) {
    auto log = net::StateLog::open(loop, options, quiet);
    REQUIRE(log);
    (void)std::exchange((*log)->recovered(), {});
    (*log)->record(StoreChange{StoreChange::Kind::kSet, key, "value"});
    (*log)->close();
  }
  auto log = net::StateLog::open(loop, options, quiet);
  REQUIRE(log);
  REQUIRE((*log)->recovered().store.keys().size() == 3);
}
