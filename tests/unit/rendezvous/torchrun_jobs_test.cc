// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/store/torchrun_jobs.h"

#include "rendezvous/store/session.h"
#include "tests/support/catch.h"

using namespace muster;
using namespace std::chrono_literals;
using States = std::vector<std::string>;

namespace {

const std::string kA = "/torch.rendezvous.a";
const Instant kNow{1h};

}  // namespace

TEST_CASE("a torchrun job's keys are its state and those of its rounds, whatever other jobs are called") {
  for (const char* own : {"", ".0/MASTER_ADDR", ".12/torchelastic/role_info/0", ".0/a/b.1/c"})
    REQUIRE(TorchrunJobs::state_of(kA + own) == kA);
  for (const char* other : {".0", ".0.1/x", "b", "b.0/x", "./x", ".x/0", ".0x/y", "/x"})
    REQUIRE(TorchrunJobs::state_of(kA + other) != kA);
  for (const char* none :
       {"/default_pg/0//x", "/torch.rendezvous.", "/torch.rendezvous.0/x", "/torch.rendezvous./x", ""})
    REQUIRE(TorchrunJobs::state_of(none).empty());
  REQUIRE(TorchrunJobs::state_of(kA + ".0.1/x") == kA + ".0");  // of the job "a.0"
  REQUIRE(TorchrunJobs::is_state(kA));
  REQUIRE(TorchrunJobs::is_state(kA + ".0"));
  for (const char* key : {"/torch.rendezvous.", "/torch.rendezvous.a.0/x", "torch.rendezvous.a", "/x"})
    REQUIRE_FALSE(TorchrunJobs::is_state(key));
}

TEST_CASE("a torchrun job is due some time after its last agent, unless one comes") {
  TorchrunJobs jobs(5s);
  jobs.joined(1, kA);
  jobs.joined(2, kA);
  jobs.joined(3, "/torch.rendezvous.b");
  jobs.left(1, kNow);
  REQUIRE(jobs.next_deadline() == Instant::max());
  jobs.left(2, kNow);
  REQUIRE(jobs.next_deadline() == kNow + 5s);
  REQUIRE(jobs.take_due(kNow + 4s).empty());
  jobs.joined(4, kA);
  REQUIRE(jobs.next_deadline() == Instant::max());
  jobs.left(4, kNow + 10s);
  REQUIRE(jobs.take_due(kNow + 15s) == States{kA});
  REQUIRE(jobs.take_due(kNow + 1h).empty());
  REQUIRE(jobs.next_deadline() == Instant::max());
}

TEST_CASE("who compares and sets a torchrun job's state is its agent, and nobody else is") {
  StoreCore core;
  TorchrunJobs jobs(0s);
  const auto ends_after = [&](std::string_view key, std::string_view expected) {
    {
      Session client(1, core, {}, &jobs);
      std::string bytes, out;
      wire::encode({.op = wire::Op::kValidate, .number = wire::kMagic}, bytes);
      wire::encode({.op = wire::Op::kCompareSet, .key = key, .value = expected, .desired = "x"}, bytes);
      std::string_view input = bytes;
      REQUIRE(client.receive(input, out) == Session::State::kNeedInput);
    }
    jobs.left(1, kNow);
    return jobs.take_due(kNow);
  };
  REQUIRE(ends_after("/lock", "") == States{});
  REQUIRE(ends_after(kA + ".0/x", "") == States{});
  REQUIRE(ends_after(kA, "absent") == States{});
  REQUIRE(ends_after(kA, "") == States{kA});
  REQUIRE(ends_after(kA, "other") == States{kA});
}

TEST_CASE("jobs of a former process are kept as long as any whose agents have gone") {
  TorchrunJobs jobs(5s);
  jobs.found(kA, kNow);
  jobs.found(kA + ".0/x", kNow);
  jobs.found("/other", kNow);
  REQUIRE(jobs.take_due(kNow + 5s) == States{kA});
}

TEST_CASE("with a torchrun job go its keys and nobody else's, also those that were there before") {
  for (const bool grouped_before : {true, false}) {
    StoreCore core;
    if (grouped_before) core.group_keys(TorchrunJobs::state_of);
    for (const std::string& key : {kA, kA + ".0/x", kA + ".1/y", kA + "b", kA + ".0", std::string("/z")})
      core.set(key, "v");
    if (!grouped_before) core.group_keys(TorchrunJobs::state_of);
    REQUIRE(core.delete_group("/torch.rendezvous.none") == 0);
    REQUIRE(core.delete_group(kA) == 3);
    REQUIRE(core.delete_group(kA) == 0);
    REQUIRE(core.keys().size() == 3);
    for (const std::string& key : {kA + "b", kA + ".0", std::string("/z")})
      REQUIRE(core.keys().contains(key));
    core.set(kA, "v");
    REQUIRE(core.delete_key(kA));
    REQUIRE(core.delete_group(kA) == 0);
  }
}

TEST_CASE("to delete a torchrun job's keys is a look at those, whatever else the store holds") {
  static int looks;
  StoreCore core;
  core.group_keys([](std::string_view key) {
    ++looks;
    return TorchrunJobs::state_of(key);
  });
  for (int i = 0; i < 1000; ++i) core.set("/other/" + std::to_string(i), "v");
  for (const std::string& key : {kA, kA + ".0/x", kA + ".1/y"}) core.set(key, "v");
  looks = 0;
  REQUIRE(core.delete_group(kA) == 3);
  REQUIRE(looks == 3);
}

TEST_CASE("of very many deserted torchrun jobs the first are due at once, and each of them once") {
  TorchrunJobs jobs(24h);
  const auto name = [](std::size_t i) { return "/torch.rendezvous.j" + std::to_string(i); };
  const auto pass_by = [&](std::size_t i, Instant now) {
    jobs.joined(1, name(i));
    jobs.left(1, now);
  };
  for (std::size_t i = 0; i < TorchrunJobs::kMaxDeserted + 3; ++i) pass_by(i, kNow + std::chrono::seconds(i));
  REQUIRE(jobs.next_deadline() < kNow);
  jobs.joined(1, name(1));  // it has an agent again
  REQUIRE(jobs.take_due(kNow) == States{name(0), name(2)});
  REQUIRE(jobs.next_deadline() == kNow + 24h + 3s);
  jobs.left(1, kNow + 10h);  // and its time again
  REQUIRE(jobs.take_due(kNow) == States{name(3)});
  const States later = jobs.take_due(kNow + 100h);
  REQUIRE(later.size() == TorchrunJobs::kMaxDeserted);
  REQUIRE(later.back() == name(1));
}
