// SPDX-License-Identifier: Apache-2.0
// should_stop() in real processes that met through a real store.
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <set>
#include <unistd.h>

#include <muster/preemption.h>
#include <muster/store_server.h>

#include "rendezvous/base/clock.h"
#include "rendezvous/base/unique_fd.h"
#include "tests/support/catch.h"
#include "tests/support/held_port.h"
#include "tests/support/ranks.h"

using namespace muster;
using namespace muster::testing;
using Catch::Matchers::Contains;

namespace {

constexpr std::chrono::seconds kTimeout{40};

/// Every rank meets the others at a store of its own world and runs `body`; the texts that they return. The
/// store's process is one of those that are forked: one that forks must have no other thread.
template <class Body>
std::vector<std::string> run(int world, Body body) {
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  const UniqueFd reader(ends[0]), writer(ends[1]);
  auto outcomes = run_ranks({.world_size = world + 1, .stuck_rank = world}, [&](int rank) -> std::string {
    std::uint16_t port = 0;
    if (rank == world) {
      auto server = StoreServer::start({.host = "127.0.0.1"});
      if (!server) return server.error().message;
      port = (*server)->port();
      for (int reads = 0; reads < world; ++reads) (void)!::write(writer.get(), &port, sizeof port);
      while (true) ::pause();
    }
    if (::read(reader.get(), &port, sizeof port) != sizeof port) return "no port of the store";
    for (const char* name : {"LOCAL_RANK", "LOCAL_WORLD_SIZE", "MUSTER_HOST_ID", "MUSTER_ADDRESS"})
      ::unsetenv(name);
    ::setenv("RANK", std::to_string(rank).c_str(), 1);
    ::setenv("WORLD_SIZE", std::to_string(world).c_str(), 1);
    ::setenv("MASTER_ADDR", "127.0.0.1", 1);
    ::setenv("MASTER_PORT", std::to_string(port).c_str(), 1);
    ::setenv("TORCHELASTIC_USE_AGENT_STORE", "True", 1);
    auto context = init({.timeout = kTimeout});
    if (!context) return context.error().message;
    return body(*context);
  });
  outcomes.resize(static_cast<std::size_t>(world));
  std::vector<std::string> texts;
  for (const RankOutcome& outcome : outcomes) {
    INFO(outcome.text);
    REQUIRE(outcome.ended);
    texts.push_back(outcome.text);
  }
  return texts;
}

/// Calls should_stop() until it says true; the number of that call, or what went wrong.
template <class EachCall>
std::string call_that_stops(Preemption& preemption, EachCall each_call) {
  const Instant deadline = SteadyClock::now() + kTimeout;
  for (int call = 1; SteadyClock::now() < deadline; ++call) {
    each_call(call);
    const auto stop = preemption.should_stop();
    if (!stop) return stop.error().message;
    if (*stop) return std::to_string(call);
  }
  return "never told to stop";
}

std::set<std::string> distinct(const std::vector<std::string>& texts) {
  return {texts.begin(), texts.end()};
}

}  // namespace

TEST_CASE("a signal to one rank stops all of them after the same step, time after time") {
  const auto texts = run(4, [](const Context& context) {
    std::string calls;
    for (const int signal : {SIGTERM, SIGUSR1}) {
      auto preemption = Preemption::create(context);
      if (!preemption) return preemption.error().message;
      std::string failure;
      calls += " " + call_that_stops(**preemption, [&](int step) {
                 if (const auto done = context.group->barrier(); !done) failure = done.error().message;
                 if (step == 100 && context.rank == 2) ::raise(signal);
               });
      if (!failure.empty()) return failure;
      if ((*preemption)->signal() != (context.rank == 2 ? signal : 0)) return std::string("another signal");
      if (const auto again = (*preemption)->should_stop(); !again || !*again) return std::string("no more");
    }
    return calls;
  });
  INFO(texts.front());
  REQUIRE(distinct(texts).size() == 1);
  int first = 0, second = 0;
  REQUIRE(std::sscanf(texts.front().c_str(), "%d %d", &first, &second) == 2);
  REQUIRE(first > 100);
  REQUIRE(second > 100);
}

TEST_CASE("ranks that are far apart stop at the same call, whoever of them asks, and all at once too") {
  for (const int who : {0, 1, -1}) {
    const auto texts = run(3, [&](const Context& context) {
      auto preemption = Preemption::create(context);
      if (!preemption) return preemption.error().message;
      // Nothing keeps the ranks together: rank 0 is the first by far.
      const int begin = context.rank == 0 ? 100'000 : context.rank;
      if (context.rank != 0) {
        const auto sent = context.store->get("rank 0 is ahead");
        if (!sent) return sent.error().message;
      }
      return call_that_stops(**preemption, [&](int call) {
        if (context.rank == 0 && call == begin) (void)context.store->set("rank 0 is ahead", "");
        if (call == begin && (who < 0 || who == context.rank)) (*preemption)->request();
      });
    });
    INFO(who << ": " << texts.front());
    REQUIRE(distinct(texts).size() == 1);
    REQUIRE(std::atoi(texts.front().c_str()) >= 100'000);
  }
}

TEST_CASE("ranks that take their last step while one asks all end without being told to stop") {
  const auto texts = run(3, [](const Context& context) -> std::string {
    auto preemption = Preemption::create(context);
    if (!preemption) return preemption.error().message;
    std::string answers;
    for (int call = 1; call <= 50; ++call) {
      if (context.rank == 2 && call == 50) (*preemption)->request();
      const auto stop = (*preemption)->should_stop();
      if (!stop) return stop.error().message;
      answers += *stop ? '1' : '0';
    }
    preemption->reset();
    if (const auto all = context.group->barrier(); !all) return all.error().message;
    return answers;
  });
  REQUIRE(texts == std::vector<std::string>(3, std::string(50, '0')));
}

TEST_CASE("signals do what they did before once the object is gone") {
  const auto texts = run(2, [](const Context& context) -> std::string {
    struct sigaction ignore {};
    ignore.sa_handler = SIG_IGN;
    ::sigaction(SIGUSR1, &ignore, nullptr);
    struct sigaction before {};
    ::sigaction(SIGTERM, nullptr, &before);
    {
      auto preemption = Preemption::create(context);
      if (!preemption) return preemption.error().message;
      const auto stop = (*preemption)->should_stop();
      if (!stop || *stop) return "told to stop";
      if (const auto all = context.group->barrier(); !all) return all.error().message;
    }
    struct sigaction term {
    }, usr1{};
    ::sigaction(SIGTERM, nullptr, &term);
    ::sigaction(SIGUSR1, nullptr, &usr1);
    return term.sa_handler == before.sa_handler && usr1.sa_handler == SIG_IGN ? "" : "other handlers";
  });
  REQUIRE(texts == std::vector<std::string>(2));
}

TEST_CASE("a signal that comes after the stop, when the object is gone, does not kill the rank") {
  const auto texts = run(2, [](const Context& context) -> std::string {
    struct sigaction ignore {};
    ignore.sa_handler = SIG_IGN;
    ::sigaction(SIGUSR1, &ignore, nullptr);
    (void)std::signal(SIGTERM, SIG_DFL);  // not the test framework's
    {
      auto preemption = Preemption::create(context);
      if (!preemption) return preemption.error().message;
      if (context.rank == 1) (*preemption)->request();
      if (const auto call = call_that_stops(**preemption, [](int) {}); call.size() > 9) return call;
    }
    ::raise(SIGTERM);
    struct sigaction usr1 {};
    ::sigaction(SIGUSR1, nullptr, &usr1);
    return usr1.sa_handler == SIG_IGN ? "alive" : "another handler";
  });
  REQUIRE(texts == std::vector<std::string>(2, "alive"));
}

TEST_CASE("a rank that never asks is named when the others wait for its answer") {
  const auto texts = run(3, [](const Context& context) -> std::string {
    std::string text;
    if (context.rank != 1) {
      auto preemption = Preemption::create(context, {.timeout = std::chrono::seconds(3)});
      if (!preemption) return preemption.error().message;
      if (context.rank == 0) (*preemption)->request();
      text = call_that_stops(**preemption, [](int) {});
      (void)context.store->set("heard " + std::to_string(context.rank), "");
    }
    // Until both have heard: rank 1 is there, and does not take part.
    for (const char* key : {"heard 0", "heard 2"})
      if (const auto heard = context.store->get(key); !heard) return heard.error().message;
    return text;
  });
  REQUIRE_THAT(texts[0], Contains("preemption: no answer within 3 s from rank 1 (of 3);"));
  REQUIRE(texts[2] == texts[0]);
}

TEST_CASE("without the store nobody can ask, and what nobody asks for is answered with false") {
  // Rank 0 has the store in itself.
  const test::HeldPort place;
  const std::string method = "tcp://127.0.0.1:" + std::to_string(place.number()) + "?world_size=2&rank=";
  const auto ended = run_ranks({.world_size = 2}, [&](int rank) -> std::string {
    auto context = init({.init_method = method + std::to_string(rank), .timeout = kTimeout});
    if (!context) return context.error().message;
    auto preemption = Preemption::create(*context);
    if (!preemption) return preemption.error().message;
    if (rank == 0) {
      if (const auto all = context->group->barrier(); !all) return all.error().message;
      ::_exit(0);
    }
    if (const auto all = context->group->barrier(); !all) return all.error().message;
    const auto gone = context->store->get("nothing", kTimeout);
    if (gone) return "a value of nothing";
    for (int call = 0; call < 1000; ++call)
      if (const auto stop = (*preemption)->should_stop(); !stop || *stop) return "told to stop";
    (*preemption)->request();
    const auto stop = (*preemption)->should_stop();
    return stop ? "it could ask" : stop.error().message;
  });
  REQUIRE_THAT(ended[1].text, Contains("preemption: "));
}

TEST_CASE("alone, a rank stops at the step after the signal") {
  const auto outcomes = run_ranks({.world_size = 1}, [](int) -> std::string {
    Context context;
    context.group = make_single_group();
    auto preemption = Preemption::create(context, {.signals = {SIGUSR2}});
    if (!preemption) return preemption.error().message;
    const auto before = (*preemption)->should_stop();
    ::raise(SIGUSR2);
    const auto after = (*preemption)->should_stop();
    return before && !*before && after && *after && (*preemption)->signal() == SIGUSR2 ? "" : "wrong";
  });
  REQUIRE(outcomes[0].text.empty());
}

TEST_CASE("a signal that cannot be handled is an error that names it") {
  Context context;
  context.group = make_single_group();
  const auto preemption = Preemption::create(context, {.signals = {SIGKILL}});
  REQUIRE_FALSE(preemption);
  REQUIRE_THAT(preemption.error().message, Contains("preemption: handle signal 9"));
}
