// SPDX-License-Identifier: Apache-2.0
// Looking into a running musterd: who may, and what is told.
#include <fstream>
#include <string>
#include <sys/stat.h>
#include <thread>

#include "rendezvous/agent_client/query_client.h"
#include "tests/support/catch.h"
#include "tests/support/cluster.h"
#include "tests/support/musterd.h"
#include "tests/support/temporary_directory.h"

using namespace muster;
using namespace muster::test;

namespace {

constexpr std::string_view kOfA = "the secret of job a, 1";
constexpr std::string_view kOfAll = "the secret of all others";

std::string write_secret(const TemporaryDirectory& folder, const std::string& name, std::string_view text) {
  std::string path = folder.path() + "/" + name;
  std::ofstream(path) << text << "\n";
  REQUIRE(::chmod(path.c_str(), 0600) == 0);
  return path;
}

Result<net::QueryAnswer> look(std::uint16_t port, const std::string& job, std::string_view with = {}) {
  net::QueryOptions options;
  options.host = "127.0.0.1";
  options.port = port;
  options.job = job;
  options.own_host = "asker";
  options.timeout = 20s;
  if (!with.empty()) options.secret = secret(with);
  return net::query(options);
}

// An agent that has a place in a world of one, as long as this lives.
struct Member {
  Member(std::uint16_t port, const std::string& job, std::string_view with = {}) {
    net::ControlClientOptions options;
    options.host = "127.0.0.1";
    options.port = port;
    options.job = job;
    options.request.host = "n1";
    options.request.addresses = {"10.0.0.1"};
    options.request.master_port = 4711;
    options.connect_timeout = 20s;
    if (!with.empty()) options.secret = secret(with);
    bool assigned = false;
    net::ControlEvents events;
    events.assigned = [&](const auto&) { assigned = true; };
    client.emplace(loop, options, std::move(events));
    client->start();
    const Instant deadline = SteadyClock::now() + kTimeout;
    while (!assigned && SteadyClock::now() < deadline) loop.run_one_until(deadline);
    REQUIRE(assigned);
  }
  boost::asio::io_context loop{1};
  std::optional<net::ControlClient> client;
};

}  // namespace

TEST_CASE("whoever reaches a daemon without secrets may look into it, and joins nothing by that") {
  Musterd daemon = Musterd::listening();
  const Member member(daemon.port(), "a");
  const auto all = look(daemon.port(), "");
  REQUIRE_OK(all);
  REQUIRE(all->jobs.size() == 1);
  REQUIRE(all->jobs[0].job == "a");
  REQUIRE(all->jobs[0].phase == control::JobState::Phase::kRunning);
  REQUIRE(all->jobs[0].first_address == "10.0.0.1");
  REQUIRE(all->jobs[0].first_port == 4711);
  REQUIRE(all->nodes.empty());
  const auto one = look(daemon.port(), "a");
  REQUIRE_OK(one);
  REQUIRE(one->nodes.size() == 1);
  REQUIRE(one->nodes[0].host == "n1");
  REQUIRE(one->nodes[0].address == "127.0.0.1");
  const auto none = look(daemon.port(), "b");
  REQUIRE_OK(none);
  REQUIRE(none->jobs.empty());
  REQUIRE(look(daemon.port(), "")->over.num_jobs == 1);  // asking for b made none
}

TEST_CASE("with a secret an asker that does not know it gets nothing") {
  const TemporaryDirectory folder;
  Musterd daemon = Musterd::listening({"--secret-file", write_secret(folder, "s", kOfAll)});
  const Member member(daemon.port(), "a", kOfAll);
  for (const std::string_view wrong : {std::string_view(), kOfA})
    for (const std::string job : {"", "a"}) {
      const auto answer = look(daemon.port(), job, wrong);
      REQUIRE_FALSE(answer);
      REQUIRE(answer.error().code == ErrorCode::kMismatch);
    }
  const auto answer = look(daemon.port(), "", kOfAll);
  REQUIRE_OK(answer);
  REQUIRE(answer->jobs.size() == 1);
}

TEST_CASE("who knows the secret of one job sees that job alone, and the daemon's secret shows the others") {
  const TemporaryDirectory folder;
  Musterd daemon = Musterd::listening({"--secret-file", write_secret(folder, "s", kOfAll), "--job-secret",
                                       "a=" + write_secret(folder, "a", kOfA)});
  const Member a(daemon.port(), "a", kOfA);
  const Member b(daemon.port(), "b", kOfAll);
  const auto own = look(daemon.port(), "a", kOfA);
  REQUIRE_OK(own);
  REQUIRE(own->jobs.size() == 1);
  REQUIRE(own->over.num_jobs == 1);
  REQUIRE(own->nodes.size() == 1);
  const auto others = look(daemon.port(), "", kOfAll);
  REQUIRE_OK(others);
  REQUIRE(others->jobs.size() == 1);
  REQUIRE(others->jobs[0].job == "b");
  REQUIRE_FALSE(look(daemon.port(), "a", kOfAll));
  REQUIRE_FALSE(look(daemon.port(), "", kOfA));
  REQUIRE_FALSE(look(daemon.port(), "b", kOfA));
}

TEST_CASE("where each job has a secret of its own, an asker that names none is told to name one") {
  const TemporaryDirectory folder;
  Musterd daemon = Musterd::listening({"--job-secret", "a=" + write_secret(folder, "a", kOfA)});
  const auto answer = look(daemon.port(), "", kOfA);
  REQUIRE_FALSE(answer);
  REQUIRE_THAT(answer.error().message,
               Catch::Contains("each job has a secret of its own here: name the job"));
  REQUIRE_OK(look(daemon.port(), "a", kOfA));
}

TEST_CASE("an asker may neither join without a job nor ask again before it has its answer") {
  Musterd daemon = Musterd::listening();
  const auto say_all = [&](const std::vector<control::Message>& words, const std::string& job) {
    RawClient client(daemon.port());
    std::string bytes;
    control::encode(control::Preamble{}, bytes);
    control::encode(control::Message(control::Start{job, "asker", {}}), bytes);
    control::encode(control::Message(control::Proof{}), bytes);
    for (const control::Message& word : words) control::encode(word, bytes);
    client.send(bytes);
    return daemon.wait_for_line("closed 127.0.0.1");
  };
  REQUIRE_THAT(say_all({control::Join{}}, ""), Catch::Contains("a job needs a name"));
  REQUIRE_THAT(say_all({control::Query{}, control::Query{}}, ""),
               Catch::Contains("a question before the answer to another"));
}

TEST_CASE("what listens and is no coordinator is told from one that refuses") {
  net::QueryOptions options;
  options.host = "127.0.0.1";
  options.timeout = 20s;
  const UniqueFd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const timeval timeout{20, 0};
  ::setsockopt(listener.get(), SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout);
  REQUIRE(::bind(listener.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
  REQUIRE(::listen(listener.get(), 1) == 0);
  socklen_t size = sizeof address;
  REQUIRE(::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &size) == 0);
  options.port = ntohs(address.sin_port);
  std::thread other([&] {
    const UniqueFd fd(::accept(listener.get(), nullptr, nullptr));
    ::setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout);
    constexpr std::string_view kWords = "HTTP/1.1 400 Bad Request\r\n\r\n";
    char block[4096];
    if (::recv(fd.get(), block, sizeof block, 0) <= 0) return;
    (void)::send(fd.get(), kWords.data(), kWords.size(), MSG_NOSIGNAL);
    ::shutdown(fd.get(), SHUT_WR);
    while (::recv(fd.get(), block, sizeof block, 0) > 0) {
    }
  });
  const auto answer = net::query(options);
  other.join();
  REQUIRE_FALSE(answer);
  REQUIRE(answer.error().code == ErrorCode::kProtocol);
  REQUIRE_THAT(answer.error().message, Catch::Contains("does not speak muster's control protocol"));
}
