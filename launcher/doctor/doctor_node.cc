// SPDX-License-Identifier: Apache-2.0
#include "launcher/doctor/doctor_node.h"

#include <cstdio>
#include <fcntl.h>
#include <memory>
#include <optional>
#include <sys/mman.h>
#include <unistd.h>

#include <fmt/format.h>

#include <muster/tcp_store.h>

#include "launcher/cli/option_table.h"
#include "launcher/doctor/doctor_text.h"
#include "launcher/doctor/probe.h"
#include "launcher/job/exit_status.h"
#include "launcher/network/interfaces.h"
#include "rendezvous/base/env_contract.h"
#include "rendezvous/base/syscall.h"
#include "rendezvous/protocol/auth.h"

namespace muster::launcher {

namespace {

constexpr Millis kStoreTimeout{60'000};  // for what every node does at once
constexpr std::size_t kMostTried = 8;    // addresses of a node

/// argv[1] of such a worker; the fields of DoctorArguments follow.
constexpr std::string_view kDoctorNode = "--muster-doctor-node";

struct DoctorArguments {
  std::string host;        // this node's name, for people
  std::string local_addr;  // --local-addr
  std::string interface;   // --iface
  std::string verdict;     // file that gets it: "0" or "1"
};

struct Place {
  std::size_t rank = 0;
  std::size_t nodes = 0;
  std::string host;
  std::uint16_t port = 0;
};

Result<Place> place_in(const Environment& environment) {
  Place out;
  MUSTER_TRY(const auto nodes, require_integer(environment, env::kWorldSize, 1, 1'000'000));
  MUSTER_TRY(const auto rank, require_integer(environment, env::kRank, 0, nodes - 1));
  MUSTER_TRY(const auto port, require_integer(environment, env::kMasterPort, 1, 65535));
  out.nodes = static_cast<std::size_t>(nodes);
  out.rank = static_cast<std::size_t>(rank);
  out.port = static_cast<std::uint16_t>(port);
  out.host = lookup(environment, env::kMasterAddr).value_or("");
  return out;
}

int complain(std::string_view text) {
  std::fprintf(stderr, "muster doctor: %.*s\n", static_cast<int>(text.size()), text.data());
  return kExitSystem;
}

DoctorNode offer(const DoctorArguments& arguments, const std::vector<InterfaceAddress>& own) {
  DoctorNode out;
  out.host = arguments.host;
  out.token = auth::random_secret_text().substr(0, kTokenBytes);
  for (const std::string& address : offered_addresses(own, {arguments.local_addr, arguments.interface, {}}))
    if (out.addresses.empty() || !address.starts_with("169.254."))
      out.addresses.push_back({address, interface_of(own, address)});
  if (out.addresses.size() > kMostTried) out.addresses.resize(kMostTried);
  return out;
}

// Each node begins with another one, so that not all of them try the same at once.
DoctorRow try_all(const std::vector<DoctorNode>& nodes, std::size_t rank,
                  const std::vector<InterfaceAddress>& own) {
  std::vector<Target> targets;
  std::vector<std::size_t> of;
  for (std::size_t i = 1; i < nodes.size(); ++i) {
    const std::size_t to = (rank + i) % nodes.size();
    std::vector<std::string> offered;
    for (const OfferedAddress& each : nodes[to].addresses) offered.push_back(each.address);
    std::vector<std::string> tried = addresses_to_try(offered, own);
    if (tried.size() > kMostTried) tried.resize(kMostTried);
    for (std::string& address : tried) {
      targets.push_back({std::move(address), nodes[to].port, nodes[to].token});
      of.push_back(to);
    }
  }
  const std::vector<Reach> found = probe(targets, {}, own);
  DoctorRow out(nodes.size());
  for (std::size_t i = 0; i < found.size(); ++i) out[of[i]].tried.push_back(found[i]);
  return out;
}

// Without looking further: the longest that a node may need for its tries.
Millis probe_timeout(const std::vector<DoctorNode>& nodes) {
  const ProbeLimits limits;
  std::size_t tries = 0;
  for (const DoctorNode& node : nodes) tries += node.addresses.size();
  const auto rounds = static_cast<std::int64_t>(tries / limits.at_once + 1);
  return kStoreTimeout + rounds * 3 * limits.step;
}

std::string key(std::string_view what, std::size_t rank) {
  return fmt::format("muster/doctor/{}/{}", what, rank);
}

Result<bool> examine(const Place& place, const DoctorArguments& arguments) {
  TcpStoreOptions options;
  options.host = place.host;
  options.port = place.port;
  options.timeout = kStoreTimeout;
  MUSTER_TRY(const std::unique_ptr<TcpStore> store, TcpStore::connect(options));
  const std::vector<InterfaceAddress> own = interface_addresses();
  DoctorNode self = offer(arguments, own);
  MUSTER_TRY(const EchoServer server, EchoServer::open(self.token));
  self.port = server.port;
  MUSTER_OK(store->set(key("node", place.rank), to_archive(self)));

  std::vector<std::string> keys(place.nodes);
  for (std::size_t i = 0; i < place.nodes; ++i) keys[i] = key("node", i);
  MUSTER_TRY(const std::vector<std::string> texts, store->multi_get(keys));
  std::vector<DoctorNode> nodes;
  for (const std::string& text : texts) {
    MUSTER_TRY(DoctorNode node, decode_finding<DoctorNode>(text));
    nodes.push_back(std::move(node));
  }
  MUSTER_OK(store->set(key("row", place.rank), to_archive(try_all(nodes, place.rank, own))));

  const Millis timeout = probe_timeout(nodes);
  const std::string verdict = "muster/doctor/verdict";
  if (place.rank != 0) {
    MUSTER_TRY(const std::string text, store->get(verdict, timeout + kStoreTimeout));
    return text == "0";
  }
  std::vector<std::optional<DoctorRow>> rows(place.nodes);
  const Instant deadline = SteadyClock::now() + timeout;
  for (std::size_t i = 0; i < place.nodes; ++i) {
    const auto text = store->get(key("row", i), time_left(deadline, SteadyClock::now()) + Millis(1));
    if (!text && text.error().code != ErrorCode::kTimeout) return fail(text.error());
    if (!text) continue;
    MUSTER_TRY(rows[i], decode_finding<DoctorRow>(*text));
    if (rows[i]->size() != place.nodes) return fail(ErrorCode::kProtocol, "a row of another number of nodes");
  }
  const Diagnosis diagnosis = diagnose(nodes, rows);
  std::fputs(diagnosis.text.c_str(), stdout);
  (void)std::fflush(stdout);
  MUSTER_OK(store->set(verdict, diagnosis.healthy ? "0" : "1"));
  return diagnosis.healthy;
}

}  // namespace

bool is_doctor_node(const std::vector<std::string>& arguments) {
  return arguments.size() == 5 && arguments[0] == kDoctorNode;
}

int run_doctor_node(const std::vector<std::string>& arguments, const Environment& environment) {
  const auto place = place_in(environment);
  if (!place) return complain("only muster --doctor starts this: " + place.error().message);
  const DoctorArguments given{arguments[1], arguments[2], arguments[3], arguments[4]};
  const auto healthy = examine(*place, given);
  if (!healthy) return complain(healthy.error().message);
  const UniqueFd file(::open(given.verdict.c_str(), O_WRONLY | O_CLOEXEC));
  if (!file || !write_all(file.get(), *healthy ? "0" : "1"))
    return complain(errno_error("the verdict for the agent", errno).message);
  return kExitOk;
}

Options doctor_options(const Options& given, const std::string& own_program) {
  Options out = with_traits(given, kForDoctor);
  out.doctor = true;
  // A job of the same name may be running at the same coordinator.
  if (out.rdzv_id) *out.rdzv_id += ".doctor";
  out.hang_timeout = "off";
  out.nproc_per_node = "1";
  out.no_python = true;
  out.program = own_program;
  return out;
}

Result<DoctorVerdict> DoctorVerdict::open() {
  DoctorVerdict out;
  out.file_.reset(::memfd_create("muster-doctor", MFD_CLOEXEC));
  if (!out.file_) return fail(errno_error("memfd_create", errno));
  return out;
}

void DoctorVerdict::instruct(const Options& options, Job& job) const {
  auto& words = job.command.arguments;
  words.insert(words.end(), {std::string(kDoctorNode), job.host, options.local_addr, options.iface,
                             fmt::format("/proc/{}/fd/{}", ::getpid(), file_.get())});
  job.command.title = "muster --doctor";
  job.elastic.store_proxy = job.mode == RendezvousMode::kElastic;
}

int DoctorVerdict::status_after(int status) const {
  if (status != kExitOk) return status;
  char verdict = '?';
  if (::pread(file_.get(), &verdict, 1, 0) != 1) return kExitSystem;
  return verdict == '0' ? kExitOk : kExitPreflight;
}

}  // namespace muster::launcher
