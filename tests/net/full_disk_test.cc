// SPDX-License-Identifier: Apache-2.0
// Agents of a coordinator that can record nothing for a while.
#include <algorithm>
#include <cerrno>

#include "rendezvous/server/parked_messages.h"
#include "tests/support/control_house.h"
#include "tests/support/held_log.h"

using namespace muster;
using namespace muster::test;

namespace {

// An agent that speaks byte by byte, and is not read for it.
class RawAgent {
 public:
  RawAgent(House& house, std::uint64_t id, membership::Settings settings,
           std::optional<std::int64_t> resume = {})
      : fd_(connect_raw(house.server->port())) {
    join.request.id = {id, id};
    join.request.host = "n" + std::to_string(id);
    join.request.addresses = {"127.0.0.1"};
    join.request.master_port = 4711;
    join.settings = settings;
    join.resume = resume;
    control::encode(control::Preamble{}, out_);
    say(control::Start{"job", join.request.host, {}});
    say(control::Proof{});
    say(join);
  }

  void say(const control::Message& message) { control::encode(message, out_); }
  // Sends what the socket takes, and hears what there is.
  void turn() {
    const ssize_t sent = ::send(fd_.get(), out_.data(), out_.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent > 0) out_.erase(0, static_cast<std::size_t>(sent));
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
  control::Decoder decoder_{control::Limits{}};
  std::string out_;
};

struct FullDisk {
  explicit FullDisk(Millis heartbeat_timeout = 60s)
      : settings(nodes(2)), log(std::make_shared<HeldLog>()), house({}, options(log)) {
    settings.heartbeat_timeout = heartbeat_timeout;
    settings.reconnect_grace = 60s;
    a = std::make_unique<RawAgent>(house, 1, settings);
    wait([&] { return stats().num_messages == 1; });  // which makes it the first node
    b = std::make_unique<RawAgent>(house, 2, settings);
    wait([&] { return log->dirty(); });
    log->sync();
    wait([&] { return a->count<control::Assignment>() == 1 && b->count<control::Assignment>() == 1; });
    log->fill();
  }
  ~FullDisk() { house.server->stop(); }

  static net::ControlServerOptions options(std::shared_ptr<net::StateLog> log) {
    net::ControlServerOptions out;
    out.state = std::move(log);
    out.heartbeat_interval = 50ms;
    return out;
  }
  template <class Condition>
  void wait(Condition condition) {
    house.wait([&] {
      if (a) a->turn();
      if (b) b->turn();
      return condition();
    });
  }
  // More than the kernel keeps for a connection; the last two bytes are its number.
  static control::Report report(int number) {
    control::Report out;
    out.payload = std::string(100'000, 'x');
    out.payload.push_back(static_cast<char>(number / 100));
    out.payload.push_back(static_cast<char>(number % 100));
    return out;
  }
  [[nodiscard]] net::ControlServerStats stats() const { return house.server->coordinator().stats(); }

  membership::Settings settings;
  std::shared_ptr<HeldLog> log;
  House house;
  std::unique_ptr<RawAgent> a;
  std::unique_ptr<RawAgent> b;
};

// One piece that was read at once and one message on top.
constexpr std::size_t kMost = net::kMaxParkedBytes + 65536 + 110'000;
constexpr std::size_t kMostSmall = 8 * net::kMaxParkedBytes;  // small ones cost more than their bytes
constexpr int kReports = 300;

}  // namespace

TEST_CASE(
    "while nothing can be recorded an agent's reports wait with it, nobody is taken for dead, and all "
    "arrive") {
  FullDisk disk(1500ms);
  for (int i = 0; i < kReports; ++i) disk.b->say(FullDisk::report(i));
  disk.a->say(FullDisk::report(kReports));
  // None of them is heard, for longer than the time-out: the beats that they get are 50 ms apart.
  disk.wait(
      [&] { return disk.a->count<control::Heartbeat>() > 40 && disk.b->count<control::Heartbeat>() > 40; });
  REQUIRE(disk.b->unsent() > 0);
  REQUIRE(disk.stats().num_parked_bytes >= 2 * net::kMaxParkedBytes);
  REQUIRE(disk.stats().num_parked_bytes <= 2 * kMost);
  REQUIRE(disk.a->count<control::Report>() == 0);

  disk.log->sync();
  // From now on they are read, and have to speak for themselves.
  disk.wait([&] {
    disk.a->say(control::Heartbeat{});
    disk.b->say(control::Heartbeat{});
    return disk.a->count<control::Report>() == kReports + 1;
  });
  REQUIRE(disk.stats().num_parked_bytes == 0);
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
  disk.b->say(control::WorkerFailed{.generation = 0, .rank = 1, .exit_code = 7, .text = "the first failure"});
  disk.wait([&] { return disk.stats().num_parked_bytes > 0; });
  disk.b->say(control::Leave{"it is done"});
  disk.wait([&] { return disk.b->unsent() == 0; });
  disk.b->close();
  disk.wait([&] { return disk.stats().num_open == 1; });  // its descriptor and its place are free
  REQUIRE(disk.stats().num_parked_bytes > 0);
  disk.a->say(control::WorkerFailed{.generation = 0, .rank = 0, .exit_code = 8, .text = "a consequence"});
  disk.wait([&] { return disk.a->count<control::Heartbeat>() > 0 || disk.stats().num_messages >= 5; });
  disk.a->say(control::Heartbeat{});
  disk.wait([&] { return disk.a->count<control::Heartbeat>() > 0; });
  REQUIRE(disk.a->count<control::GenerationOver>() == 0);

  disk.log->sync();
  disk.wait([&] { return disk.log->dirty(); });
  REQUIRE(disk.a->count<control::GenerationOver>() == 0);  // nor is anything told that is not recorded
  disk.log->sync();
  disk.wait([&] { return disk.a->count<control::GenerationOver>() == 1; });
  const auto over = std::find_if(disk.a->heard.begin(), disk.a->heard.end(), [](const auto& each) {
    return std::holds_alternative<control::GenerationOver>(each);
  });
  REQUIRE(std::get<control::GenerationOver>(*over).cause.text == "the first failure");
  disk.wait([&] { return disk.stats().num_parked_bytes == 0; });
}

TEST_CASE("an agent that comes back while nothing can be recorded has its place") {
  FullDisk disk;
  // Its former connection is lost without a word, and still open here.
  const auto former = std::move(disk.b);
  disk.b = std::make_unique<RawAgent>(disk.house, 2, disk.settings);
  disk.b->say(control::Heartbeat{});
  disk.wait([&] { return disk.b->count<control::Heartbeat>() > 0; });
  const auto* round = disk.house.server->coordinator().jobs().find_round("job");
  REQUIRE(round->nodes.at({2, 2}).connected);
  REQUIRE(round->phase == membership::Phase::kRunning);
}

TEST_CASE("no time to come back runs out while nothing can be recorded") {
  FullDisk disk;
  disk.settings.reconnect_grace = 100ms;  // of the job it is 60 s, and 800 ms after a reset
  disk.b->reset();
  disk.wait([&] { return disk.stats().num_open == 1; });
  const auto beats = disk.a->count<control::Heartbeat>();
  for (int i = 0; i < 40; ++i) disk.a->say(control::Heartbeat{});
  disk.wait([&] { return disk.a->count<control::Heartbeat>() == beats + 40; });
  const Instant late = SteadyClock::now() + 1s;
  disk.wait([&] { return SteadyClock::now() > late; });

  disk.b = std::make_unique<RawAgent>(disk.house, 2, disk.settings, 0);
  disk.b->say(control::Heartbeat{});
  disk.wait([&] { return disk.b->count<control::Heartbeat>() > 0; });
  disk.log->sync();
  disk.a->say(control::Heartbeat{});
  disk.wait([&] { return disk.a->count<control::Heartbeat>() > beats + 40; });
  REQUIRE(disk.a->count<control::GenerationOver>() == 0);
  const auto* round = disk.house.server->coordinator().jobs().find_round("job");
  REQUIRE(round->phase == membership::Phase::kRunning);
  REQUIRE(round->nodes.at({2, 2}).connected);
}

TEST_CASE(
    "who says Join again and again while nothing can be recorded is read no further, and refused after it") {
  FullDisk disk;
  const auto c = std::exchange(disk.b, std::make_unique<RawAgent>(disk.house, 3, disk.settings));
  for (int i = 0; i < 50'000; ++i) disk.b->say(disk.b->join);
  disk.wait([&] { return disk.stats().num_parked_bytes >= net::kMaxParkedBytes; });
  disk.b->say(control::Heartbeat{});
  disk.wait([&] { return disk.b->count<control::Heartbeat>() > 2; });
  REQUIRE(disk.stats().num_parked_bytes <= kMostSmall);
  REQUIRE(disk.b->unsent() > 0);
  // A member's takes its place again, and the next one is the last that is listened to.
  const auto member = std::make_unique<RawAgent>(disk.house, 1, disk.settings, 0);
  for (int i = 0; i < 1000; ++i) member->say(member->join);
  member->say(control::Heartbeat{});
  disk.wait([&] {
    member->turn();
    return member->count<control::Heartbeat>() > 0;
  });
  REQUIRE(disk.stats().num_parked_bytes <= kMostSmall);

  disk.wait([&] {
    member->turn();
    if (disk.log->dirty()) disk.log->sync();
    return disk.b->count<control::Refused>() == 1 && member->count<control::Refused>() == 1;
  });
  REQUIRE(disk.stats().num_parked_bytes == 0);
}

TEST_CASE("who asks for a place while nothing can be recorded and goes leaves nothing behind") {
  FullDisk disk;
  for (std::uint64_t id = 3; id < 23; ++id) {
    RawAgent visitor(disk.house, id, disk.settings);
    disk.wait([&] {
      visitor.turn();
      return disk.stats().num_parked_bytes > 0;
    });
    visitor.close();
    disk.wait([&] { return disk.stats().num_parked_bytes == 0; });
    REQUIRE(disk.stats().num_open == 2);
  }
  disk.log->sync();
  REQUIRE(disk.house.server->coordinator().jobs().find_round("job")->nodes.size() == 2);
}

TEST_CASE("that a generation is over is told to workers' stores no earlier than it is recorded") {
  FullDisk disk;
  disk.log->sync();
  disk.b->say(control::WorkerFailed{.generation = 0, .rank = 1, .exit_code = 7, .text = "oops"});
  disk.wait([&] { return disk.log->dirty(); });
  const auto heard = disk.a->count<control::Heartbeat>();
  disk.a->say(control::StoreAttach{0, 0, 0});
  disk.a->say(control::Heartbeat{});
  disk.wait([&] { return disk.a->count<control::Heartbeat>() > heard; });
  REQUIRE(disk.a->count<control::StoreRefused>() == 0);
  disk.log->sync();
  disk.wait([&] { return disk.a->count<control::StoreRefused>() == 1; });
  REQUIRE(disk.a->count<control::GenerationOver>() == 1);
}
