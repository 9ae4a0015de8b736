// SPDX-License-Identifier: Apache-2.0
#include "launcher/checks/dry_run_part.h"

#include "launcher/report/job_report.h"
#include "tests/support/catch.h"

using namespace muster;
using namespace muster::launcher;

namespace {

Job job_of(const std::string& host, int workers) {
  Job job;
  job.mode = RendezvousMode::kElastic;
  job.nodes = 2;
  job.host = host;
  job.local_world_size = workers;
  job.command.path = "/bin/true";
  job.command.arguments = {"true"};
  job.hardware = "8 cores";
  job.lineage = "abc";
  for (int i = 0; i < workers; ++i) {
    RankPlacement place;
    place.numa_node = i;
    place.cores = 4;
    job.placement.push_back(place);
  }
  return job;
}

Assignment place_of(int node, int base, int world) {
  Assignment out;
  out.group_rank = node;
  out.group_world_size = 2;
  out.base_rank = out.role_base_rank = base;
  out.world_size = out.role_world_size = world;
  out.master_addr = "10.0.0.1";
  out.master_port = 41234;
  return out;
}

DryRunPart part_of(const Job& job, const Environment& environment, const Assignment& place) {
  auto part = dry_run_part(job, environment, place);
  REQUIRE_OK(part);
  return *std::move(part);
}

}  // namespace

TEST_CASE("the parts of all nodes are one table in the order of ranks") {
  const DryRunPart a = part_of(job_of("host-a", 1), {}, place_of(0, 0, 3));
  const DryRunPart b = part_of(job_of("host-b", 2), {{"OMP_NUM_THREADS", "7"}}, place_of(1, 1, 3));
  const std::string text = dry_run_text({b, a}, 3);
  REQUIRE_THAT(text, Catch::StartsWith("3 workers on 2 nodes\n"
                                       "host-a: 1 worker; 8 cores\n"
                                       "host-b: 2 workers; 8 cores\n"
                                       "rank  host    local  CUDA  GPU  UUID  PCI  NUMA  CPUs"));
  for (const char* line : {"\n0     host-a  0      -     -    -     -    0 ", "\n1     host-b  0 ",
                           "\n2     host-b  1      -     -    -     -    1 ", "\ncommand: /bin/true\n",
                           "\nenvironment of rank 0:\n", "\n  RANK=0\n", "\n  MASTER_ADDR=10.0.0.1\n",
                           "\n  MASTER_PORT=(drawn at the start)\n", "\n  WORLD_SIZE=3\n",
                           "\nwhere others differ from it:\n  rank 1: GROUP_RANK=1 LOCAL_WORLD_SIZE=2 "
                           "OMP_NUM_THREADS=7 RANK=1 ROLE_RANK=1\n",
                           "nothing was started"})
    REQUIRE_THAT(text, Catch::Contains(line));
  REQUIRE_THAT(text, !Catch::Contains("abc"));  // each start draws another lineage
}

TEST_CASE("another command, another node's note and a variable that is missing there are said") {
  DryRunPart a = part_of(job_of("host-a", 1), {{"CUDA_VISIBLE_DEVICES", "3"}}, place_of(0, 0, 2));
  DryRunPart b = part_of(job_of("host-b", 1), {}, place_of(1, 1, 2));
  b.command = "/bin/false";
  b.notes = {"local rank 0: it is cold"};
  const std::string text = dry_run_text({a, b}, 2);
  REQUIRE_THAT(
      text, Catch::Contains(
                "\nhost-b: local rank 0: it is cold\ncommand on host-b: /bin/false\ncommand: /bin/true\n"));
  REQUIRE_THAT(text, Catch::Contains(" no CUDA_VISIBLE_DEVICES\n"));
}

TEST_CASE("a part comes out of its JSON as it went in, and a secret never goes in") {
  Job job = job_of("host-a", 2);
  job.placement[1].note = "far away";
  const DryRunPart part =
      part_of(job, {{"MUSTER_SECRET", "sixteen bytes and more"}, {"HOME", "/root"}}, place_of(1, 4, 6));
  const std::string json = to_json(part);
  REQUIRE_THAT(json, !Catch::Contains("sixteen bytes") && !Catch::Contains("/root"));
  const auto again = dry_run_part_from_json(json);
  REQUIRE_OK(again);
  REQUIRE(*again == part);
}

TEST_CASE("a node without readable hardware still has its ranks") {
  Job job = job_of("host-a", 2);
  job.placement.clear();
  const DryRunPart part = part_of(job, {}, place_of(0, 0, 2));
  REQUIRE(part.rows.size() == 2);
  REQUIRE(part.rows[1].front() == "1");
  REQUIRE(part.rows[1].back() == "-");
}

TEST_CASE("what another node sends is cut, cleaned or refused") {
  for (const char* wrong :
       {"", "{}", "[]", "null", R"({"version":2})", R"({"version":1,"base_rank":"x"})",
        R"({"version":1,"base_rank":1e300,"workers":1})", R"({"version":1,"base_rank":0,"workers":-1})"})
    REQUIRE_FALSE(dry_run_part_from_json(wrong));
  const auto part = dry_run_part_from_json(
      R"({"version":1,"base_rank":4,"workers":2,"host":"a\u001b[2J","summary":"s","rows":[["1"],["1","2","3","4","5","6","7","8","9","10","11"]],)"
      R"("notes":[],"command":"c","environment":[{"A\n":"b\u0007"}]})");
  REQUIRE_OK(part);
  REQUIRE(part->host.find('\x1b') == std::string::npos);
  REQUIRE(part->rows[0].size() == part->rows[1].size());
  for (const auto& [name, value] : part->environment[0])
    REQUIRE((name + value).find_first_of("\n\a") == std::string::npos);
}

TEST_CASE("a part is never larger than a message may be, and what was left out of it is said") {
  DryRunPart part = part_of(job_of("host-a", 1), {}, place_of(0, 0, 1));
  REQUIRE_THAT(dry_run_text({part}, 1), !Catch::Contains("left out"));
  part.num_workers = 20'000;
  part.rows.resize(20'000, part.rows.front());
  part.environment.resize(20'000, part.environment.front());
  REQUIRE(to_json(part).size() <= kMaxPartBytes);
  const auto cut = dry_run_part_from_json(to_json(part));
  REQUIRE_OK(cut);
  REQUIRE_THAT(dry_run_text({*cut}, 20'000),
               Catch::Contains("\nhost-a: its other " + std::to_string(20'000 - cut->rows.size()) +
                               " workers are left out (--dry-run=local shows them)\n"));
}
