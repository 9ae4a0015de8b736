// SPDX-License-Identifier: Apache-2.0
#include "launcher/plan/job_plan.h"

#include <fstream>
#include <signal.h>

#include "launcher/network/listening.h"
#include "launcher/plan/rendezvous_plan.h"
#include "launcher/text/rank_ranges.h"
#include "tests/support/catch.h"
#include "tests/support/fieldwise.h"
#include "tests/support/temporary_directory.h"

using namespace muster;
using namespace muster::launcher;

namespace {

using Words = std::vector<std::string>;

Machine machine(int gpus, int cpus = 16) {
  return {[=] { return gpus; }, [=] { return cpus; }, [] { return std::string("uuid"); }, "host-a"};
}

Result<Job> plan(Words words, const Environment& environment = {{"PATH", "/usr/bin:/bin"}}, int gpus = 0) {
  words.push_back("true");
  auto options = parse_options(words, environment);
  REQUIRE_OK(options);
  return plan_job(*options, environment, machine(gpus));
}

Job planned(Words words, int gpus = 0) {
  auto job = plan(std::move(words), {{"PATH", "/usr/bin:/bin"}}, gpus);
  REQUIRE_OK(job);
  return *job;
}

std::string refusal(Words words) {
  auto job = plan(std::move(words));
  REQUIRE_FALSE(job);
  REQUIRE(job.error().code == ErrorCode::kInvalidArgument);
  return job.error().message;
}

}  // namespace

TEST_CASE("one node without an endpoint is standalone on a port of the kernel's choice") {
  const Job job = planned({});
  REQUIRE(job.mode == RendezvousMode::kStandalone);
  REQUIRE(job.master_addr == "127.0.0.1");
  REQUIRE(job.master_port == 0);
  REQUIRE(job.run_id == "uuid");
  REQUIRE(planned({"--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0"}).mode ==
          RendezvousMode::kStandalone);
}

TEST_CASE("several nodes without a backend have a coordinator on node 0 and the ranks they were given") {
  const Job job = planned({"--nnodes=2", "--node-rank=1", "--master-addr=10.0.0.1"});
  REQUIRE(job.mode == RendezvousMode::kElastic);
  REQUIRE(job.elastic.ranks_given);
  REQUIRE(job.elastic.order == 1);
  REQUIRE(job.elastic.is_host == false);
  REQUIRE(planned({"--nnodes=2", "--master-addr=10.0.0.1"}).elastic.is_host == true);
  REQUIRE_FALSE(job.elastic.store_proxy);
  REQUIRE_FALSE(job.elastic.rules.restart_after_loss);
  REQUIRE(job.join_timeout == std::chrono::seconds(900));
  REQUIRE(job.elastic.rules.join_timeout == std::chrono::seconds(900));
  REQUIRE(planned({"--nnodes=2", "--rdzv-conf=timeout=7,is_host=1"}).join_timeout == std::chrono::seconds(7));
  REQUIRE(job.master_addr == "10.0.0.1");
  REQUIRE(job.master_port == 29500);
  REQUIRE(job.run_id == "none");
  const Job by_endpoint = planned({"--nnodes=2", "--rdzv-endpoint=[fe80::1]:77", "--rdzv-id=j"});
  REQUIRE(by_endpoint.master_addr == "fe80::1");
  REQUIRE(by_endpoint.master_port == 77);
  REQUIRE(by_endpoint.run_id == "j");
}

TEST_CASE("one node stays on loopback, whatever its address is called") {
  for (const auto& [place, port] :
       {std::pair{"--master-addr=10.0.0.1", 1234}, {"--rdzv-endpoint=10.0.0.1:77", 77}}) {
    const Job job = planned({"--master-port=1234", place});
    REQUIRE(job.mode == RendezvousMode::kStandalone);
    REQUIRE(job.master_addr == "127.0.0.1");
    REQUIRE(job.master_port == port);
    REQUIRE(job.run_id == "none");
    REQUIRE(job.one_node());
  }
  REQUIRE(planned({"--master-port=1234", "--master-addr=localhost"}).master_addr == "localhost");
  REQUIRE_FALSE(planned({"--nnodes=1", "--spares=1", "--rdzv-backend=c10d", "--rdzv-endpoint=h"}).one_node());
}

TEST_CASE("with a secret static nodes proxy the workers' store") {
  const Environment secret = {{"PATH", "/usr/bin:/bin"}, {"MUSTER_SECRET", "of more than sixteen bytes"}};
  for (const int rank : {0, 1}) {
    const auto job = plan({"--nnodes=2", "--node-rank=" + std::to_string(rank), "--master-addr=10.0.0.1",
                           "--rdzv-conf=timeout=7"},
                          secret);
    REQUIRE_OK(job);
    REQUIRE(job->mode == RendezvousMode::kElastic);
    REQUIRE(job->elastic.endpoint_host == "10.0.0.1");
    REQUIRE(job->elastic.endpoint_port == 29500);
    REQUIRE(job->elastic.is_host == (rank == 0));
    REQUIRE(job->elastic.order == rank);
    REQUIRE(job->elastic.store_proxy);
    REQUIRE(job->elastic.reconnect_for == Millis(0));
    REQUIRE(job->join_timeout == std::chrono::seconds(7));
    REQUIRE_FALSE(unauthenticated_access(*job));
  }
  const auto open = plan({"--nnodes=2", "--master-addr=10.0.0.1", "--no-store-proxy"}, secret);
  REQUIRE_THAT(*unauthenticated_access(*open), Catch::Contains("--no-store-proxy"));
  REQUIRE(plan({"--master-port=1234"}, secret)->mode == RendezvousMode::kStandalone);
  const Job none = planned({"--nnodes=2", "--master-addr=10.0.0.1"});
  REQUIRE_THAT(*unauthenticated_access(none), Catch::Contains("whoever reaches 10.0.0.1:29500"));
  REQUIRE_FALSE(unauthenticated_access(planned({"--nnodes=2", "--master-addr=127.0.0.1"})));
}

TEST_CASE("with a virtual local rank a list of devices that is too short is refused before anything starts") {
  const auto listed = [](const char* devices, const char* workers) {
    return plan({"--virtual-local-rank", workers}, {{"PATH", "/bin"}, {"CUDA_VISIBLE_DEVICES", devices}});
  };
  REQUIRE_OK(listed("3, 5", "--nproc-per-node=2"));
  for (const auto& [devices, workers] :
       {std::pair{"3", "--nproc-per-node=2"}, {"3,", "--nproc-per-node=2"}, {"", "--nproc-per-node=1"}}) {
    const auto job = listed(devices, workers);
    REQUIRE_FALSE(job);
    REQUIRE(job.error().code == ErrorCode::kInvalidArgument);
    REQUIRE_THAT(job.error().message, Catch::Contains("has no device for local rank"));
  }
}

TEST_CASE("contradictions are refused with what is right") {
  REQUIRE_THAT(refusal({"--nnodes=2", "--node-rank=2"}), Catch::Contains("it is 0 to 1"));
  REQUIRE_THAT(refusal({"--node-rank=1"}), Catch::Contains("out of range"));
  REQUIRE_THAT(refusal({"--nnodes=0"}), Catch::Contains("--nnodes=0"));
  REQUIRE_THAT(refusal({"--nnodes=1:2"}), Catch::Contains("a range needs a coordinator"));
  REQUIRE_THAT(refusal({"--nnodes=2", "--spares=1"}), Catch::Contains("--spares=1 needs a coordinator"));
  REQUIRE_THAT(refusal({"--nnodes=3:2"}), Catch::Contains("smaller number"));
  REQUIRE_THAT(refusal({"--nnodes=1:2:3"}), Catch::Contains("--nnodes"));
  REQUIRE_THAT(refusal({"--nnodes=2", "--standalone"}), Catch::Contains("--standalone is for one node"));
  REQUIRE_THAT(refusal({"--nnodes=2", "--rdzv-backend=c10d"}),
               Catch::Contains("needs --rdzv-endpoint=HOST[:PORT]"));
  // Only whoever runs the coordinator knows a port that the kernel chose.
  REQUIRE_THAT(refusal({"--nnodes=2", "--rdzv-backend=muster", "--rdzv-endpoint=h:0"}),
               Catch::Contains("give a number"));
  REQUIRE_THAT(refusal({"--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=h:0", "--rdzv-conf=is_host=0"}),
               Catch::Contains("give a number"));
  REQUIRE(planned({"--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=h:0", "--port-file=f"})
              .elastic.endpoint_port == 0);
  REQUIRE_THAT(refusal({"--nnodes=2", "--rdzv-backend=etcd"}),
               Catch::Contains("where etcd's clients are served"));
  REQUIRE_THAT(refusal({"--rdzv-backend=etcd-v2"}), Catch::Contains("v3 API"));
  REQUIRE_THAT(refusal({"--rdzv-backend=zookeeper"}), Catch::Contains("muster and etcd"));
  REQUIRE_THAT(refusal({"--nnodes=2", "--rdzv-endpoint=h"}), Catch::Contains("needs a port"));
  REQUIRE_THAT(refusal({"--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=2001:db8::5"}),
               Catch::Contains("--rdzv-endpoint=2001:db8::5: write [2001:db8::5]:PORT"));
  REQUIRE_THAT(refusal({"--nnodes=2", "--master-addr=node0:29500"}),
               Catch::Contains("--master-addr=node0:29500: not a name or address of a host; its port is"));
  REQUIRE_THAT(refusal({"--nnodes=2", "--master-port=0"}), Catch::Contains("give a number"));
  REQUIRE(planned({"--nnodes=2", "--iface=eth0"}).elastic.interface == "eth0");
  REQUIRE_THAT(refusal({"--ranks-filter=7-3"}),
               Catch::Contains("--ranks-filter=7-3: not a list of up to 65,536 ranks"));
  REQUIRE_THAT(refusal({"--ranks-filter=0-99999999"}), Catch::Contains("not a list of up to 65,536 ranks"));
  REQUIRE_THAT(refusal({"--ranks-filter=-1"}), Catch::Contains("--ranks-filter=-1"));
  REQUIRE_THAT(refusal({"--nproc-per-node=0"}), Catch::Contains("--nproc-per-node=0"));
  REQUIRE_THAT(refusal({"--nproc-per-node=many"}), Catch::Contains("auto, gpu or cpu"));
  REQUIRE_THAT(refusal({"--nproc-per-node=xpu"}), Catch::Contains("auto, gpu or cpu"));
  REQUIRE_THAT(refusal({"-t9"}), Catch::Contains("--tee"));
  REQUIRE_THAT(refusal({"--local-ranks-filter=a"}), Catch::Contains("--local-ranks-filter"));
  REQUIRE_THAT(refusal({"--signals-to-handle=SIGNOPE"}), Catch::Contains("SIGNOPE"));
  REQUIRE_THAT(refusal({"--signals-to-handle=SIGKILL"}), Catch::Contains("SIGKILL"));
  REQUIRE_THAT(refusal({"--rdzv-conf=timeout"}), Catch::Contains("key=value"));
}

TEST_CASE("rules about restarts that contradict each other are refused") {
  REQUIRE_THAT(refusal({"--restart-on=oom"}), Catch::Contains("without --max-restarts"));
  REQUIRE_THAT(refusal({"--max-restarts=1", "--restart-on=hang", "--on-hang=stop"}),
               Catch::Contains("contradict"));
  REQUIRE_THAT(refusal({"--max-restarts=1", "--restart-on=oom", "--on-hang=restart"}),
               Catch::Contains("does not name hang"));
  REQUIRE_THAT(refusal({"--max-restarts=1", "--no-restart-on=hang", "--on-hang=restart"}),
               Catch::Contains("names hang, after which --on-hang=restart restarts"));
  const Job job = planned({"--max-restarts=1", "--restart-on=hang,node"});
  REQUIRE(job.hang.action == OnHang::kRestart);
  REQUIRE(job.restarts.after_hang);
  REQUIRE(job.restarts.after_lost_node());
  REQUIRE(planned({"--restart-on=", "--no-restart-on="}).restarts == RestartRules{});
}

TEST_CASE("nodes that join at a safe point need a job that grows") {
  const auto grows = [](const std::string& join_at, const std::string& nnodes = "1:2") {
    return std::vector<std::string>{"--rdzv-backend=c10d", "--rdzv-endpoint=h:1", "--nnodes=" + nnodes,
                                    "--join-at=" + join_at};
  };
  REQUIRE_THAT(refusal({"--join-at=safe-point"}), Catch::Contains("--nnodes=MIN:MAX"));
  REQUIRE_THAT(refusal(grows("safe-point", "2")), Catch::Contains("nobody joins a job of --nnodes=2"));
  for (const std::string text : {"later", "safe-point:", "safe-point:x", "safe-point:0", "safe-point-5",
                                 "safe-point:1e9", "safe-point:5s"})
    REQUIRE_THAT(refusal(grows(text)), Catch::Contains("--join-at"));
  REQUIRE_FALSE(planned(grows("now")).elastic.rules.grow_at_safe_point);
  const membership::Settings rules = planned(grows("safe-point:1.5")).elastic.rules;
  REQUIRE(rules.grow_at_safe_point);
  REQUIRE(rules.safe_point_timeout == Millis(1500));
  REQUIRE(planned(grows("safe-point")).elastic.rules.safe_point_timeout == Millis(0));
}

TEST_CASE("timeouts come from the options or torchrun's variable") {
  REQUIRE(planned({}).grace == std::chrono::seconds(30));
  REQUIRE(planned({"--shutdown-timeout=0.5"}).grace == std::chrono::milliseconds(500));
  const auto job = plan({}, {{"PATH", "/usr/bin:/bin"}, {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "7"}});
  REQUIRE(job->grace == std::chrono::seconds(7));
  REQUIRE(planned({"--rdzv-conf=read_timeout=1, timeout = 12"}).join_timeout == std::chrono::seconds(12));
}

TEST_CASE("with a backend that has a coordinator the nodes gather at the endpoint") {
  const Job job =
      planned({"--nnodes=2:4", "--spares=1", "--max-restarts=5", "--rdzv-backend=c10d",
               "--rdzv-endpoint=10.0.0.1", "--rdzv-id=j", "--node-rank=4", "--shutdown-timeout=7"});
  REQUIRE(job.mode == RendezvousMode::kElastic);
  REQUIRE(job.nodes == 4);
  REQUIRE(job.run_id == "j");
  REQUIRE(job.elastic.endpoint_host == "10.0.0.1");
  REQUIRE(job.elastic.endpoint_port == 29400);
  REQUIRE(job.elastic.order == 4);
  REQUIRE_FALSE(job.elastic.is_host.has_value());
  REQUIRE_FALSE(job.elastic.secret);
  REQUIRE(job.elastic.reconnect_for == std::chrono::seconds(0));
  membership::Settings rules;
  rules.min_nodes = 2;
  rules.max_nodes = 4;
  rules.spares = 1;
  rules.max_restarts = 5;
  rules.stop_timeout = std::chrono::seconds(37);
  rules.reconnect_grace = std::chrono::seconds(3);
  REQUIRE(job.elastic.rules == rules);

  const Job daemon = planned({"--nnodes=2", "--rdzv-backend=muster", "--rdzv-endpoint=h"});
  REQUIRE(daemon.elastic.endpoint_port == 29500);
  REQUIRE(daemon.elastic.reconnect_for == std::chrono::seconds(60));
  REQUIRE_FALSE(daemon.elastic.order);
  // A daemon is there, or will be again: no agent takes its port.
  REQUIRE(daemon.elastic.is_host == false);
  REQUIRE(planned({"--nnodes=2", "--rdzv-backend=muster", "--rdzv-endpoint=h", "--rdzv-conf=is_host=1"})
              .elastic.is_host == true);
  // One node needs none, unless a daemon is named.
  REQUIRE(planned({"--rdzv-backend=muster"}).mode == RendezvousMode::kStandalone);
  REQUIRE(planned({"--rdzv-backend=muster", "--rdzv-endpoint=h"}).mode == RendezvousMode::kElastic);
  REQUIRE(planned({"--nnodes=1:2", "--rdzv-backend=c10d", "--rdzv-endpoint=h"}).mode ==
          RendezvousMode::kElastic);
}

TEST_CASE("the job's secret is taken from the environment or a file, and a weak one is refused") {
  const auto with = [](const std::string& secret) {
    return plan({"--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=h"},
                {{"PATH", "/usr/bin:/bin"}, {"MUSTER_SECRET", secret}});
  };
  const auto job = with("a secret of more than sixteen bytes");
  REQUIRE_OK(job);
  REQUIRE(job->elastic.secret);
  REQUIRE_FALSE(with("short"));
  REQUIRE_THAT(with("short").error().message, Catch::Contains("MUSTER_SECRET"));
  REQUIRE_THAT(
      refusal({"--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=h", "--secret-file=/no/such/file"}),
      Catch::Contains("--secret-file"));
  REQUIRE(refusal({"--secret-file=/nonexistent"}).starts_with("--secret-file: "));  // of no use to one node
}

TEST_CASE("filters of duplicated lines are separated by commas, and two commas are one") {
  const auto filters = [](const std::string& text) {
    return planned({"--duplicate-stdout-filters=" + text, "--duplicate-stderr-filters=x"})
        .logs.stdout_filters;
  };
  REQUIRE(planned({}).logs.stdout_filters.empty());
  REQUIRE(filters("") == Words{""});
  REQUIRE(filters("apple,orange") == Words{"apple", "orange"});
  REQUIRE(filters("a,,b,c") == Words{"a,b", "c"});
  REQUIRE(filters(",,,") == Words{",", ""});
  REQUIRE(filters("a,") == Words{"a", ""});
  REQUIRE(planned({"--duplicate-stderr-filters=x"}).logs.stderr_filters == Words{"x"});
  REQUIRE_THAT(refusal({"--duplicate-stdout-filters=x", "--log-dir=/dev/null"}),
               Catch::Contains("/dev/null"));
}

TEST_CASE("the name of the machine is in prefixes, whatever the node is called") {
  REQUIRE(planned({"--local-addr=10.0.0.1"}).logs.hostname == "host-a");
}

TEST_CASE("who names a backend gets torchrun's run id") {
  REQUIRE(planned({"--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0"}).run_id == "none");
  REQUIRE(planned({"--rdzv-backend=c10d", "--standalone"}).run_id == "uuid");
  REQUIRE(planned({"--detach", "--job-name=j"}).run_id == "j");
  REQUIRE(planned({"--detach", "--job-name=j", "--rdzv-id=i"}).run_id == "i");
  REQUIRE_THAT(refusal({"--job-name=j"}), Catch::Contains("--detach"));
}

TEST_CASE("torch.distributed.launch's argument comes before the program's own") {
  REQUIRE(planned({"--no-use-env"}).command.arguments == Words{"true", "--local-rank=${local_rank}"});
  REQUIRE(planned({"--local-rank-arg=local_rank"}).command.arguments ==
          Words{"true", "--local_rank=${local_rank}"});
  REQUIRE(planned({"--use-env"}).command.arguments == Words{"true"});
  REQUIRE_THAT(refusal({"--no-use-env", "--no-python"}), Catch::Contains("--no-python"));
  REQUIRE_THAT(refusal({"--no-use-env", "--use-env"}), Catch::Contains("--use-env"));
}

TEST_CASE("workers' stores are proxied where there is something to prove, unless it is switched off") {
  const auto proxies = [](Words more, const char* secret) {
    Words words{"--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=h"};
    words.insert(words.end(), more.begin(), more.end());
    const auto job = plan(words, {{"PATH", "/usr/bin:/bin"}, {"MUSTER_SECRET", secret}});
    REQUIRE_OK(job);
    return job->elastic.store_proxy;
  };
  const char* secret = "a secret of more than sixteen bytes";
  REQUIRE_FALSE(proxies({}, ""));
  REQUIRE(proxies({}, secret));
  REQUIRE(proxies({"--store-proxy"}, ""));
  REQUIRE_FALSE(proxies({"--no-store-proxy"}, secret));
  REQUIRE_THAT(refusal({"--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=h", "--store-proxy",
                        "--no-store-proxy"}),
               Catch::Contains("exclude each other"));
}

TEST_CASE("TLS needs to know whom to trust") {
  const auto refused = [](Words more) {
    Words words{"--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=h"};
    words.insert(words.end(), more.begin(), more.end());
    return refusal(words);
  };
  REQUIRE_THAT(refused({"--tls-cert=c.pem", "--tls-key=c.key"}), Catch::Contains("need --tls-ca"));
  REQUIRE_THAT(refusal({"--nnodes=2", "--rdzv-backend=etcd", "--rdzv-endpoint=h", "--tls-ca=ca.pem"}),
               Catch::Contains("use a secret"));
  REQUIRE_THAT(refused({"--tls-ca=/no/such/file"}), Catch::Contains("--tls-ca /no/such/file"));
  REQUIRE(planned({"--nnodes=2", "--store-proxy"}).elastic.store_proxy);
}

TEST_CASE("signals are named with or without SIG") {
  REQUIRE(planned({"--signals-to-handle=TERM, SIGUSR1"}).signals == std::vector<int>{SIGTERM, SIGUSR1});
}

TEST_CASE("a program that is nowhere is told apart from one that cannot run") {
  const Environment environment{{"PATH", "/usr/bin:/bin"}};
  const auto missing = [&](const char* name) {
    const auto options = parse_options(Words{name}, environment);
    return plan_job(*options, environment, machine(0)).error();
  };
  REQUIRE(missing("no-such-program-here").code == ErrorCode::kNotFound);
  REQUIRE(missing("./no-such.py").code == ErrorCode::kNotFound);
  REQUIRE(missing("/etc").code == ErrorCode::kUnsupported);
}

TEST_CASE("a node of several without the program has a job, in which it only tells the others") {
  const Environment environment{{"PATH", "/usr/bin:/bin"}};
  const auto job_of = [&](Words words) {
    return plan_job(*parse_options(words, environment), environment, machine(0));
  };
  const auto missing = job_of({"--nnodes=2", "--master-addr=node0", "./no-such.py"});
  REQUIRE_OK(missing);
  REQUIRE(missing->unhealthy == "cannot run the program: ./no-such.py: no such file");
  REQUIRE(missing->unhealthy_code == kExitNotFound);
  REQUIRE(missing->command.short_name() == "no-such.py");
  REQUIRE(job_of({"--nnodes=2", "--master-addr=node0", "/etc"})->unhealthy_code == kExitNotExecutable);
  REQUIRE_FALSE(job_of({"--nnodes=2", "--master-addr=node0", "--dry-run", "./no-such.py"}));
}

TEST_CASE(
    "a script without execute permission is Python's to run unless its first line names another "
    "interpreter") {
  const test::TemporaryDirectory directory;
  const auto error_of = [&](const std::string& name, const std::string& text) -> std::string {
    const std::string path = directory.path() + "/" + name;
    std::ofstream(path) << text;
    const auto job = plan_job(*parse_options(Words{path}, {}),
                              {{"PATH", "/usr/bin:/bin"}, {"PYTHON_EXEC", "sh"}}, machine(0));
    return job ? "" : job.error().message.substr(path.size());
  };
  REQUIRE(error_of("run", "#!/bin/bash\necho\n") ==
          ": a script (#!/bin/bash) without execute permission; chmod +x it");
  REQUIRE(error_of("elf", std::string("\177ELF\2\1\1\0\0", 9)) ==
          ": a program without execute permission; chmod +x it");
  for (const char* name : {"python", "python3", "run.py"})
    REQUIRE(error_of(name, name[0] == 'r' ? "#!/usr/bin/env -S uv run\n"
                                          : "#!/usr/bin/env " + std::string(name) + "\n")
                .empty());
  REQUIRE(error_of("plain", "import os\n").empty());
  REQUIRE(error_of("empty", "").empty());
}

TEST_CASE("options about local ranks that the node does not have are said, and do not end the job") {
  const auto warnings = [](const char* option) { return planned({"--nproc-per-node=2", option}).warnings; };
  const std::string there = ", but the 2 workers of this node have local ranks 0 to 1";
  REQUIRE(warnings("--local-ranks-filter=0,2,7") ==
          Words{"--local-ranks-filter names local ranks 2,7" + there});
  REQUIRE(warnings("--redirects=0:1,5:3") == Words{"--redirects names local rank 5" + there});
  REQUIRE(warnings("--tee=2:1") == Words{"--tee names local rank 2" + there});
  for (const char* fits : {"--tee=3", "--redirects=1:3", "--local-ranks-filter=1"})
    REQUIRE(warnings(fits).empty());
}

TEST_CASE("a master address that is no host's is refused at once") {
  REQUIRE(refusal({"--nnodes=2", "--master-addr=node 0"}) ==
          "--master-addr=node 0: not a name or address of a host; its port is --master-port's");
  for (const char* wrong : {"http://node0", "node0,node1", "node0/1", "node0?"})
    REQUIRE_THAT(refusal({"--nnodes=2", std::string("--master-addr=") + wrong}),
                 Catch::Contains("not a name or address"));
  for (const char* right : {"fe80::1", "fe80::1%eth0", "node_0.example.org"})
    REQUIRE(planned({"--nnodes=2", std::string("--master-addr=") + right}).master_addr == right);
}

TEST_CASE("one worker per GPU where there are GPUs, else one") {
  REQUIRE(planned({}, 8).local_world_size == 8);
  REQUIRE(planned({}, 0).local_world_size == 1);
  REQUIRE(planned({"--nproc-per-node=auto"}, 4).local_world_size == 4);
  REQUIRE(planned({"--nproc-per-node=auto"}, 0).local_world_size == 16);
  REQUIRE(planned({"--nproc-per-node=gpu"}, 4).local_world_size == 4);
  REQUIRE(planned({"--nproc-per-node=cpu"}, 4).local_world_size == 16);
  REQUIRE(planned({"--nproc-per-node=3"}, 4).local_world_size == 3);
  REQUIRE_THAT(refusal({"--nproc-per-node=gpu"}), Catch::Contains("no GPU"));
}

TEST_CASE("redirects are one digit for all or a list by local rank") {
  REQUIRE(parse_stream_selection("3")->of(5) == Std::kBoth);
  const auto map = parse_stream_selection("0:1,12:2,0:3");
  REQUIRE_OK(map);
  REQUIRE(map->of(0) == Std::kBoth);
  REQUIRE(map->of(12) == Std::kErr);
  REQUIRE(map->of(1) == Std::kNone);
  REQUIRE(parse_stream_selection("0")->none());
  for (const char* bad : {"", "4", "0:4", "0:1,", "a:1", "-1:1", "0 :1", "1:", ":1"})
    REQUIRE_FALSE(parse_stream_selection(bad));
}

TEST_CASE("endpoints are host, host:port or a bracketed address") {
  REQUIRE(parse_endpoint(" h:1 ") == Endpoint{"h", 1});
  REQUIRE(parse_endpoint("h") == Endpoint{"h", -1});
  REQUIRE(parse_endpoint("[::1]:9") == Endpoint{"::1", 9});
  REQUIRE(parse_endpoint("") == Endpoint{});
  for (const char* bad : {"h:x", "h:70000", ":1", "a b:1", "[::1"}) REQUIRE_FALSE(parse_endpoint(bad));
}

TEST_CASE("etcd's members and its keys of --rdzv-conf are planned") {
  const Job job = planned({"--nnodes=2", "--rdzv-backend=etcd", "--rdzv-endpoint=h, [::1]:2380 ,10.0.0.4",
                           "--rdzv-conf=etcd_prefix=/site/jobs/,lease_ttl=20"});
  REQUIRE(job.mode == RendezvousMode::kElastic);
  REQUIRE(job.elastic.etcd);
  using Member = muster::etcd::Settings::Member;
  REQUIRE(job.elastic.etcd->members ==
          std::vector<Member>{Member{"h", 2379}, Member{"::1", 2380}, Member{"10.0.0.4", 2379}});
  REQUIRE(job.elastic.etcd->prefix == "/site/jobs");
  REQUIRE(job.elastic.etcd->lease_ttl_seconds == 20);
  REQUIRE(job.elastic.reconnect_for == std::chrono::seconds(80));
  REQUIRE_FALSE(planned({"--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=h"}).elastic.etcd);
}

TEST_CASE("what does not go with etcd, or only with it, is refused") {
  const auto over_etcd = [](const std::string& conf) {
    return refusal({"--nnodes=2", "--rdzv-backend=etcd", "--rdzv-endpoint=h", "--rdzv-conf=" + conf});
  };
  REQUIRE_THAT(over_etcd("is_host=1"), Catch::Contains("elect"));
  REQUIRE_THAT(over_etcd("lease_ttl=1"), Catch::Contains("lease_ttl"));
  REQUIRE_THAT(over_etcd("etcd_prefix=//"), Catch::Contains("etcd_prefix"));
  REQUIRE_THAT(over_etcd("protocol=ftp"), Catch::Contains("http or https"));
  REQUIRE_THAT(over_etcd("protocol=https"), Catch::Contains("needs cacert"));
  REQUIRE_THAT(over_etcd("cacert=x"), Catch::Contains("need protocol=https"));
  REQUIRE_THAT(over_etcd("protocol=https,cacert=x,cert=y"), Catch::Contains("belong together"));
  REQUIRE_THAT(
      refusal({"--nnodes=2", "--rdzv-backend=muster", "--rdzv-endpoint=h", "--rdzv-conf=lease_ttl=9"}),
      Catch::Contains("lease_ttl is a key of --rdzv-backend=etcd"));
  REQUIRE_THAT(refusal({"--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=h,i"}),
               Catch::Contains("several endpoints are for --rdzv-backend=etcd"));
}
