// SPDX-License-Identifier: Apache-2.0
// Secrets of single jobs: who is let into which job, in one process and at a running musterd.
#include "rendezvous/protocol/job_secrets.h"

#include <fstream>
#include <string>
#include <sys/stat.h>
#include <utility>
#include <vector>

#include "tests/support/catch.h"
#include "tests/support/cluster.h"
#include "tests/support/musterd.h"
#include "tests/support/temporary_directory.h"

using namespace muster;
using namespace muster::test;

namespace {

constexpr std::string_view kOfA = "the secret of job a, 1";
constexpr std::string_view kOfB = "the secret of job b, 2";
constexpr std::string_view kOfAll = "the secret of all others";

struct Files {
  TemporaryDirectory folder;
  std::string write(const std::string& name, std::string_view text, mode_t mode = 0600) const {
    const std::string path = folder.path() + "/" + name;
    std::ofstream(path) << text << "\n";
    REQUIRE(::chmod(path.c_str(), mode) == 0);
    return path;
  }
};

// One agent joins the job; the error where it may not.
std::optional<Error> join(std::uint16_t port, const std::string& job, std::string_view with) {
  boost::asio::io_context loop{1};
  net::ControlClientOptions options;
  options.host = "127.0.0.1";
  options.port = port;
  options.job = job;
  options.request.host = "n1";
  options.connect_timeout = 20s;
  if (!with.empty()) options.secret = secret(with);
  std::optional<Error> lost;
  bool done = false;
  net::ControlEvents events;
  events.assigned = [&](const auto&) { done = true; };
  events.lost = [&](const Error& error) {
    lost = error;
    done = true;
  };
  net::ControlClient client(loop, options, std::move(events));
  client.start();
  const Instant deadline = SteadyClock::now() + kTimeout;
  while (!done && SteadyClock::now() < deadline) loop.run_one_until(deadline);
  REQUIRE(done);
  if (!lost) client.send_until_over(control::Stop{0, "over"});
  return lost;
}

void require_refused(const std::optional<Error>& lost, const std::string& words) {
  REQUIRE(lost);
  REQUIRE(lost->code == ErrorCode::kMismatch);
  REQUIRE_THAT(lost->message, Catch::Contains(words));
  for (const std::string_view text : {kOfA, kOfB, kOfAll})
    REQUIRE(lost->message.find(text) == std::string::npos);
}

}  // namespace

TEST_CASE("who knows one job's secret joins that job and no other") {
  const Files files;
  Musterd daemon = Musterd::listening({"--job-secret", "a=" + files.write("1", kOfA), "--job-secret",
                                       "b=" + files.write("2", kOfB), "--log-level", "debug"});
  REQUIRE_FALSE(join(daemon.port(), "a", kOfA));
  REQUIRE_FALSE(join(daemon.port(), "b", kOfB));
  require_refused(join(daemon.port(), "b", kOfA), "has another secret, or none (job b has one of its own)");
  require_refused(join(daemon.port(), "a", ""), "asks for the job's secret");
  require_refused(join(daemon.port(), "c", kOfA), "job c has no secret here");
  require_refused(join(daemon.port(), "c", ""), "job c has no secret here");
  daemon.signal(SIGTERM);
  const auto [code, log] = daemon.finish();
  REQUIRE(code == 0);
  REQUIRE_THAT(log, Catch::Contains("(job b has one of its own)"));
  for (const std::string_view text : {kOfA, kOfB}) REQUIRE(log.find(text) == std::string::npos);
}

TEST_CASE("the daemon's own secret opens the jobs that have none, and no other") {
  const Files files;
  const std::string own = files.write("own", kOfAll);
  Musterd daemon = Musterd::listening({"--secret-file", own, "--job-secret", "a=" + files.write("1", kOfA)});
  REQUIRE_FALSE(join(daemon.port(), "c", kOfAll));
  REQUIRE_FALSE(join(daemon.port(), "a", kOfA));
  require_refused(join(daemon.port(), "a", kOfAll), "(job a has one of its own)");
  require_refused(join(daemon.port(), "c", kOfA), "has another secret, or none");
}

TEST_CASE("a folder of secrets is read again at SIGHUP, and one that cannot be read changes nothing") {
  const Files files;
  const std::string a = files.write("a", kOfA);
  files.write(".hidden", "no secret at all");
  Musterd daemon = Musterd::listening({"--secrets-dir", files.folder.path()});
  REQUIRE_FALSE(join(daemon.port(), "a", kOfA));
  require_refused(join(daemon.port(), "b", kOfB), "job b has no secret here");

  files.write("b", kOfB);
  REQUIRE(::unlink(a.c_str()) == 0);
  daemon.signal(SIGHUP);
  (void)daemon.wait_for_line("again; 1 jobs have a secret of their own");
  REQUIRE_FALSE(join(daemon.port(), "b", kOfB));
  require_refused(join(daemon.port(), "a", kOfA), "job a has no secret here");

  files.write("c", "short");
  daemon.signal(SIGHUP);
  REQUIRE_THAT(daemon.wait_for_line("are unchanged"),
               Catch::Contains("/c") && Catch::Contains("has 5 bytes"));
  REQUIRE_FALSE(join(daemon.port(), "b", kOfB));
  daemon.signal(SIGTERM);
  REQUIRE(daemon.finish().first == 0);
}

TEST_CASE("the daemon's own secret is read again at SIGHUP, which does not end a daemon that has none") {
  const Files files;
  const std::string own = files.write("own", kOfA);
  Musterd daemon = Musterd::listening({"--secret-file", own});
  REQUIRE_FALSE(join(daemon.port(), "job", kOfA));
  files.write("own", kOfB);
  daemon.signal(SIGHUP);
  (void)daemon.wait_for_line("SIGHUP: secrets and certificates were read again");
  require_refused(join(daemon.port(), "job", kOfA), "has another secret, or none");
  REQUIRE_FALSE(join(daemon.port(), "job", kOfB));

  Musterd open = Musterd::listening();
  open.signal(SIGHUP);
  (void)open.wait_for_line("SIGHUP: ");
  REQUIRE_FALSE(join(open.port(), "job", ""));
}

TEST_CASE("secrets of jobs that cannot be read, or are given twice, are refused at the start") {
  const Files files;
  const std::string good = files.write("good", kOfA);
  const auto refusal = [](std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {"--host", "127.0.0.1", "--port", "0"});
    auto [code, log] = Musterd(arguments).finish();
    REQUIRE(code == 2);
    return log;
  };
  REQUIRE_THAT(refusal({"--job-secret", "a"}), Catch::Contains("JOB=FILE"));
  REQUIRE_THAT(refusal({"--job-secret", "a="}), Catch::Contains("JOB=FILE"));
  REQUIRE_THAT(refusal({"--job-secret", "=" + good}), Catch::Contains("a job needs a name"));
  REQUIRE_THAT(refusal({"--job-secret", "a=" + good, "--job-secret", "a=" + good}),
               Catch::Contains("job a has two secrets"));
  REQUIRE_THAT(refusal({"--job-secret", "good=" + good, "--secrets-dir", files.folder.path()}),
               Catch::Contains("job good has two secrets"));
  REQUIRE_THAT(refusal({"--job-secret", "a=" + files.write("open", kOfA, 0644)}),
               Catch::Contains("chmod 600"));
  REQUIRE_THAT(refusal({"--secrets-dir", files.folder.path() + "/none"}), Catch::Contains("--secrets-dir"));
}

TEST_CASE("a proof for one job is worth nothing for another, though both have the same secret") {
  const Files files;
  const std::string same = files.write("same", kOfA);
  net::ControlServerOptions options;
  auto secrets = JobSecrets::read({.files = {"a=" + same, "b=" + same}, .directory = {}});
  REQUIRE_OK(secrets);
  options.job_secrets = std::make_shared<JobSecrets>(*std::move(secrets));
  Cluster cluster({}, options);
  Agent good(cluster, "n1", nodes(1), secret(kOfA), "b");
  good.start(cluster);
  cluster.wait([&] { return !good.assignments.empty(); });

  // It names job b, and proves that it knows the secret of job a.
  auth::ClientHandshake handshake(secret(kOfA), auth::random_nonce());
  const control::Preamble mine;
  control::Start start = handshake.start(mine, "a", "n2");
  start.job = "b";
  std::string hello;
  control::encode(mine, hello);
  control::encode(control::Message(start), hello);
  UniqueFd fd = connect_raw(cluster.server->port());
  cluster.wait([&] { return ::send(fd.get(), hello.data(), hello.size(), MSG_NOSIGNAL) > 0; });
  const auto heard = receive_messages(cluster, fd.get(), 1);
  REQUIRE(heard.size() == 1);
  handshake.preamble(mine);
  const auto proof = handshake.challenge(std::get<control::Challenge>(heard[0]));
  REQUIRE_OK(proof);
  std::string bytes;
  control::encode(control::Message(*proof), bytes);
  send_bytes(fd.get(), bytes);
  control::Decoder past_preamble;
  std::string preamble;
  control::encode(mine, preamble);
  std::string_view input(preamble);
  control::Message none;
  REQUIRE(past_preamble.next(input, none) == control::Decoder::Step::kPreamble);
  const auto refused = receive_messages(cluster, fd.get(), 2, past_preamble);
  REQUIRE(refused.size() == 1);
  REQUIRE(std::get<control::Refused>(refused[0]).reason == control::Refused::Reason::kAuthentication);
}
