// SPDX-License-Identifier: Apache-2.0
// The etcd client and the coordinator's state log against an etcd that answers when and what the test likes.
#include <boost/asio/io_context.hpp>

#include "rendezvous/etcd/client.h"
#include "rendezvous/etcd/coordinator.h"
#include "rendezvous/etcd/state_log.h"
#include "tests/support/catch.h"
#include "tests/support/fake_etcd.h"
#include "tests/support/loop_clock.h"
#include "tests/support/raw_client.h"

using namespace muster;
using namespace std::chrono_literals;

namespace {

constexpr etcd::Revision kTerm = 7;
constexpr std::string_view kGrantPath = "/v3/lease/grant";
const etcd::JobKeys kKeys("/muster", "job");

JobRecord state(int restarts_used) {
  JobRecord out;
  out.settings.max_restarts = 9;
  out.restarts_used = restarts_used;
  return out;
}

struct Site {
  [[nodiscard]] etcd::Settings settings() const {
    etcd::Settings out;
    out.members = {{"127.0.0.1", server.port()}};
    return out;
  }
  template <class Condition>
  void run_until(Condition condition) {
    const Instant deadline = SteadyClock::now() + 20s;
    while (!condition()) {
      REQUIRE(SteadyClock::now() < deadline);
      loop.restart();
      loop.run_one_until(deadline);
    }
  }
  // All that can happen without an answer, as far as it does not wait for the kernel.
  void settle() {
    for (int i = 0; i < 1000; ++i) {
      loop.restart();
      loop.poll();
    }
  }

  boost::asio::io_context loop{1};
  test::FakeEtcd server{loop};
  etcd::Client client{loop, settings()};
};

struct Term : Site, net::StateKeeper {
  Term() { log->attach(*this); }
  ~Term() override { log->close(); }
  void describe(const journal::LogSink&) const override {}
  void on_committed() override { ++num_committed; }

  etcd::JobStateLog::Events events() {
    etcd::JobStateLog::Events out;
    out.failed = [this](const Error& error) {
      ++num_failed;
      failure = error.code;
    };
    out.term_over = [this] { ++num_over; };
    return out;
  }
  void record(const JobRecord& what) { log->record(JobChange(JobRecorded{"job", what})); }
  void wait_request() {
    run_until([&] { return server.requests.size() == 1; });
  }
  void answer() {
    const test::FakeEtcd::Request& request = server.requests.at(0);
    if (request.path == kGrantPath)
      return server.answer(0, R"({"ID":")" + std::to_string(++last_lease) + R"(","TTL":"3600"})");
    REQUIRE(request.path == "/v3/kv/txn");
    stored = request.body;
    const bool erased = stored.find("request_delete_range") != std::string::npos;
    replaced = std::exchange(state_revision, erased ? 0 : ++revision);
    server.answer(0, R"({"header":{"revision":")" + std::to_string(revision) +
                         R"("},"succeeded":true,"responses":[]})");
  }
  void answer_until_clean() {
    while (log->dirty()) {
      run_until([&] { return !server.requests.empty() || !log->dirty(); });
      if (!server.requests.empty()) answer();
    }
  }
  // What etcd was told last is this state.
  [[nodiscard]] bool has(const std::optional<JobRecord>& what) const {
    return etcd::commit({what ? etcd::put(kKeys.state, etcd::encode_state(*what), last_lease)
                              : etcd::erase(kKeys.state)},
                        {{kKeys.coordinator, kTerm}, {kKeys.state, replaced}})
               .body == stored;
  }

  int num_committed = 0;
  int num_failed = 0;
  std::optional<ErrorCode> failure;
  int num_over = 0;
  std::string stored;
  etcd::LeaseId last_lease = 0;
  etcd::Revision revision = kTerm;
  etcd::Revision state_revision = 0;
  etcd::Revision replaced = 0;  // by what was stored
  std::shared_ptr<etcd::JobStateLog> log =
      std::make_shared<etcd::JobStateLog>(loop, client, kKeys, kTerm, 0, "job", state(0), events());
};

Result<Millis> keep_alive(Site& site, const std::string& bytes, bool hang_up = true) {
  std::optional<Result<Millis>> out;
  site.client.ask(etcd::keep_alive(1), [&](Result<Millis> left) { out = std::move(left); });
  site.run_until([&] { return !site.server.requests.empty(); });
  site.server.answer_raw(0, bytes, hang_up);
  site.run_until([&] { return out.has_value(); });
  return *out;
}

std::string with_length(std::string_view body) {
  return "HTTP/1.1 200 OK\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" + std::string(body);
}

constexpr std::string_view kAsksWho =
    "HTTP/1.1 401 x\r\nContent-Length: 44\r\n\r\n"
    R"({"message":"etcdserver: user name is empty"})";
std::string refusal(std::string_view why) {
  return "HTTP/1.1 400 x\r\n" + with_length(R"({"message":"etcdserver: )" + std::string(why) + R"("})")
                                    .substr(std::string_view("HTTP/1.1 200 OK\r\n").size());
}
const std::string kTooLarge = refusal("request is too large");
const std::string kFull = refusal("mvcc: database space exceeded");

std::string base64(std::string_view bytes) {
  const std::string operation = etcd::put("", bytes, 0);
  const std::string_view before = "\"value\":\"";
  const auto at = operation.find(before) + before.size();
  return operation.substr(at, operation.find('"', at) - at);
}

// One agent of a job, and an etcd that answers it by a rule.
struct Agent : Site {
  Agent() {
    options.etcd = settings();
    options.job = "job";
    options.self.addresses = {"127.0.0.1"};
    options.own_address = "127.0.0.1";
    options.listen = [] { return net::open_listener("127.0.0.1", 0); };
    options.sort_addresses = [](const std::vector<std::string>& addresses) { return addresses; };
    options.connect_timeout = options.reconnect_timeout = 8s;
  }
  void start() {
    net::CoordinatorHost::Callbacks callbacks;
    callbacks.located = [this](const Result<void>& known) {
      located = known.has_value();
      if (!known) error = known.error();
    };
    callbacks.lost = [this](const Error& why) { error = why; };
    coordinator = etcd::make_coordinator(loop, options, log);
    coordinator->start(std::move(callbacks));
  }
  // As an etcd does that has nothing but this agent's keys, and `state`.
  std::string answer_of(const test::FakeEtcd::Request& request) {
    const auto asks = [&](std::string_view what) { return request.body.find(what) != std::string::npos; };
    if (request.path == etcd::kWatchPath) return {};
    if (request.path == kGrantPath) return with_length(R"({"ID":"5","TTL":"10"})");
    if (request.path == "/v3/lease/keepalive") return with_length(R"({"result":{"TTL":"10"}})");
    if (request.path == "/v3/lease/revoke") return with_length("{}");
    const std::string header = R"({"header":{"revision":"7"},"succeeded":true,"responses":[)";
    const std::string nobody = R"({"response_range":{}})";
    if (!asks("request_range")) return with_length(header + "]}");
    if (asks("\"compare\":[{")) return with_length(header + state + "," + nobody + "]}");  // it is elected
    if (!elected.empty()) return with_length(header + elected + "," + nobody + "," + nobody + "]}");
    return with_length(header + nobody + "]}");
  }
  // Whatever is asked is answered, and as long as nothing is, time goes on.
  template <class Condition>
  void go_on_until(Condition condition) {
    const Instant deadline = SteadyClock::now() + 600s;
    while (!condition()) {
      REQUIRE(SteadyClock::now() < deadline);
      bool answered = false;
      for (std::size_t i = 0; i < server.requests.size() && !answered; ++i) {
        const std::string bytes = rule(server.requests[i]);
        answered = !bytes.empty();
        if (answered) server.answer_raw(i, bytes, false);
      }
      if (!answered && moves_time) test::advance_clock(loop, 100ms);
      loop.restart();
      loop.run_for(1ms);
    }
  }
  void serve() {
    go_on_until([&] { return located || error; });
    REQUIRE(located);
    REQUIRE(coordinator->is_hosting());
  }
  // What its watch waits for has happened.
  void end_watch() {
    const auto is_watch = [](const auto& each) { return each.path == etcd::kWatchPath; };
    go_on_until([&] { return std::any_of(server.requests.begin(), server.requests.end(), is_watch); });
    const auto at = std::find_if(server.requests.begin(), server.requests.end(), is_watch);
    server.answer_raw(static_cast<std::size_t>(at - server.requests.begin()), "", true);
  }

  const Log log{"test", LogLevel::kOff};
  etcd::Options options;
  std::string state = R"({"response_range":{}})";
  std::string elected;
  bool moves_time = false;
  std::function<std::string(const test::FakeEtcd::Request&)> rule = [this](const auto& request) {
    return answer_of(request);
  };
  bool located = false;
  std::optional<Error> error;
  std::unique_ptr<net::CoordinatorHost> coordinator;
};

}  // namespace

TEST_CASE("an etcd that grants a lease and then asks who is there is refused at once") {
  Agent agent;
  agent.rule = [&](const auto& request) {
    return request.path == kGrantPath ? agent.answer_of(request) : std::string(kAsksWho);
  };
  agent.start();
  agent.go_on_until([&] { return agent.error.has_value(); });
  REQUIRE(agent.error->code == ErrorCode::kMismatch);
  REQUIRE(agent.error->message.find("does not log in") != std::string::npos);
}

TEST_CASE("an etcd that renews the lease and refuses the rest is given up") {
  Agent agent;
  agent.start();
  agent.serve();
  agent.rule = [&](const auto& request) {
    return request.path == "/v3/kv/txn" ? std::string(kAsksWho) : agent.answer_of(request);
  };
  agent.end_watch();
  agent.moves_time = true;
  agent.go_on_until([&] { return agent.error.has_value(); });
  REQUIRE(agent.error->code == ErrorCode::kTimeout);
  REQUIRE(agent.error->message.find("does not log in") != std::string::npos);
}

TEST_CASE("a state that etcd will never take ends the job") {
  Agent agent;
  agent.state = R"({"response_range":{"kvs":[{"key":"","mod_revision":"3","value":")" +
                base64(etcd::encode_state(state(1))) + R"("}]}})";
  agent.rule = [&](const auto& request) {
    const bool writes =
        request.path == "/v3/kv/txn" && request.body.find("request_range") == std::string::npos;
    return writes ? kTooLarge : agent.answer_of(request);
  };
  agent.start();
  agent.go_on_until([&] { return agent.error.has_value(); });
  REQUIRE(agent.error->code == ErrorCode::kInvalidArgument);
  REQUIRE_FALSE(agent.coordinator->is_hosting());
}

TEST_CASE("a full etcd ends no job, and gets the record when it has room again") {
  Agent agent;
  agent.state = R"({"response_range":{"kvs":[{"key":"","mod_revision":"3","value":")" +
                base64(etcd::encode_state(state(1))) + R"("}]}})";
  int num_refused = 0;
  bool full = true;
  bool written = false;
  agent.rule = [&](const auto& request) {
    const bool writes =
        request.path == "/v3/kv/txn" && request.body.find("request_range") == std::string::npos;
    written = written || (writes && !full);
    num_refused += writes && full ? 1 : 0;
    return writes && full ? kFull : agent.answer_of(request);
  };
  agent.start();
  agent.serve();
  agent.moves_time = true;
  const Instant long_after = SteadyClock::now() + 10 * agent.options.reconnect_timeout;
  agent.go_on_until([&] { return agent.error || SteadyClock::now() > long_after; });
  REQUIRE_FALSE(agent.error);
  REQUIRE(agent.coordinator->is_hosting());
  REQUIRE(num_refused > 2);
  full = false;
  agent.go_on_until([&] { return written; });
  REQUIRE_FALSE(agent.error);
}

TEST_CASE("who waits for its agents to go leaves when it runs the coordinator no more") {
  Agent agent;
  agent.start();
  agent.serve();
  test::RawClient connected(agent.coordinator->port());
  std::string preamble;
  control::encode(control::Preamble{}, preamble);
  connected.send(preamble);
  bool drained = false;
  // The coordinator answers it when it counts it.
  char byte = 0;
  agent.go_on_until([&] { return ::recv(connected.fd(), &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 1; });
  agent.coordinator->drain(1h, [&] { drained = true; });
  agent.settle();
  REQUIRE_FALSE(drained);
  agent.elected = R"({"response_range":{"kvs":[{"key":"","mod_revision":"9","lease":"6","value":")" +
                  base64(etcd::encode(etcd::Endpoint{"n1", {"127.0.0.1"}, 1})) + R"("}]}})";
  agent.end_watch();
  agent.go_on_until([&] { return drained; });
}

TEST_CASE("of several members all have to refuse, and what each says is told") {
  Site site;
  test::FakeEtcd other{site.loop};
  etcd::Settings settings = site.settings();
  settings.members.push_back({"127.0.0.1", other.port()});
  etcd::Client client(site.loop, settings);
  for (const bool both : {false, true}) {
    std::optional<Error> error;
    client.ask(etcd::keep_alive(1), [&](const Result<Millis>& left) { error = left.error(); });
    while (!error) {
      site.run_until([&] { return !site.server.requests.empty() || !other.requests.empty() || error; });
      if (!site.server.requests.empty()) site.server.answer_raw(0, std::string(kAsksWho), true);
      if (!other.requests.empty()) other.answer_raw(0, both ? std::string(kAsksWho) : "", true);
    }
    CAPTURE(error->message);
    REQUIRE(error->code == (both ? ErrorCode::kMismatch : ErrorCode::kPeerGone));
    REQUIRE(error->message.find("does not log in") != std::string::npos);
    REQUIRE(error->message.find(fmt::format(":{}", other.port())) != std::string::npos);
  }
}

TEST_CASE("a record's lease is renewed without a write, and a lease that is over is replaced") {
  Term t;
  t.record(state(1));
  t.answer_until_clean();
  t.log->keep_alive();
  t.settle();
  REQUIRE(t.server.requests.empty());
  test::advance_clock(t.loop, 11min);
  t.log->keep_alive();
  t.wait_request();
  REQUIRE(t.server.requests[0].path == "/v3/lease/keepalive");
  REQUIRE_FALSE(t.log->stalled());
  t.server.answer(0, R"({"result":{"TTL":"3600"}})");
  t.settle();
  REQUIRE_FALSE(t.log->dirty());
  test::advance_clock(t.loop, 11min);
  t.log->keep_alive();
  t.wait_request();
  t.server.answer(0, R"({"result":{}})");
  t.wait_request();
  REQUIRE(t.server.requests[0].path == kGrantPath);
  t.answer_until_clean();
  REQUIRE(t.has(state(1)));
}

TEST_CASE(
    "what is recorded is sent on only when etcd has it, and what changes meanwhile goes with the next "
    "write") {
  Term t;
  REQUIRE(t.log->recovered().jobs.at("job") == state(0));
  REQUIRE_FALSE(t.log->dirty());
  t.log->record(JobChange(JobRecorded{"another", state(5)}));
  REQUIRE_FALSE(t.log->dirty());
  t.record(state(1));
  REQUIRE(t.log->dirty());
  t.wait_request();  // for a lease
  t.answer();
  t.wait_request();
  REQUIRE(t.log->stalled());
  t.record(state(2));
  t.record(state(3));
  t.settle();
  REQUIRE(t.server.requests.size() == 1);
  bool idle = false;
  t.log->when_idle([&] { idle = true; });
  t.answer();
  t.wait_request();
  REQUIRE(t.has(state(1)));
  REQUIRE(t.num_committed == 0);
  REQUIRE_FALSE(idle);
  t.answer_until_clean();
  REQUIRE(t.has(state(3)));
  REQUIRE(t.num_committed == 1);
  REQUIRE(idle);
}

TEST_CASE("a state that is gone from etcd is written again, and one that was removed is not") {
  Term t;
  t.record(state(1));
  t.answer_until_clean();
  t.log->rewrite();
  t.wait_request();
  REQUIRE(t.server.requests[0].path == kGrantPath);
  t.record(state(2));
  t.answer_until_clean();
  REQUIRE(t.has(state(2)));
  t.log->remove();
  t.answer_until_clean();
  REQUIRE(t.has({}));
  t.log->rewrite();
  t.settle();
  REQUIRE(t.server.requests.empty());
}

TEST_CASE("a write that fails is repeated, one that another coordinator has overtaken is not") {
  Term t;
  t.record(state(1));
  t.wait_request();
  t.answer();
  t.wait_request();
  t.server.answer_raw(0, "HTTP/1.1 503 x\r\nContent-Length: 0\r\n\r\n", false);
  t.wait_request();
  REQUIRE(t.num_failed == 1);
  t.server.answer(0, R"({"header":{"revision":"9"},"responses":[]})");
  t.wait_request();  // who serves now
  t.server.answer(0, R"({"header":{"revision":"9"},"succeeded":true,"responses":[{"response_range":{"kvs":[)"
                     R"({"key":"Yw==","mod_revision":"8"}]}},{"response_range":{}}]})");
  t.run_until([&] { return t.num_over == 1; });
  t.settle();
  REQUIRE(t.server.requests.empty());
  REQUIRE(t.log->dirty());
  REQUIRE(t.num_committed == 0);
}

TEST_CASE("a write whose answer was lost is found, and what comes of it later changes nothing") {
  Term t;
  t.record(state(1));
  t.wait_request();
  t.answer();
  t.wait_request();
  t.server.answer_raw(0, "HTTP/1.1 503 x\r\nContent-Length: 0\r\n\r\n",
                      false);  // etcd has made it: revision 8
  t.record(state(2));
  t.wait_request();
  t.server.answer(0, R"({"header":{"revision":"8"},"responses":[]})");
  t.wait_request();
  t.server.answer(0, R"({"header":{"revision":"8"},"succeeded":true,"responses":[{"response_range":{"kvs":[)"
                     R"({"key":"Yw==","mod_revision":"7"}]}},{"response_range":{"kvs":[)"
                     R"({"key":"cw==","mod_revision":"8"}]}}]})");
  t.state_revision = t.revision = 8;
  t.wait_request();
  t.answer();
  REQUIRE(t.replaced == 8);
  t.answer_until_clean();
  REQUIRE(t.has(state(2)));
  REQUIRE(t.num_over == 0);
  REQUIRE(t.num_committed == 1);
}

TEST_CASE("what etcd does not take is told, and nothing of a term that is over") {
  Term t;
  t.record(state(1));
  t.wait_request();
  t.answer();
  t.wait_request();
  t.server.answer_raw(0,
                      "HTTP/1.0 400 x\r\n\r\n"
                      R"({"message":"etcdserver: request is too large"})",
                      true);
  t.run_until([&] { return t.failure == ErrorCode::kInvalidArgument; });

  Term closed;
  closed.record(state(1));
  closed.wait_request();
  closed.log->close();
  closed.answer();
  closed.settle();
  REQUIRE(closed.log->dirty());
  REQUIRE(closed.num_committed == 0);
  REQUIRE(closed.server.requests.empty());
}

TEST_CASE("a response is taken in chunks, to its end or to the connection's, and within limits") {
  const std::string body = R"({"result":{"TTL":"10"}})";
  Site site;
  REQUIRE(keep_alive(site, with_length(body), false).value() == 10s);
  // The same connection.
  REQUIRE(keep_alive(site,
                     "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5;x=y\r\n" + body.substr(0, 5) +
                         "\r\n12\r\n" + body.substr(5) + "\r\n0\r\nGrpc-Trailer: a\r\n\r\n",
                     false)
              .value() == 10s);
  REQUIRE(site.server.num_connections == 1);
  REQUIRE(keep_alive(site, "HTTP/1.0 200 OK\r\n\r\n" + body).value() == 10s);
  REQUIRE(keep_alive(site, with_length(body).substr(0, 50)).error().code == ErrorCode::kPeerGone);
  REQUIRE(keep_alive(site, "SSH-2.0-OpenSSH_9.2\r\n").error().code == ErrorCode::kProtocol);
  std::string many_fields;
  for (int i = 0; i < 20000; ++i) many_fields += "X: abc\r\n";
  for (const std::string& endless :
       {"HTTP/1.1 200 OK\r\nX: " + std::string(40000, 'x'), "HTTP/1.1 200 OK\r\n" + many_fields,
        std::string("HTTP/1.1 200 OK\r\nContent-Length: 99999999\r\n\r\n"),
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9999999\r\n" + std::string(20 << 20, 'x')}) {
    const auto out = keep_alive(site, endless);
    REQUIRE_FALSE(out);
    REQUIRE(out.error().code == ErrorCode::kProtocol);
  }
}

TEST_CASE("a connection that was closed while it was not used is replaced") {
  Site site;
  const std::string bytes = with_length(R"({"result":{"TTL":"10"}})");
  REQUIRE(keep_alive(site, bytes, true).value() == 10s);
  REQUIRE(keep_alive(site, bytes, true).value() == 10s);
  REQUIRE(site.server.num_connections == 2);
}

TEST_CASE("a watch tells each update as it comes, and why it ends") {
  Site site;
  int num_updates = 0;
  std::optional<Error> ended;
  etcd::Client::Watch watch;
  watch.key = "k";
  watch.on_update = [&](const etcd::WatchUpdate&) { ++num_updates; };
  watch.on_end = [&](const Error& error) { ended = error; };
  site.client.watch(watch);
  site.run_until([&] { return !site.server.requests.empty(); });
  REQUIRE(site.server.requests[0].path == etcd::kWatchPath);
  const std::string update = R"({"result":{"created":true,"events":[]}})"
                             "\n";
  const std::string chunk = "28\r\n" + update + "\r\n";
  REQUIRE(update.size() == 0x28);
  site.server.send_raw(0, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk);
  site.run_until([&] { return num_updates == 1 || ended; });
  CAPTURE(ended ? ended->message : "");
  REQUIRE_FALSE(ended);
  site.server.send_raw(0, chunk + chunk);
  site.run_until([&] { return num_updates == 3; });
  site.server.answer_raw(0, "", true);
  site.run_until([&] { return ended.has_value(); });
  REQUIRE(ended->code == ErrorCode::kPeerGone);

  ended.reset();
  site.client.watch(watch);
  site.run_until([&] { return !site.server.requests.empty(); });
  site.client.stop_watch();
  site.settle();
  REQUIRE_FALSE(ended);
}
