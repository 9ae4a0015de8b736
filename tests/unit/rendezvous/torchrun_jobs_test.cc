// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/store/torchrun_jobs.h"

#include <algorithm>

#include "rendezvous/store/store_core.h"
#include "tests/support/catch.h"

using namespace muster;
using namespace std::chrono_literals;
using States = std::vector<std::string>;

namespace {

const std::string kA = "/torch.rendezvous.a";
const Instant kNow{1h};

TorchrunJobs started() {
  TorchrunJobs out;
  out.start();
  return out;
}

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
  TorchrunJobs jobs = started();
  jobs.took_part(1, kA);
  jobs.took_part(2, kA);
  jobs.took_part(3, "/torch.rendezvous.b");
  jobs.gone(1);
  jobs.settle(kNow, 5s);
  REQUIRE(jobs.next_deadline() == Instant::max());
  jobs.gone(2);
  jobs.settle(kNow, 5s);
  REQUIRE(jobs.next_deadline() == kNow + 5s);
  REQUIRE(jobs.take_due(kNow + 4s).empty());
  jobs.took_part(4, kA);
  REQUIRE(jobs.next_deadline() == Instant::max());
  jobs.gone(4);
  jobs.settle(kNow + 10s, 5s);
  REQUIRE(jobs.take_due(kNow + 15s) == States{kA});
  REQUIRE(jobs.take_due(kNow + 1h).empty());
  REQUIRE(jobs.next_deadline() == Instant::max());
}

TEST_CASE("clients that are no agents of torchrun keep no job, and none is noted before it is asked for") {
  TorchrunJobs jobs = started();
  jobs.took_part(1, "/lock");
  jobs.took_part(1, kA + ".0/x");
  jobs.gone(1);
  jobs.settle(kNow, 0s);
  REQUIRE(jobs.next_deadline() == Instant::max());
  TorchrunJobs idle;
  idle.took_part(1, kA);
  idle.gone(1);
  idle.settle(kNow, 0s);
  REQUIRE(idle.next_deadline() == Instant::max());
}

TEST_CASE("jobs of a former process are kept as long as any whose agents have gone") {
  TorchrunJobs jobs = started();
  jobs.found(kA);
  jobs.found(kA + ".0/x");
  jobs.found("/other");
  jobs.settle(kNow, 5s);
  REQUIRE(jobs.take_due(kNow + 5s) == States{kA});
}

TEST_CASE("with a torchrun job go its keys and nobody else's") {
  StoreCore core;
  Effects effects;
  for (const std::string& key : {kA, kA + ".0/x", kA + ".1/y", kA + "b", kA + ".0", std::string("/z")})
    core.set(key, "v", effects);
  core.set("/torch.rendezvous.c", "v", effects);
  REQUIRE(core.drop_torchrun_jobs({kA, "/torch.rendezvous.none", "/torch.rendezvous.c"}, effects) ==
          std::vector<std::size_t>{3, 0, 1});
  core.set("/torch.rendezvous.c", "v", effects);
  REQUIRE(core.drop_torchrun_jobs({"/torch.rendezvous.d", "/torch.rendezvous.d", "/torch.rendezvous.c"},
                                  effects) == std::vector<std::size_t>{0, 0, 1});
  REQUIRE(core.keys().size() == 3);
  for (const std::string& key : {kA + "b", kA + ".0", std::string("/z")}) REQUIRE(core.keys().contains(key));
}

TEST_CASE("of very many deserted torchrun jobs the first are due at once") {
  TorchrunJobs jobs = started();
  const auto name = [](std::size_t i) { return "/torch.rendezvous.j" + std::to_string(i); };
  for (std::size_t i = 0; i < TorchrunJobs::kMaxDeserted + 3; ++i) {
    jobs.took_part(1, name(i));
    jobs.gone(1);
    jobs.settle(kNow + std::chrono::seconds(i), 24h);
  }
  REQUIRE(jobs.next_deadline() < kNow);
  jobs.took_part(1, name(1));  // it has an agent again
  REQUIRE(jobs.take_due(kNow) == States{name(0), name(2)});
  REQUIRE(jobs.next_deadline() == kNow + 24h + 3s);
  REQUIRE(jobs.take_due(kNow + 100h).size() == TorchrunJobs::kMaxDeserted);
}

TEST_CASE("a job that is due at once is due once, and has its time again where an agent came and went") {
  TorchrunJobs jobs = started();
  const auto name = [](std::size_t i) { return "/torch.rendezvous.j" + std::to_string(i); };
  const auto pass_by = [&](std::size_t i, std::size_t second) {
    jobs.took_part(1, name(i));
    jobs.gone(1);
    jobs.settle(kNow + std::chrono::seconds(second), 24h);
  };
  for (std::size_t i = 0; i <= TorchrunJobs::kMaxDeserted; ++i) pass_by(i, i);
  pass_by(0, TorchrunJobs::kMaxDeserted + 1);  // which makes the next one surplus
  REQUIRE(jobs.take_due(kNow) == States{name(1)});
  const States later = jobs.take_due(kNow + 100h);
  REQUIRE(std::count(later.begin(), later.end(), name(0)) == 1);
  REQUIRE(later.size() == TorchrunJobs::kMaxDeserted);
}
