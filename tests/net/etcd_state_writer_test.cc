// SPDX-License-Identifier: Apache-2.0
// The coordinator's state on its way to an etcd that answers when it likes.
#include "launcher/join/etcd_state_writer.h"

#include <exception>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>

#include "tests/support/catch.h"
#include "tests/support/fake_etcd.h"

using namespace muster;
using namespace std::chrono_literals;
using launcher::EtcdStateWriter;

namespace {

constexpr etcd::Revision kTerm = 7;
const etcd::JobKeys kKeys("/muster", "job");

JobRecord state(int restarts_used) {
  JobRecord out;
  out.settings.max_restarts = 9;
  out.restarts_used = restarts_used;
  return out;
}

struct Writing {
  Writing() { writer->begin(kTerm); }
  ~Writing() {
    writer->close();
    client.close();
  }

  static net::EtcdClientOptions options(std::uint16_t port) {
    net::EtcdClientOptions out;
    out.members = {{"127.0.0.1", port}};
    return out;
  }
  EtcdStateWriter::Callbacks callbacks() {
    EtcdStateWriter::Callbacks out;
    out.failed = [this](const Error&) { ++num_failed; };
    out.overtaken = [this] { ++num_overtaken; };
    return out;
  }

  void spawn(boost::asio::awaitable<void> task) {
    boost::asio::co_spawn(loop, std::move(task),
                          [](const std::exception_ptr& exception) { REQUIRE_FALSE(exception); });
  }
  void write(const EtcdStateWriter::State& what, int number) {
    spawn(writer->write(what, [this, number] { written.push_back(number); }));
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
  // Everything is answered until the states of these numbers are written and nothing more is asked, the
  // newest request first.
  void answer_until(const std::vector<int>& numbers) {
    while (true) {
      settle();
      if (etcd.requests.empty() && written == numbers) return;
      run_until([&] { return !etcd.requests.empty() || written == numbers; });
      if (!etcd.requests.empty()) answer(etcd.requests.size() - 1);
    }
  }
  void answer(std::size_t index) {
    const test::FakeEtcd::Request& request = etcd.requests.at(index);
    if (request.path == etcd::kGrantPath)
      return etcd.answer(index, R"({"ID":")" + std::to_string(++last_lease) + R"(","TTL":"3600"})");
    REQUIRE(request.path == etcd::kTxnPath);
    stored = request.body;
    etcd.answer(index, R"({"header":{"revision":"9"},"succeeded":true,"responses":[]})");
  }
  // What etcd was told last is this state.
  [[nodiscard]] bool has(const EtcdStateWriter::State& what) const {
    for (etcd::LeaseId lease = 0; lease <= last_lease; ++lease) {
      etcd::Txn txn;
      txn.fence = {kKeys.coordinator, kTerm};
      txn.then.push_back(what ? etcd::put(kKeys.state, etcd::encode_state(*what), lease)
                              : etcd::erase(kKeys.state));
      if (etcd::txn_request(txn) == stored) return true;
    }
    return false;
  }

  boost::asio::io_context loop{1};
  test::FakeEtcd etcd{loop};
  net::EtcdClient client{loop, options(etcd.port())};
  int num_failed = 0;
  int num_overtaken = 0;
  std::vector<int> written;
  std::string stored;
  etcd::LeaseId last_lease = 0;
  std::shared_ptr<EtcdStateWriter> writer =
      std::make_shared<EtcdStateWriter>(loop, client, kKeys, callbacks());
};

}  // namespace

TEST_CASE("a state that is gone from etcd is written again, and never over a newer one") {
  Writing t;
  t.write(state(1), 1);
  t.answer_until({1});
  REQUIRE(t.has(state(1)));

  t.spawn(t.writer->restore());
  t.run_until([&] { return t.etcd.requests.size() == 1; });  // for a lease
  t.write(state(2), 2);
  t.settle();
  t.answer_until({1, 2});
  REQUIRE(t.has(state(2)));
}

TEST_CASE("of states that come while one is being written only the last is written after it") {
  Writing t;
  t.write(state(1), 1);
  t.run_until([&] { return t.etcd.requests.size() == 1; });
  t.answer(0);
  t.run_until([&] { return t.etcd.requests.size() == 1; });
  t.write(state(2), 2);
  t.write(state(3), 3);
  t.write({}, 4);
  t.settle();
  REQUIRE(t.etcd.requests.size() == 1);
  REQUIRE(t.written.empty());
  bool idle = false;
  t.writer->when_idle([&] { idle = true; });
  t.answer(0);
  t.run_until([&] { return t.etcd.requests.size() == 1; });
  REQUIRE(t.has(state(1)));
  REQUIRE_FALSE(idle);
  t.answer(0);
  t.run_until([&] { return idle; });
  REQUIRE(t.has({}));
  REQUIRE(t.written == std::vector{1, 2, 3, 4});
  // Nothing is kept, so there is nothing to write again.
  t.spawn(t.writer->restore());
  t.settle();
  REQUIRE(t.etcd.requests.empty());
}

TEST_CASE("what a former term was writing is neither told nor written again in the next one") {
  Writing t;
  t.write(state(1), 1);
  t.run_until([&] { return t.etcd.requests.size() == 1; });
  t.writer->end();
  t.writer->begin(kTerm);
  t.write(state(2), 2);
  t.answer_until({2});
  REQUIRE(t.has(state(2)));
  REQUIRE(t.num_overtaken == 0);
}
