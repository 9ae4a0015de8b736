// SPDX-License-Identifier: Apache-2.0
// TLS between agents and the coordinator, with certificates made by the openssl command.
#include "rendezvous/net/tls.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <future>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <sys/stat.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/write.hpp>
#include <fmt/format.h>
#include <openssl/evp.h>
#include <openssl/pem.h>

#include "rendezvous/store/wire.h"
#include "tests/support/catch.h"
#include "tests/support/cluster.h"
#include "tests/support/musterd.h"
#include "tests/support/raw_client.h"
#include "tests/support/temporary_directory.h"

using namespace muster;
using namespace muster::test;
using namespace std::chrono_literals;

namespace {

// An authority and what it signed: "server" for 127.0.0.1 and localhost, "elsewhere" for another name,
// "agent", "thief" for 127.0.0.1 once more; "unknown" is signed by nobody that anybody trusts.
class Certificates {
 public:
  Certificates() {
    openssl(
        "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=ca -keyout ca.key "
        "-out ca.pem");
    openssl(
        "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=unknown "
        "-addext subjectAltName=IP:127.0.0.1 -keyout unknown.key -out unknown.pem");
    sign("server", "IP:127.0.0.1,DNS:localhost");
    sign("elsewhere", "DNS:elsewhere.example");
    sign("agent", "DNS:agent");
    sign("thief", "IP:127.0.0.1");
  }

  [[nodiscard]] std::string path(const std::string& name) const { return folder_.path() + "/" + name; }
  [[nodiscard]] tls::Files files(const std::string& who, const std::string& ca) const {
    return {who.empty() ? "" : path(who + ".pem"), who.empty() ? "" : path(who + ".key"),
            ca.empty() ? "" : path(ca + ".pem")};
  }
  [[nodiscard]] tls::Context server(const std::string& who = "server", const std::string& ca = "") const {
    auto out = tls::Context::server(files(who, ca));
    REQUIRE_OK(out);
    return *std::move(out);
  }
  [[nodiscard]] tls::Context client(const std::string& who = "", const std::string& ca = "ca") const {
    auto out = tls::Context::client(files(who, ca));
    REQUIRE_OK(out);
    return *std::move(out);
  }

 private:
  void openssl(const std::string& arguments) const {
    const std::string command = fmt::format("cd {} && openssl {} 2>openssl.log", folder_.path(), arguments);
    REQUIRE(std::system(command.c_str()) == 0);
  }
  void sign(const std::string& who, const std::string& names) const {
    openssl(fmt::format(
        "req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN={0} -addext subjectAltName={1} "
        "-keyout {0}.key -out {0}.csr",
        who, names));
    openssl(
        fmt::format("x509 -req -in {0}.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 "
                    "-copy_extensions copy -out {0}.pem",
                    who));
  }

  TemporaryDirectory folder_;
};

// Carries bytes between two streams, in pieces, until neither has more to say. The first error ends it.
struct Wire {
  tls::Stream client;
  tls::Stream server;
  std::string to_server;
  std::string to_client;
  std::string client_got;
  std::string server_got;
  std::minstd_rand random{5};

  Result<void> run() {
    while (!to_server.empty() || !to_client.empty()) {
      if (auto done = step(server, to_server, server_got, to_client); !done) return done;
      if (auto done = step(client, to_client, client_got, to_server); !done) return done;
    }
    return {};
  }
  Result<void> step(tls::Stream& to, std::string& bytes, std::string& got, std::string& answer) {
    const std::size_t size = std::min<std::size_t>(bytes.size(), 1 + random() % 700);
    const std::string piece = bytes.substr(0, size);
    bytes.erase(0, size);
    return to.receive(piece, got, answer);
  }
};

struct TlsCluster : Cluster {
  TlsCluster(std::optional<auth::Secret> with, tls::Context tls)
      : Cluster(std::move(with), options(std::move(tls))) {}
  static net::ControlServerOptions options(tls::Context tls) {
    net::ControlServerOptions out;
    out.tls = std::move(tls);
    return out;
  }
};

// Somebody in the middle who has a certificate that agents trust: he ends their TLS, begins one of his own
// with the coordinator, and passes on every word.
class Middleman {
 public:
  Middleman(Cluster& cluster, tls::Context as_server, tls::Context as_client)
      : cluster_(cluster),
        acceptor_(cluster.loop, tcp::endpoint(boost::asio::ip::address_v4::loopback(), 0)),
        near_{tcp::socket(cluster.loop), tls::Stream(as_server), {}, {}},
        far_{tcp::socket(cluster.loop), tls::Stream(as_client, "127.0.0.1"), {}, {}} {
    acceptor_.async_accept(near_.socket, [this](const auto& error) {
      if (error) return;
      far_.socket.connect({boost::asio::ip::address_v4::loopback(), cluster_.server->port()});
      (void)far_.stream.start(far_.out);
      send(far_);
      read(near_, far_);
      read(far_, near_);
    });
  }
  [[nodiscard]] std::uint16_t port() const { return acceptor_.local_endpoint().port(); }
  [[nodiscard]] std::size_t num_relayed() const { return num_relayed_; }

 private:
  using tcp = boost::asio::ip::tcp;
  struct End {
    tcp::socket socket;
    tls::Stream stream;
    std::string out;
    std::string buffer;
  };

  void read(End& from, End& to) {
    from.buffer.resize(4096);
    from.socket.async_read_some(boost::asio::buffer(from.buffer), [&](const auto& error, std::size_t size) {
      std::string plain;
      if (error || !from.stream.receive(from.buffer.substr(0, size), plain, from.out)) {
        boost::system::error_code ignored;
        to.socket.shutdown(tcp::socket::shutdown_send, ignored);
        return;
      }
      num_relayed_ += plain.size();
      (void)to.stream.send(plain, to.out);
      send(from);
      send(to);
      read(from, to);
    });
  }
  // A few hundred bytes: the socket takes them.
  static void send(End& to) {
    boost::system::error_code ignored;
    boost::asio::write(to.socket, boost::asio::buffer(to.out), ignored);
    to.out.clear();
  }

  Cluster& cluster_;
  tcp::acceptor acceptor_;
  End near_;
  End far_;
  std::size_t num_relayed_ = 0;
};

// Why the agent's first try failed; empty: it was let in.
std::string outcome(Cluster& cluster, std::optional<tls::Context> tls, std::optional<auth::Secret> with = {},
                    std::uint16_t port = 0) {
  Agent agent(cluster, "n1", nodes(1), std::move(with));
  if (port != 0) agent.options.port = port;
  agent.options.tls = std::move(tls);
  agent.options.connect_timeout = 20s;
  agent.start(cluster);
  cluster.wait([&] { return agent.lost || !agent.tries.empty() || !agent.assignments.empty(); });
  if (!agent.tries.empty()) return agent.tries[0];
  if (!agent.lost) return {};
  return std::string(to_string(agent.lost->code)) + ": " + agent.lost->message;
}

}  // namespace

TEST_CASE("two TLS streams carry bytes both ways, however they are split") {
  const Certificates certificates;
  Wire wire{
      tls::Stream(certificates.client(), "127.0.0.1"), tls::Stream(certificates.server()), {}, {}, {}, {}};
  REQUIRE_OK(wire.client.start(wire.to_server));
  // Before the server is known nothing of it leaves.
  REQUIRE_OK(wire.client.send("the first words", wire.to_server));
  REQUIRE(wire.to_server.find("words") == std::string::npos);
  REQUIRE(wire.to_server[0] == tls::kFirstByte);
  REQUIRE_OK(wire.run());
  REQUIRE(wire.client.established());
  REQUIRE(wire.server.established());
  REQUIRE(wire.server_got == "the first words");
  const std::string large(300'000, 'x');
  REQUIRE_OK(wire.server.send(large, wire.to_client));
  REQUIRE_OK(wire.client.send(large + "y", wire.to_server));
  REQUIRE(wire.to_client.find("xxxxxxxx") == std::string::npos);
  REQUIRE_OK(wire.run());
  REQUIRE(wire.client_got == large);
  REQUIRE(wire.server_got == "the first words" + large + "y");
}

TEST_CASE("a byte changed on its way ends a TLS stream, for good") {
  const Certificates certificates;
  Wire wire{
      tls::Stream(certificates.client(), "localhost"), tls::Stream(certificates.server()), {}, {}, {}, {}};
  REQUIRE_OK(wire.client.start(wire.to_server));
  REQUIRE_OK(wire.run());
  REQUIRE_OK(wire.client.send("stop the job", wire.to_server));
  const std::string recorded = wire.to_server;
  wire.to_server[10] ^= 1;
  const auto result = wire.run();
  REQUIRE_FALSE(result);
  REQUIRE_THAT(result.error().message, Catch::StartsWith("TLS: "));
  std::string nothing;
  REQUIRE(wire.server.receive(recorded, nothing, nothing).error().message == result.error().message);
}

TEST_CASE("agents join over TLS, with and without a certificate and a secret of their own") {
  const Certificates certificates;
  {
    TlsCluster cluster({}, certificates.server());
    REQUIRE(outcome(cluster, certificates.client()).empty());
  }
  TlsCluster cluster(secret("0123456789abcdef"), certificates.server("server", "ca"));
  REQUIRE(outcome(cluster, certificates.client("agent"), secret("0123456789abcdef")).empty());
}

TEST_CASE("an agent trusts only a coordinator whose certificate is signed and for its name") {
  const Certificates certificates;
  TlsCluster unsigned_one({}, certificates.server("unknown"));
  REQUIRE_THAT(outcome(unsigned_one, certificates.client()),
               Catch::Contains("its certificate is not accepted"));
  TlsCluster other_name({}, certificates.server("elsewhere"));
  REQUIRE_THAT(outcome(other_name, certificates.client()), Catch::Contains("IP address mismatch"));
}

TEST_CASE("a coordinator that asks for certificates lets in those alone that its authority signed") {
  const Certificates certificates;
  TlsCluster cluster({}, certificates.server("server", "ca"));
  REQUIRE_THAT(outcome(cluster, certificates.client()), Catch::Contains("certificate required"));
  REQUIRE_THAT(outcome(cluster, certificates.client("unknown")), Catch::Contains("TLS: "));
  REQUIRE(outcome(cluster, certificates.client("agent")).empty());
}

TEST_CASE("who relays between two TLS connections is no way to the coordinator, though agents trust him") {
  const Certificates certificates;
  {
    // Without a secret nothing tells him from the coordinator: he relays indeed.
    TlsCluster cluster({}, certificates.server());
    Middleman middle(cluster, certificates.server("thief"), certificates.client());
    REQUIRE(outcome(cluster, certificates.client(), {}, middle.port()).empty());
    REQUIRE(middle.num_relayed() > 100);
  }
  const auto known = secret("0123456789abcdef");
  TlsCluster cluster(known, certificates.server());
  Middleman middle(cluster, certificates.server("thief"), certificates.client());
  REQUIRE_THAT(outcome(cluster, certificates.client(), known, middle.port()),
               Catch::Contains("its TLS connection is relayed"));
  REQUIRE(middle.num_relayed() > 100);
  REQUIRE(cluster.server->coordinator().stats().num_jobs == 0);
  REQUIRE(outcome(cluster, certificates.client(), known).empty());
}

TEST_CASE("both ends of a TLS connection know bytes that are of this one alone") {
  const Certificates certificates;
  std::set<std::string> seen;
  for (int i = 0; i < 2; ++i) {
    Wire wire{
        tls::Stream(certificates.client(), "127.0.0.1"), tls::Stream(certificates.server()), {}, {}, {}, {}};
    REQUIRE(wire.client.channel_binding().empty());
    REQUIRE_OK(wire.client.start(wire.to_server));
    REQUIRE_OK(wire.run());
    REQUIRE(wire.client.channel_binding().size() == 32);
    REQUIRE(wire.client.channel_binding() == wire.server.channel_binding());
    seen.insert(wire.client.channel_binding());
  }
  REQUIRE(seen.size() == 2);
}

TEST_CASE("TLS on one side alone is told as such") {
  const Certificates certificates;
  TlsCluster cluster({}, certificates.server());
  REQUIRE_THAT(outcome(cluster, std::nullopt), Catch::Contains("speaks TLS and the agent does not"));
  Cluster plain;
  REQUIRE_THAT(outcome(plain, certificates.client()), Catch::Contains("does it speak TLS"));
}

TEST_CASE("files for TLS that are missing, do not fit or are readable by others are refused in words") {
  const Certificates certificates;
  const auto refusal = [](const Result<tls::Context>& result) {
    REQUIRE_FALSE(result);
    REQUIRE(result.error().code != ErrorCode::kMismatch);
    return result.error().message;
  };
  REQUIRE_THAT(refusal(tls::Context::server({})), Catch::Contains("--tls-cert"));
  REQUIRE_THAT(refusal(tls::Context::server({certificates.path("server.pem"), "", ""})),
               Catch::Contains("go together"));
  REQUIRE_THAT(
      refusal(tls::Context::server({certificates.path("server.pem"), certificates.path("agent.key"), ""})),
      Catch::EndsWith("no private key of --tls-cert in PEM format: key values mismatch"));
  REQUIRE_THAT(
      refusal(tls::Context::server({certificates.path("none.pem"), certificates.path("agent.key"), ""})),
      Catch::StartsWith("--tls-cert ") && Catch::EndsWith("No such file or directory (ENOENT)"));
  REQUIRE_THAT(
      refusal(tls::Context::server({certificates.path("agent.key"), certificates.path("agent.key"), ""})),
      Catch::StartsWith("--tls-cert ") && Catch::Contains("no certificate in PEM format"));
  REQUIRE_THAT(refusal(tls::Context::client({})), Catch::Contains("--tls-ca"));
  {
    std::FILE* const in = std::fopen(certificates.path("server.key").c_str(), "r");
    std::FILE* const out = std::fopen(certificates.path("locked.key").c_str(), "w");
    REQUIRE((in != nullptr && out != nullptr));
    EVP_PKEY* const key = ::PEM_read_PrivateKey(in, nullptr, nullptr, nullptr);
    REQUIRE(::PEM_write_PKCS8PrivateKey(out, key, ::EVP_aes_256_cbc(), "words", 5, nullptr, nullptr) == 1);
    ::EVP_PKEY_free(key);
    std::fclose(in);
    std::fclose(out);
    REQUIRE(::chmod(certificates.path("locked.key").c_str(), 0600) == 0);
  }
  REQUIRE_THAT(
      refusal(tls::Context::server({certificates.path("server.pem"), certificates.path("locked.key"), ""})),
      Catch::StartsWith("--tls-key ") && Catch::Contains("has a pass phrase, for which nobody is asked"));
  REQUIRE_THAT(refusal(tls::Context::client({"", "", "none.pem", {"cert", "key", "cacert"}})),
               Catch::StartsWith("cacert none.pem: No such file"));
  REQUIRE(::chmod(certificates.path("server.key").c_str(), 0644) == 0);
  REQUIRE_THAT(refusal(tls::Context::server(certificates.files("server", ""))), Catch::Contains("chmod 600"));
}

TEST_CASE("musterd speaks TLS to agents and TCPStore to programs on one port") {
  const Certificates certificates;
  Musterd daemon =
      Musterd::listening({"--tls-cert", certificates.path("server.pem"), "--tls-key",
                          certificates.path("server.key"), "--tls-ca", certificates.path("ca.pem")});
  RawClient store = RawClient::modern(daemon.port());
  REQUIRE(store.alive());
  Cluster nobody;  // for its loop
  Agent agent(nobody, "n1", nodes(1));
  agent.options.port = daemon.port();
  agent.options.tls = certificates.client("agent");
  agent.start(nobody);
  nobody.wait([&] { return agent.lost || !agent.assignments.empty(); });
  REQUIRE_FALSE(agent.lost);
  // Half a TLS hello, and one that is none.
  RawClient half(daemon.port());
  half.send(std::string_view("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 11));
  RawClient garbage(daemon.port());
  garbage.send("\x16 garbage, garbage, garbage");
  REQUIRE(garbage.ended());
  REQUIRE_THAT(daemon.wait_for_line("closed"), Catch::Contains("TLS: "));
  REQUIRE(store.alive());
  agent.client->send_until_over(control::Finished{0});
  nobody.wait([&] { return agent.closed.has_value(); });
}

TEST_CASE("a TLS handshake that takes long keeps nobody else waiting") {
  const Certificates certificates;
  std::promise<void> released;
  const std::shared_future<void> release = released.get_future().share();
  std::atomic<bool> is_slow = false, is_held = false;
  std::atomic<bool> by_loop = false;
  net::ControlServerOptions options;
  options.tls = certificates.server();
  options.heartbeat_interval = 20ms;
  options.before_tls_handshake = [&, loop = std::this_thread::get_id()] {
    if (std::this_thread::get_id() == loop) by_loop = true;
    if (!is_slow) return;
    is_held = true;
    release.wait_for(kTimeout);
  };
  Cluster cluster({}, options);
  Agent first(cluster, "n1", nodes(1));
  first.options.tls = certificates.client();
  first.start(cluster);
  cluster.wait([&] { return !first.assignments.empty(); });

  is_slow = true;
  Agent second(cluster, "n2", nodes(1), {}, "other");
  second.options.tls = certificates.client();
  second.start(cluster);
  cluster.wait([&] { return is_held.load(); });
  const auto& coordinator = cluster.server->coordinator();
  const std::uint64_t before = coordinator.stats().num_messages;
  cluster.wait([&] { return coordinator.stats().num_messages >= before + 5; });  // heartbeats of the first
  REQUIRE(second.assignments.empty());
  released.set_value();
  cluster.wait([&] { return !second.assignments.empty(); });
  REQUIRE_FALSE(by_loop);
  REQUIRE_FALSE(first.lost);
}

TEST_CASE("a connection that is closed during its TLS handshake is forgotten") {
  const Certificates certificates;
  std::promise<void> released;
  const std::shared_future<void> release = released.get_future().share();
  std::atomic<int> num_begun = 0;
  net::ControlServerOptions options;
  options.tls = certificates.server();
  options.max_handshakes = 1;
  options.before_tls_handshake = [&] {
    if (num_begun++ == 0) release.wait_for(kTimeout);
  };
  Cluster cluster({}, options);
  RawClient first(cluster.server->port());
  first.send(std::string_view("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 11));
  cluster.wait([&] { return num_begun == 1; });
  // One more than may be unproven: the first is closed while the thread has its stream.
  Agent second(cluster, "n2", nodes(1));
  second.options.tls = certificates.client();
  second.start(cluster);
  cluster.wait([&] { return num_refused(cluster) == 1; });
  REQUIRE(first.ended());
  REQUIRE(num_begun == 1);
  released.set_value();
  cluster.wait([&] { return !second.assignments.empty(); });
  REQUIRE(cluster.server->coordinator().stats().num_open == 1);
  REQUIRE_FALSE(second.lost);
}

TEST_CASE("at SIGHUP musterd reads its certificate again, and keeps the one it has if the new one is bad") {
  namespace fs = std::filesystem;
  const Certificates certificates;
  const auto install = [&](const std::string& who) {
    for (const std::string end : {".pem", ".key"})
      fs::copy_file(certificates.path(who + end), certificates.path("live" + end),
                    fs::copy_options::overwrite_existing);
  };
  install("server");
  Musterd daemon = Musterd::listening({"--tls-cert", certificates.path("live.pem"), "--tls-key",
                                       certificates.path("live.key"), "--log-level", "debug"});
  Cluster nobody;  // for its loop
  std::vector<std::unique_ptr<Agent>> agents;
  // Whether an agent that trusts this authority joins a job of its own.
  const auto joins = [&](const std::string& authority) {
    const std::string name = "job" + std::to_string(agents.size());
    Agent& agent = *agents.emplace_back(std::make_unique<Agent>(nobody, "n1", nodes(1), std::nullopt, name));
    agent.options.port = daemon.port();
    agent.options.tls = certificates.client("", authority);
    agent.start(nobody);
    nobody.wait([&] { return agent.lost || !agent.assignments.empty(); });
    if (agent.lost) REQUIRE_THAT(agent.lost->message, Catch::Contains("certificate is not accepted"));
    return !agent.lost;
  };
  REQUIRE(joins("ca"));
  REQUIRE_FALSE(joins("unknown"));

  install("unknown");
  daemon.signal(SIGHUP);
  (void)daemon.wait_for_line("SIGHUP: secrets and certificates were read again");
  REQUIRE(joins("unknown"));
  REQUIRE_FALSE(joins("ca"));

  REQUIRE(::truncate(certificates.path("live.pem").c_str(), 100) == 0);
  daemon.signal(SIGHUP);
  REQUIRE_THAT(daemon.wait_for_line("are unchanged"), Catch::Contains("--tls-cert"));
  REQUIRE(joins("unknown"));
  // Who has joined stays, whatever the certificate was.
  agents[0]->client->send_until_over(control::Finished{0});
  nobody.wait([&] { return agents[0]->closed.has_value(); });
  daemon.signal(SIGTERM);
  REQUIRE(daemon.finish().first == 0);
}
