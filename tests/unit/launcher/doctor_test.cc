// SPDX-License-Identifier: Apache-2.0
// muster --doctor: its values, its diagnosis, and its tries over loopback.
#include <string>
#include <vector>

#include "launcher/doctor/doctor_node.h"
#include "launcher/doctor/doctor_text.h"
#include "launcher/doctor/probe.h"
#include "launcher/network/interfaces.h"
#include "tests/support/catch.h"
#include "tests/support/fieldwise.h"

using namespace muster;
using namespace muster::launcher;
using namespace std::chrono_literals;
using Outcome = Reach::Outcome;

namespace {

constexpr std::string_view kToken = "0123456789abcdef";

Path works(std::string address, std::int64_t us = 250) {
  return {{{std::move(address), "eth0", Outcome::kWorks, us, {}}}};
}
Path fails(std::string address, Outcome outcome) {
  return {{{std::move(address), {}, outcome, -1, {}}}};
}

struct Mesh {
  std::vector<DoctorNode> nodes;
  std::vector<std::optional<DoctorRow>> rows;

  explicit Mesh(std::size_t count) : nodes(count), rows(count) {
    for (std::size_t i = 0; i < count; ++i) {
      nodes[i].host = "n" + std::to_string(i);
      nodes[i].addresses = {{address(i), "eth0"}};
    }
    for (std::size_t i = 0; i < count; ++i) {
      rows[i].emplace();
      for (std::size_t j = 0; j < count; ++j) rows[i]->push_back(i == j ? Path{} : works(address(j)));
    }
  }
  static std::string address(std::size_t node) { return "10.0.0." + std::to_string(node + 1); }
};

bool says(const Diagnosis& diagnosis, const std::string& text) {
  return diagnosis.text.find(text) != std::string::npos;
}

}  // namespace

TEST_CASE("a mesh in which all paths work is a table and a good verdict") {
  const Mesh mesh(3);
  const Diagnosis out = diagnose(mesh.nodes, mesh.rows);
  REQUIRE(out.healthy);
  REQUIRE(out.text ==
          "from \\ to  n0            n1            n2\n"
          "n0         -             0.25 ms eth0  0.25 ms eth0\n"
          "n1         0.25 ms eth0  -             0.25 ms eth0\n"
          "n2         0.25 ms eth0  0.25 ms eth0  -\n"
          "verdict: 3 nodes, every node reaches every other\n");
}

TEST_CASE("each path that does not work is named with its cause and a hint") {
  const auto [outcome, cell, hint] = GENERATE(table<Outcome, std::string, std::string>(
      {{Outcome::kTimeout, "timeout", "a firewall drops"},
       {Outcome::kRejected, "refused", "rejects"},
       {Outcome::kNoRoute, "no route", "--iface=NAME"},
       {Outcome::kOtherHost, "another", "several have"},
       {Outcome::kBigLost, "MTU", "ip link set dev NAME mtu 1500"}}));
  Mesh mesh(3);
  mesh.rows[1]->at(2) = fails("10.0.0.3", outcome);
  const Diagnosis out = diagnose(mesh.nodes, mesh.rows);
  REQUIRE_FALSE(out.healthy);
  REQUIRE(says(out, "n1 does not reach n2: 10.0.0.3 (eth0): " + cell + "\n"));
  REQUIRE(says(out, hint));
  REQUIRE(says(out, "verdict: 3 nodes, 1 of 6 paths do not work\n"));
}

TEST_CASE("a node of which nothing was heard makes the verdict bad") {
  Mesh mesh(2);
  mesh.rows[1].reset();
  const Diagnosis out = diagnose(mesh.nodes, mesh.rows);
  REQUIRE_FALSE(out.healthy);
  REQUIRE(says(out, "n1: its result is missing"));
  REQUIRE(says(out, "n1         ?"));
}

TEST_CASE("an address that leads nowhere is a remark where another works, with the interface to choose") {
  Mesh mesh(2);
  mesh.nodes[1].addresses.push_back({"192.168.9.1", "ib0"});
  mesh.rows[0]->at(1).tried.push_back({"192.168.9.1", {}, Outcome::kTimeout, -1, {}});
  const Diagnosis out = diagnose(mesh.nodes, mesh.rows);
  REQUIRE(out.healthy);
  REQUIRE(says(out, "remark: 192.168.9.1 (ib0) of n1 is not reached by 1 of 1 nodes"));
  REQUIRE(says(out, "hint: every node reaches every other by --iface=eth0\n"));
}

TEST_CASE("with many nodes there is no table, and long lists are cut") {
  Mesh mesh(60);
  for (std::size_t i = 1; i < 60; ++i) mesh.rows[i]->at(0) = fails("10.0.0.1", Outcome::kRejected);
  const Diagnosis out = diagnose(mesh.nodes, mesh.rows);
  REQUIRE(out.text.starts_with("n1 does not reach n0: 10.0.0.1 (eth0): refused\n"));
  REQUIRE(says(out, "\nand 19 more\n"));
  REQUIRE(says(out, "verdict: 60 nodes, 59 of 3540 paths do not work\n"));
}

TEST_CASE("what nodes send each other survives the store, and what is no such thing is refused") {
  const DoctorNode node{"n1", std::string(kToken), 4711, {{"10.0.0.1", "eth0"}, {"fd00::1", ""}}};
  DoctorRow row = {{}, works("10.0.0.2", 1500), fails("10.0.0.3", Outcome::kOther)};
  row[2].tried[0].text = "Permission denied";
  const std::string node_bytes = to_archive(node), row_bytes = to_archive(row);
  REQUIRE(decode_finding<DoctorNode>(node_bytes).value() == node);
  REQUIRE(decode_finding<DoctorRow>(row_bytes).value() == row);
  for (std::size_t size = 0; size < row_bytes.size(); ++size)
    REQUIRE_FALSE(decode_finding<DoctorRow>(row_bytes.substr(0, size)));
  REQUIRE_FALSE(decode_finding<DoctorNode>(node_bytes + "x"));
}

TEST_CASE("what a node says of itself does not control the terminal") {
  Mesh mesh(2);
  mesh.nodes[1].host = "n\x1b[2J";
  REQUIRE(says(diagnose(mesh.nodes, mesh.rows), "n?[2J"));
}

TEST_CASE("a probe finds who answers, who is another and where nobody listens, all at once") {
  const auto server = EchoServer::open(std::string(kToken));
  REQUIRE_OK(server);
  std::uint16_t closed = 0;
  {
    const auto gone = EchoServer::open(std::string(kToken));
    REQUIRE_OK(gone);
    closed = gone->port;
  }
  const std::vector<InterfaceAddress> own = {{"lo", "127.0.0.1"}};
  std::vector<Target> targets(40, {"127.0.0.1", server->port, std::string(kToken)});
  targets.push_back({"127.0.0.1", server->port, "fedcba9876543210"});
  targets.push_back({"127.0.0.1", closed, std::string(kToken)});
  targets.push_back({"not an address", closed, std::string(kToken)});
  ProbeLimits limits{.at_once = 8, .step = 20s};
  const std::vector<Reach> out = probe(targets, limits, own);
  REQUIRE(out.size() == 43);
  for (std::size_t i = 0; i < 40; ++i) {
    REQUIRE(out[i].outcome == Outcome::kWorks);
    REQUIRE(out[i].round_trip_us >= 0);
    REQUIRE(out[i].interface == "lo");
  }
  REQUIRE(out[40].outcome == Outcome::kOtherHost);
  REQUIRE(out[41].outcome == Outcome::kRejected);
  REQUIRE(out[42].outcome == Outcome::kOther);
}

TEST_CASE("the doctor keeps what is said of the rendezvous and nothing of the workers") {
  const std::vector<std::string> words = {"--doctor",
                                          "--nnodes=2:4",
                                          "--rdzv-backend=c10d",
                                          "--rdzv-endpoint=h:1",
                                          "--rdzv-id=train",
                                          "--iface=eth0",
                                          "--nproc-per-node=8",
                                          "--max-restarts=3",
                                          "-t",
                                          "3",
                                          "train.py",
                                          "--lr=1"};
  const auto given = parse_options(words, {});
  REQUIRE_OK(given);
  const Options out = doctor_options(*given, "/opt/muster");
  REQUIRE(out.nnodes == "2:4");
  REQUIRE(out.rdzv_endpoint == "h:1");
  REQUIRE(out.rdzv_id == "train.doctor");
  REQUIRE(out.iface == "eth0");
  REQUIRE(out.nproc_per_node == "1");
  REQUIRE(out.max_restarts == 0);
  REQUIRE(out.tee == "0");
  REQUIRE(out.program == "/opt/muster");
  REQUIRE(out.arguments.empty());
  REQUIRE(out.given.contains("rdzv-endpoint"));
  REQUIRE_FALSE(out.given.contains("max-restarts"));
  REQUIRE_OK(parse_options(std::vector<std::string>{"--doctor"}, {}));  // a program need not be named
}
