// SPDX-License-Identifier: Apache-2.0
// Every limit of musterd that an option sets: who exceeds it is turned away in words that name the option,
// the others notice nothing, and the daemon goes on serving.
#include <cstdio>
#include <functional>
#include <memory>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "tests/support/catch.h"
#include "tests/support/musterd.h"
#include "tests/support/raw_agent.h"
#include "tests/support/raw_client.h"

using namespace muster;
using namespace muster::test;
using wire::Op;

namespace {

constexpr std::string_view kJob = "/torch.rendezvous.j";

struct Limit {
  std::string option;
  std::string value;
  /// Exceeds it; the words in which it was told.
  std::function<std::string(Musterd&)> exceed;
};

// What the daemon says of the client that sent this.
std::string refused(Musterd& daemon, RawClient& client, const std::string& bytes) {
  client.send(bytes);
  std::string line = daemon.wait_for_line("closed");
  REQUIRE_THAT(line, Catch::Contains(":" + std::to_string(client.local_port()) + ": "));
  REQUIRE(client.ended());
  return line;
}

std::string encoded(const std::vector<wire::Request>& requests) {
  std::string out;
  for (const wire::Request& request : requests) wire::encode(request, out);
  return out;
}

Limit by(std::string option, std::string value, std::vector<wire::Request> requests) {
  return {std::move(option), std::move(value), [requests](Musterd& daemon) {
            RawClient client = RawClient::modern(daemon.port());
            return refused(daemon, client, encoded(requests));
          }};
}

const std::string kHundred(100, 'x');
const std::string kThousand(1000, 'x');
const std::vector<std::string_view> kNames = {"/n1", "/n2", "/n3", "/n4"};
const std::vector<std::string_view> kJobsNames = {"/torch.rendezvous.j.0/1", "/torch.rendezvous.j.0/2",
                                                  "/torch.rendezvous.j.0/3"};
const std::vector<std::string_view> kLong = {"/steady", "1", "/n1", kThousand};
const std::vector<std::string_view> kTwice = {"/n1", "/n1"};

std::vector<Limit> store_limits() {
  std::vector<Limit> out;
  out.push_back(by("--max-key-bytes", "99", {{.op = Op::kSet, .key = kHundred}}));
  out.push_back(by("--max-value-bytes", "99", {{.op = Op::kSet, .key = "/n1", .value = kHundred}}));
  out.push_back(by("--max-keys", "3", {{.op = Op::kWait, .items = kNames}}));
  out.push_back(by("--max-request-bytes", "1000", {{.op = Op::kSet, .key = "/n1", .value = kThousand}}));
  out.push_back(
      by("--max-output-bytes", "1500",
         {{.op = Op::kSet, .key = "/n1", .value = kThousand}, {.op = Op::kMultiGet, .items = kTwice}}));
  out.push_back(by("--max-total-keys", "2",
                   {{.op = Op::kSet, .key = "/n1"}, {.op = Op::kAdd, .key = "/n2", .number = 1}}));
  out.push_back(by("--max-total-bytes", "900", {{.op = Op::kMultiSet, .items = kLong}}));
  out.push_back(by("--max-waits", "3", {{.op = Op::kWait, .items = kNames}}));
  out.push_back(by("--max-job-keys", "1",
                   {{.op = Op::kCompareSet, .key = kJob, .desired = "1"},
                    {.op = Op::kSet, .key = "/n1"},
                    {.op = Op::kQueuePush, .key = kJobsNames[0], .value = "x"}}));
  out.push_back(by("--max-job-bytes", "900",
                   {{.op = Op::kSet, .key = "/n1", .value = kThousand},
                    {.op = Op::kCompareSet, .key = kJob, .desired = kThousand}}));
  out.push_back(by("--max-job-waits", "2", {{.op = Op::kWait, .items = kJobsNames}}));
  return out;
}

std::vector<Limit> connection_limits() {
  std::vector<Limit> out;
  out.push_back({"--max-connections", "2", [](Musterd& daemon) {
                   RawClient second = RawClient::modern(daemon.port());
                   REQUIRE(second.alive());
                   RawClient third(daemon.port());
                   REQUIRE(third.ended());
                   std::string line = daemon.wait_for_line("closed");
                   REQUIRE_THAT(line, Catch::Contains(":" + std::to_string(third.local_port()) + ": "));
                   REQUIRE(second.alive());
                   return line;
                 }});
  out.push_back({"--max-job-connections", "1", [](Musterd& daemon) {
                   RawClient agent = RawClient::modern(daemon.port());
                   agent.send({.op = Op::kCompareSet, .key = kJob, .desired = "1"});
                   RawClient other = RawClient::modern(daemon.port());
                   other.send({.op = Op::kSet, .key = "/torch.rendezvous.k", .value = "1"});
                   REQUIRE(agent.receive(9).back() == '1');
                   REQUIRE(other.alive());
                   RawClient second = RawClient::modern(daemon.port());
                   std::string line = refused(
                       daemon, second, encoded({{.op = Op::kSet, .key = kJobsNames[0], .value = "1"}}));
                   REQUIRE(agent.alive());
                   return line;
                 }});
  out.push_back({"--max-buffered-bytes", "1000000", [](Musterd& daemon) {
                   RawClient client = RawClient::modern(daemon.port());
                   std::string half =
                       encoded({{.op = Op::kSet, .key = "/n1", .value = std::string(1'200'000, 'x')}});
                   half.pop_back();
                   // It may be closed before it has sent all.
                   while (!half.empty()) {
                     const ssize_t n = ::send(client.fd(), half.data(), half.size(), MSG_NOSIGNAL);
                     if (n < 0) break;
                     half.erase(0, static_cast<std::size_t>(n));
                   }
                   return daemon.wait_for_line("closed");
                 }});
  out.push_back({"--slow-reader-timeout", "0.2", [](Musterd& daemon) {
                   RawClient client(daemon.port(), 4096);
                   const std::string large(1 << 20, 'x');
                   std::vector<wire::Request> requests = {{.op = Op::kValidate, .number = wire::kMagic},
                                                          {.op = Op::kSet, .key = "/n1", .value = large}};
                   requests.resize(32, {.op = Op::kGet, .key = "/n1"});
                   client.send(encoded(requests));
                   return daemon.wait_for_line("closed");
                 }});
  return out;
}

// The agent's own way to hear of it is the last message before the end.
std::string refused(RawAgent& agent) {
  return agent.expect<control::Refused>().text;
}

std::vector<Limit> agent_limits() {
  std::vector<Limit> out;
  out.push_back({"--max-agents", "1", [](Musterd& daemon) {
                   RawAgent first(daemon.port());
                   first.open("j");
                   RawClient second(daemon.port());
                   second.send(control::kMagic);
                   REQUIRE(second.ended());
                   REQUIRE(first.alive());
                   return daemon.wait_for_line("closed");
                 }});
  out.push_back({"--max-handshakes", "2", [](Musterd& daemon) {
                   RawAgent proven(daemon.port());
                   proven.open("j");
                   std::vector<RawClient> silent;
                   std::string line;
                   for (int i = 0; i < 3; ++i) {
                     silent.emplace_back(daemon.port());
                     silent.back().send(control::kMagic.substr(0, 3));
                     // Its turn comes before the next: a round trip of another client is after it.
                     REQUIRE(proven.alive());
                   }
                   line = daemon.wait_for_line("closed");
                   return line;
                 }});
  out.push_back({"--handshake-timeout", "0.2", [](Musterd& daemon) {
                   RawClient silent(daemon.port());
                   silent.send(control::kMagic.substr(0, 3));
                   REQUIRE(silent.ended());
                   return daemon.wait_for_line("closed");
                 }});
  out.push_back({"--max-jobs", "1", [](Musterd& daemon) {
                   RawAgent first(daemon.port());
                   first.open("j");
                   first.join(1);
                   first.expect<control::Assignment>();
                   RawAgent second(daemon.port());
                   second.open("k");
                   second.join(1);
                   std::string text = refused(second);
                   REQUIRE(first.alive());
                   return text;
                 }});
  out.push_back({"--max-nodes-per-job", "1", [](Musterd& daemon) {
                   RawAgent first(daemon.port());
                   first.open("j");
                   first.join(2);
                   first.expect<control::Waiting>();
                   RawAgent second(daemon.port());
                   second.open("j");
                   second.join(2);
                   std::string text = refused(second);
                   REQUIRE(first.alive());
                   return text;
                 }});
  out.push_back({"--max-node-bytes", "99", [](Musterd& daemon) {
                   RawAgent agent(daemon.port());
                   agent.open("j");
                   agent.join(1, kHundred);
                   return refused(agent);
                 }});
  out.push_back({"--max-unsent-bytes", "10000", [](Musterd& daemon) {
                   RawAgent agent(daemon.port(), 4096);
                   agent.open("j");
                   std::string questions;
                   for (int i = 0; i < 1000; ++i)
                     control::encode(control::Message(control::Clock{i, 0, 0}), questions);
                   // It reads no answer, and is closed long before it has asked so often.
                   for (int i = 0; i < 1000; ++i)
                     if (::send(agent.client().fd(), questions.data(), questions.size(), MSG_NOSIGNAL) < 0)
                       break;
                   return daemon.wait_for_line("closed");
                 }});
  return out;
}

// An agent whose workers have a store at the coordinator.
void attach(RawAgent& agent) {
  agent.open("j");
  agent.join(1);
  const auto assigned = agent.expect<control::Assignment>();
  agent.say(control::StoreAttach{assigned.generation, 0, 0});
  agent.expect<control::StoreAttached>();
  agent.say(control::StoreOpen{1, 0});
}

std::vector<Limit> channel_limits() {
  std::vector<Limit> out;
  out.push_back({"--max-store-channels", "1", [](Musterd& daemon) {
                   RawAgent agent(daemon.port());
                   attach(agent);
                   agent.say(control::StoreOpen{2, 0});
                   const auto closed = agent.expect<control::StoreClose>();
                   REQUIRE(closed.connection == 2);
                   REQUIRE(agent.alive());
                   return closed.reason;
                 }});
  return out;
}

std::string help_text() {
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(::popen(MUSTER_TEST_BIN "/musterd --help", "r"), ::pclose);
  REQUIRE(pipe);
  std::string out;
  char block[4096];
  while (const std::size_t n = std::fread(block, 1, sizeof block, pipe.get())) out.append(block, n);
  return out;
}

std::vector<Limit> all_limits() {
  std::vector<Limit> out;
  for (const auto& part : {store_limits(), connection_limits(), agent_limits(), channel_limits()})
    out.insert(out.end(), part.begin(), part.end());
  return out;
}

}  // namespace

TEST_CASE("who exceeds a limit is told its option, nobody else notices, and the daemon goes on serving") {
  for (const Limit& limit : all_limits()) {
    CAPTURE(limit.option);
    Musterd daemon = Musterd::listening({limit.option, limit.value});
    RawClient steady = RawClient::modern(daemon.port());
    steady.send({.op = Op::kSet, .key = "/steady", .value = "1"});
    REQUIRE(steady.alive());
    REQUIRE_THAT(limit.exceed(daemon), Catch::Contains("(" + limit.option + ")"));
    steady.send({.op = Op::kGet, .key = "/steady"});
    REQUIRE(steady.receive(9).back() == '1');
    // The slot of one that was turned away is free again, once the daemon has seen it go.
    const Instant deadline = SteadyClock::now() + kPatience;
    const auto is_served = [&] {
      RawClient next(daemon.port());
      try {
        next.send({.op = Op::kValidate, .number = wire::kMagic});
        next.send({.op = Op::kSet, .key = "/steady", .value = "2"});
        return next.alive();
      } catch (const std::runtime_error&) {
        return false;
      }
    };
    while (!is_served()) REQUIRE(SteadyClock::now() < deadline);
    steady.send({.op = Op::kGet, .key = "/steady"});
    REQUIRE(steady.receive(9).back() == '2');
  }
}

TEST_CASE("there is no limit among musterd's options that the table above does not know") {
  const std::string help = help_text();
  std::set<std::string> known;
  for (const Limit& limit : all_limits()) REQUIRE(known.insert(limit.option).second);
  std::set<std::string> found;
  std::istringstream words(help);
  for (std::string word; words >> word;)
    if (word.starts_with("--max-")) found.insert(word.substr(0, word.find_first_of(",.;)")));
  REQUIRE(found.size() >= 20);
  for (const std::string& option : found) REQUIRE(known.contains(option));
}
