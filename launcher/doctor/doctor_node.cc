// SPDX-License-Identifier: Apache-2.0
#include "launcher/doctor/doctor_node.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fcntl.h>
#include <future>
#include <memory>
#include <netdb.h>
#include <netinet/in.h>
#include <optional>
#include <sys/socket.h>
#include <thread>
#include <unistd.h>

#include <fmt/format.h>

#include <muster/tcp_store.h>

#include "launcher/doctor/doctor_text.h"
#include "launcher/doctor/echo_server.h"
#include "launcher/doctor/probe.h"
#include "launcher/job/exit_status.h"
#include "launcher/network/interfaces.h"
#include "rendezvous/base/env_contract.h"
#include "rendezvous/base/syscall.h"
#include "rendezvous/base/unique_fd.h"
#include "rendezvous/protocol/auth.h"

namespace muster::launcher {
namespace {

constexpr Millis kStoreTimeout{60'000};  // for what every node does at once
constexpr Millis kNameTimeout{8'000};    // for a name service that does not answer
constexpr std::size_t kNameThreads = 8;
constexpr std::size_t kMostTried = 8;  // addresses of a node
constexpr std::size_t kMostNames = 8;  // addresses that a name has

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

bool is_link_local(std::string_view address) {
  return address.starts_with("fe80:") || address.starts_with("169.254.");
}

DoctorNode offer(const DoctorArguments& arguments, const std::vector<InterfaceAddress>& own) {
  DoctorNode out;
  out.host = arguments.host;
  out.token = auth::random_secret_text().substr(0, kTokenBytes);
  for (const std::string& address : offered_addresses(own, {arguments.local_addr, arguments.interface, {}}))
    if (!is_link_local(address) || out.addresses.empty())
      out.addresses.push_back({address, interface_of(own, address)});
  if (out.addresses.size() > kMostTried) out.addresses.resize(kMostTried);
  return out;
}

Path resolve(const std::string& name) {
  Path out;
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  if (const int error = ::getaddrinfo(name.c_str(), nullptr, &hints, &list); error != 0) {
    out.name_error = ::gai_strerror(error);
    return out;
  }
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(list, &::freeaddrinfo);
  for (const addrinfo* at = list; at != nullptr && out.named_as.size() < kMostNames; at = at->ai_next) {
    char text[NI_MAXHOST] = {};
    if (::getnameinfo(at->ai_addr, at->ai_addrlen, text, sizeof text, nullptr, 0, NI_NUMERICHOST) == 0)
      out.named_as.emplace_back(text);
  }
  return out;
}

// By a few threads of their own: the resolver cannot be interrupted, and one that hangs is left behind. The
// process ends by _Exit for that reason.
std::vector<std::future<Path>> look_up(const std::vector<DoctorNode>& nodes) {
  std::vector<std::future<Path>> out;
  std::vector<std::vector<std::packaged_task<Path()>>> shares(kNameThreads);
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    auto& task = shares[i % kNameThreads].emplace_back([name = nodes[i].host] { return resolve(name); });
    out.push_back(task.get_future());
  }
  for (auto& share : shares)
    std::thread([share = std::move(share)]() mutable {
      for (auto& task : share) task();
    }).detach();
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
  std::vector<std::future<Path>> names = look_up(nodes);
  const Instant names_until = SteadyClock::now() + kNameTimeout;
  const std::vector<Reach> found = probe(targets, {}, own);
  DoctorRow out(nodes.size());
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    if (names[i].wait_until(names_until) == std::future_status::ready)
      out[i] = names[i].get();
    else
      out[i].name_error = "no answer of the name service";
  }
  for (std::size_t i = 0; i < found.size(); ++i) out[of[i]].tried.push_back(found[i]);
  out[rank] = {};
  return out;
}

// Without looking further: the longest that a node may need for its tries.
Millis probe_timeout(const std::vector<DoctorNode>& nodes) {
  const ProbeLimits limits;
  std::size_t tries = 0;
  for (const DoctorNode& node : nodes) tries += node.addresses.size();
  const auto rounds = static_cast<std::int64_t>(tries / limits.at_once + 1);
  return kStoreTimeout + rounds * (limits.connect + limits.talk + limits.big);
}

std::string key(std::string_view what, std::size_t rank) {
  return fmt::format("muster/doctor/{}/{}", what, rank);
}

std::vector<std::string> keys(std::string_view what, std::size_t nodes) {
  std::vector<std::string> out;
  out.reserve(nodes);
  for (std::size_t i = 0; i < nodes; ++i) out.push_back(key(what, i));
  return out;
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
  self.port = server.port();
  MUSTER_OK(store->set(key("node", place.rank), encode_finding(self)));

  MUSTER_TRY(const std::vector<std::string> texts, store->multi_get(keys("node", place.nodes)));
  std::vector<DoctorNode> nodes;
  for (const std::string& text : texts) {
    MUSTER_TRY(DoctorNode node, decode_finding<DoctorNode>(text));
    nodes.push_back(std::move(node));
  }
  MUSTER_OK(store->set(key("row", place.rank), encode_finding(try_all(nodes, place.rank, own))));

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

std::vector<std::string> DoctorArguments::to_argv() const {
  return {std::string(kDoctorNode), host, local_addr, interface, verdict};
}

bool is_doctor_node(const std::vector<std::string>& arguments) {
  return arguments.size() == 5 && arguments[0] == kDoctorNode;
}

int run_doctor_node(const std::vector<std::string>& arguments, const Environment& environment) {
  const auto place = place_in(environment);
  if (!place) return complain("only muster --doctor starts this: " + place.error().message);
  const DoctorArguments given{arguments[1], arguments[2], arguments[3], arguments[4]};
  const auto healthy = examine(*place, given);
  int status = kExitOk;
  if (!healthy) {
    status = complain(healthy.error().message);
  } else {
    const UniqueFd file(::open(given.verdict.c_str(), O_WRONLY | O_CLOEXEC));
    if (!file || !write_all(file.get(), *healthy ? "0" : "1"))
      status = complain(errno_error("the verdict for the agent", errno).message);
  }
  (void)std::fflush(nullptr);
  std::_Exit(status);  // threads of the name service may still be there
}

}  // namespace muster::launcher
