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

const std::string kThousand(1000, 'x');
const std::vector<std::string_view> kNames = {"/n1", "/n2", "/n3", "/n4"};
const std::vector<std::string_view> kLong = {"/steady", "1", "/n1", kThousand};

std::vector<Limit> store_limits() {
  std::vector<Limit> out;
  out.push_back(
      by("--max-keys", "2", {{.op = Op::kSet, .key = "/n1"}, {.op = Op::kAdd, .key = "/n2", .number = 1}}));
  out.push_back(by("--max-bytes", "900", {{.op = Op::kMultiSet, .items = kLong}}));
  out.push_back(by("--max-waits", "3", {{.op = Op::kWait, .items = kNames}}));
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
  for (const auto& part : {store_limits(), connection_limits(), agent_limits()})
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
    const Instant deadline = SteadyClock::now() + kTimeout;
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
  REQUIRE(found.size() == known.size());
  for (const std::string& option : found) REQUIRE(known.contains(option));
}
