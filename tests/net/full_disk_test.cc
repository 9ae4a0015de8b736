// SPDX-License-Identifier: Apache-2.0
// Agents of a coordinator that cannot write its state for a while.
#include <algorithm>
#include <cerrno>

#include "tests/support/cluster.h"
#include "tests/support/held_log.h"
#include "tests/support/send_queue.h"

using namespace muster;
using namespace muster::test;

namespace {

// An agent that speaks byte by byte, and is not read for it.
class RawAgent {
 public:
  RawAgent(Cluster& cluster, std::uint64_t id, membership::Settings settings,
           std::optional<std::int64_t> resume = {})
      : fd_(connect_raw(cluster.server->port())) {
    join.request.id = {id, id};
    join.request.host = "n" + std::to_string(id);
    join.request.addresses = {"127.0.0.1"};
    join.request.master_port = 4711;
    join.settings = settings;
    join.resume = resume;
    control::encode(control::Preamble{}, out_.bytes());
    send(control::Start{"job", join.request.host, {}});
    send(control::Proof{});
    send(join);
  }

  void send(const control::Message& message) { control::encode(message, out_.bytes()); }
  // Sends what the socket takes, and hears what there is.
  void turn() {
    out_.send(fd_.get());
    char buffer[65536];
    ssize_t n = 0;
    while ((n = ::recv(fd_.get(), buffer, sizeof buffer, MSG_DONTWAIT)) > 0) {
      std::string_view input(buffer, static_cast<std::size_t>(n));
      control::Message message;
      while (true) {
        const auto step = decoder_.next(input, message);
        REQUIRE(step != control::Decoder::Step::kError);
        if (step == control::Decoder::Step::kNeedMore) break;
        if (step == control::Decoder::Step::kMessage) heard.push_back(message);
      }
    }
    if (n == 0) ended = true;
  }
  template <class T>
  [[nodiscard]] std::size_t count() const {
    return static_cast<std::size_t>(std::count_if(
        heard.begin(), heard.end(), [](const auto& each) { return std::holds_alternative<T>(each); }));
  }
  [[nodiscard]] std::size_t unsent() const { return out_.size(); }
  void close() { fd_.reset(); }
  void finish() { REQUIRE(::shutdown(fd_.get(), SHUT_WR) == 0); }
  // As where a network device forgets the connection.
  void reset() {
    const linger hard{1, 0};
    REQUIRE(::setsockopt(fd_.get(), SOL_SOCKET, SO_LINGER, &hard, sizeof hard) == 0);
    close();
  }

  control::Join join;
  std::vector<control::Message> heard;
  bool ended = false;

 private:
  UniqueFd fd_;
  control::Decoder decoder_;
  SendQueue out_;
};

struct FullDisk {
  static constexpr Millis kHeartbeats{50};
  explicit FullDisk(Millis heartbeat_timeout = 60s, net::ControlServerOptions options = {})
      : settings(nodes(2)), cluster({}, with_heartbeats(std::move(options)), [this](auto& loop) {
          return log = std::make_shared<HeldLog>(loop);
        }) {
    settings.heartbeat_timeout = heartbeat_timeout;
    settings.reconnect_grace = 60s;
    a = std::make_unique<RawAgent>(cluster, 1, settings);
    wait([&] { return stats().num_messages == 1; });  // which makes it the first node
    b = std::make_unique<RawAgent>(cluster, 2, settings);
    sync();
    wait([&] { return a->count<control::Assignment>() == 1 && b->count<control::Assignment>() == 1; });
  }
  ~FullDisk() { cluster.server->stop(); }

  static net::ControlServerOptions with_heartbeats(net::ControlServerOptions options) {
    options.heartbeat_interval = kHeartbeats;
    return options;
  }
  template <class Condition>
  void wait(Condition condition) {
    cluster.wait([&] {
      for (RawAgent* agent : {a.get(), b.get(), c.get()})
        if (agent != nullptr) agent->turn();
      return condition();
    });
  }
  /// Waits, with a heartbeat due in each turn of the loop.
  template <class Condition>
  void beat(Condition condition) {
    wait([&] {
      advance_clock(cluster.loop, kHeartbeats);
      return condition();
    });
  }
  void fill() {
    log->fill();
    wait([&] { return log->writing(); });
  }
  // The write under way ends, or the next one.
  void sync() {
    wait([&] { return log->writing(); });
    log->sync();
  }
  [[nodiscard]] const membership::Round& round() const {
    return *cluster.server->coordinator().jobs().find_round("job");
  }
  // More than the kernel keeps for a connection; the last two bytes are its number.
  static control::Report report(int number) {
    control::Report out;
    out.payload = std::string(100'000, 'x');
    out.payload.push_back(static_cast<char>(number / 100));
    out.payload.push_back(static_cast<char>(number % 100));
    return out;
  }
  [[nodiscard]] net::ControlServerStats stats() const { return cluster.server->coordinator().stats(); }

  membership::Settings settings;
  std::shared_ptr<HeldLog> log;
  Cluster cluster;
  std::unique_ptr<RawAgent> a;
  std::unique_ptr<RawAgent> b;
  std::unique_ptr<RawAgent> c;
};

constexpr int kReports = 300;

}  // namespace

TEST_CASE(
    "while the disk is full agents are not read, hear heartbeats and are not taken for dead, and then all "
    "that "
    "they said arrives") {
  FullDisk disk(1500ms);
  disk.fill();
  const std::uint64_t before = disk.stats().num_messages;
  for (int i = 0; i < kReports; ++i) disk.b->send(FullDisk::report(i));
  disk.a->send(FullDisk::report(kReports));
  // They say nothing for longer than the time-out: the heartbeats that they get are 50 ms apart.
  disk.beat(
      [&] { return disk.a->count<control::Heartbeat>() > 40 && disk.b->count<control::Heartbeat>() > 40; });
  REQUIRE(disk.b->unsent() > 0);
  REQUIRE(disk.stats().num_messages == before);
  REQUIRE(disk.stats().num_buffered_bytes == 0);

  disk.log->sync();
  // From now on they are read, and have to speak for themselves.
  disk.wait([&] {
    disk.a->send(control::Heartbeat{});
    disk.b->send(control::Heartbeat{});
    return disk.a->count<control::Report>() == kReports + 1;
  });
  REQUIRE(disk.a->count<control::GenerationOver>() == 0);
  int next = 0;
  for (const auto& each : disk.a->heard) {
    const auto* report = std::get_if<control::Report>(&each);
    if (report == nullptr || report->group_rank == 0) continue;
    const std::string_view number = std::string_view(report->payload).substr(100'000);
    REQUIRE(number[0] * 100 + number[1] == next++);
  }
  REQUIRE(next == kReports);
}

TEST_CASE("what an agent said before it went is taken up before its end, once it can be recorded") {
  FullDisk disk;
  disk.fill();
  disk.b->send(
      control::WorkerFailed{.generation = 0, .rank = 1, .exit_code = 7, .text = "the first failure"});
  disk.b->send(control::Leave{"it is done"});
  disk.wait([&] { return disk.b->unsent() == 0; });
  disk.b->finish();
  disk.wait([&] { return disk.a->count<control::Heartbeat>() > 2; });
  REQUIRE(disk.stats().num_open == 2);  // its end has not been looked at

  disk.log->sync();
  disk.wait([&] { return disk.log->writing(); });
  REQUIRE(disk.a->count<control::GenerationOver>() == 0);  // nothing is told that is not recorded
  disk.log->sync();
  disk.wait([&] { return disk.a->count<control::GenerationOver>() == 1; });
  const auto over = std::find_if(disk.a->heard.begin(), disk.a->heard.end(), [](const auto& each) {
    return std::holds_alternative<control::GenerationOver>(each);
  });
  REQUIRE(std::get<control::GenerationOver>(*over).cause.text == "the first failure");
}

TEST_CASE("a member that comes back while the disk is full hears heartbeats, and then has its place") {
  FullDisk disk;
  disk.fill();
  disk.b->reset();
  disk.b = std::make_unique<RawAgent>(disk.cluster, 2, disk.settings, 0);
  disk.beat([&] { return disk.b->count<control::Heartbeat>() > 20; });
  REQUIRE(disk.b->count<control::Refused>() == 0);
  disk.log->sync();
  disk.b->send(control::Heartbeat{});
  const auto heard = disk.b->count<control::Heartbeat>();
  disk.wait([&] { return disk.b->count<control::Heartbeat>() > heard && disk.stats().num_open == 2; });
  REQUIRE(disk.a->count<control::GenerationOver>() == 0);
  REQUIRE(disk.round().phase == membership::Phase::kRunning);
  REQUIRE(disk.round().nodes.at({2, 2}).connected);
}

TEST_CASE("an agent that comes new while the disk is full is refused with the reason, and then let in") {
  FullDisk disk;
  disk.fill();
  disk.c = std::make_unique<RawAgent>(disk.cluster, 3, disk.settings);
  disk.wait([&] { return disk.c->count<control::Refused>() == 1 && disk.c->ended; });
  const auto refused = std::get<control::Refused>(disk.c->heard.back());
  REQUIRE(refused.reason == control::Refused::Reason::kBusy);
  REQUIRE_THAT(refused.text, Catch::Contains("takes no new agents") && Catch::Contains("the disk is full"));
  REQUIRE(disk.round().nodes.size() == 2);
  disk.log->sync();
  disk.c = std::make_unique<RawAgent>(disk.cluster, 3, disk.settings);
  disk.wait([&] { return disk.c->count<control::Waiting>() == 1; });
}

TEST_CASE("an agent that comes new waits for a write, and is refused when that turns out to last") {
  FullDisk disk;
  disk.b->send(control::WorkerFailed{.generation = 0, .rank = 1, .exit_code = 7, .text = "oops"});
  disk.wait([&] { return disk.log->writing(); });
  disk.c = std::make_unique<RawAgent>(disk.cluster, 3, disk.settings);
  disk.wait([&] { return disk.c->count<control::Heartbeat>() > 2; });
  REQUIRE(disk.c->count<control::Refused>() == 0);
  SECTION("with the write it is let in") {
    disk.log->sync();
    disk.wait([&] { return disk.round().nodes.size() == 3; });
  }
  SECTION("with the news that there is no room it is refused") {
    disk.log->fill();
    disk.wait([&] { return disk.c->count<control::Refused>() == 1; });
  }
}

TEST_CASE("that a generation is over is told to workers' stores no earlier than it is recorded") {
  FullDisk disk;
  disk.b->send(control::WorkerFailed{.generation = 0, .rank = 1, .exit_code = 7, .text = "oops"});
  disk.wait([&] { return disk.log->writing(); });
  disk.a->send(control::StoreAttach{0, 0, 0});
  disk.wait([&] { return disk.a->count<control::Heartbeat>() > 1; });
  REQUIRE(disk.a->count<control::StoreRefused>() == 0);
  disk.log->sync();
  disk.wait([&] { return disk.a->count<control::StoreRefused>() == 1; });
  REQUIRE(disk.a->count<control::GenerationOver>() == 1);
}

TEST_CASE("parts of reports that the first node has not read yet do not count as what it does not read") {
  net::ControlServerOptions options;
  options.max_unsent_bytes = std::size_t{1} << 20;
  FullDisk disk({60s}, options);
  constexpr int kParts = 24;
  const auto a = std::exchange(disk.a, nullptr);  // it does not read
  const std::uint64_t before = disk.stats().num_messages;
  for (int i = 0; i < kParts; ++i) {
    control::Report part;
    part.payload = std::string(200'000, static_cast<char>('0' + i));
    disk.b->send(part);
    disk.b->send(control::Hang{0, control::Hang::Kind::kSnapshot, 1, {}, 1, std::string(200'000, 'h')});
  }
  disk.wait([&] { return disk.stats().num_messages >= before + 2 * kParts; });
  REQUIRE(disk.stats().num_open == 2);
  disk.wait([&] {
    a->turn();
    return a->count<control::Report>() == kParts && a->count<control::Hang>() == kParts;
  });
  REQUIRE(disk.b->count<control::GenerationOver>() == 0);
  for (const auto& each : a->heard)
    if (const auto* part = std::get_if<control::Report>(&each)) REQUIRE(part->payload.size() == 200'000);
}
