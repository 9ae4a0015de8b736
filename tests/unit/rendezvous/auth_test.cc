// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/protocol/auth.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <fmt/format.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include "rendezvous/base/syscall.h"
#include "rendezvous/base/unique_fd.h"
#include "tests/support/catch.h"

using namespace muster;
using namespace muster::auth;
using namespace muster::control;

namespace {

Secret secret(std::string_view text = "0123456789abcdef") {
  return *Secret::from_bytes(text);
}

struct Outcome {
  Result<void> server;
  Result<void> client;
};

// One handshake with fixed nonces; the knobs spoil one thing each.
struct Pair {
  std::optional<Secret> client_secret = secret();
  std::optional<Secret> server_secret = secret();
  Nonce client_nonce{1};
  Nonce server_nonce{2};
  Preamble client_preamble_seen_by_server{};
  std::string job_seen_by_server = "job";
  std::optional<Proof> replayed;
  std::optional<Mac> reflected;

  Outcome run() {
    ClientHandshake client(client_secret, client_nonce);
    ServerHandshake server(server_nonce);
    Start start = client.start({}, "job", "n1");
    start.job = job_seen_by_server;
    server.preamble(client_preamble_seen_by_server, {});
    const Challenge challenge = server.start(start, server_secret);
    client.preamble({});
    auto proof = client.challenge(challenge);
    if (!proof) return {fail(proof.error()), fail(proof.error())};
    const auto mac = server.proof(replayed.value_or(*proof));
    if (!mac) return {fail(mac.error()), {}};
    return {{}, client.welcome({reflected ? *reflected : *mac, 0, ""})};
  }
};

}  // namespace

TEST_CASE("the MAC is HMAC-SHA256 over label, a zero byte and the transcript") {
  // printf 'label\\0transcript' | openssl dgst -sha256 -hmac 0123456789abcdef
  const auto mac = secret().mac("label", "transcript");
  std::string hex;
  for (const auto byte : mac) hex += fmt::format("{:02x}", byte);
  REQUIRE(hex == "9861ebf78c1785a265e7610ff7b120d776b621586c32ac7bd58ebe69965e9193");
}

TEST_CASE("the MAC is what OpenSSL's own HMAC gives, for secrets shorter and longer than a block") {
  for (const std::size_t size : {16, 63, 64, 65, 200}) {
    std::string bytes, text = "label";
    for (std::size_t i = 0; i < size; ++i) bytes.push_back(static_cast<char>(i * 7 + 1));
    text.push_back('\0');
    text += std::string(size * 3, 'x');
    Mac expected{};
    unsigned int length = 0;
    HMAC(EVP_sha256(), bytes.data(), static_cast<int>(bytes.size()),
         reinterpret_cast<const unsigned char*>(text.data()), text.size(), expected.data(), &length);
    CAPTURE(size);
    REQUIRE(length == expected.size());
    REQUIRE(secret(bytes).mac("label", std::string(size * 3, 'x')) == expected);
  }
}

TEST_CASE("two that know the secret accept each other, and two without a secret too") {
  REQUIRE(Pair{}.run().server);
  REQUIRE(Pair{}.run().client);
  Pair open;
  open.client_secret.reset();
  open.server_secret.reset();
  REQUIRE(open.run().client);
}

TEST_CASE("a secret that differs is refused by the side that checks first") {
  Pair pair;
  pair.client_secret = secret("0123456789abcdeX");
  REQUIRE_FALSE(pair.run().server);
}

TEST_CASE("a side without a secret is refused in words") {
  Pair pair;
  pair.client_secret.reset();
  REQUIRE(pair.run().client.error().code == ErrorCode::kMismatch);
  pair = {};
  pair.server_secret.reset();
  REQUIRE(pair.run().client.error().code == ErrorCode::kMismatch);
}

TEST_CASE("a proof is bound to the nonces of both sides, the job and the versions") {
  Pair recorded;
  ClientHandshake client(recorded.client_secret, recorded.client_nonce);
  ServerHandshake server(recorded.server_nonce);
  const Start start = client.start({}, "job", "n1");
  server.preamble({}, {});
  const auto challenge = server.start(start, recorded.server_secret);
  client.preamble({});
  const auto proof = client.challenge(challenge);
  REQUIRE(server.proof(*proof));

  Pair again;
  again.replayed = *proof;
  REQUIRE(again.run().server);  // the same in everything
  again.server_nonce = {3};
  REQUIRE_FALSE(again.run().server);
  again.server_nonce = {2};
  again.client_nonce = {9};
  REQUIRE_FALSE(again.run().server);
  again = {};
  again.job_seen_by_server = "another";
  REQUIRE_FALSE(again.run().server);
  again = {};
  again.client_preamble_seen_by_server = {0, 1};
  REQUIRE_FALSE(again.run().server);
}

TEST_CASE("an agent's own proof sent back to it proves nothing") {
  Pair pair;
  ClientHandshake client(pair.client_secret, pair.client_nonce);
  (void)client.start({}, "job", "n1");
  client.preamble({});
  const auto proof = client.challenge({true, pair.server_nonce});
  REQUIRE_OK(proof);
  REQUIRE_FALSE(client.welcome({proof->mac, 0, ""}));
  REQUIRE_FALSE(client.welcome({{}, 0, ""}));
}

TEST_CASE("a short secret is refused without being repeated") {
  const auto result = Secret::from_bytes("hunter2");
  REQUIRE_FALSE(result);
  REQUIRE(result.error().message.find("hunter2") == std::string::npos);
}

TEST_CASE("a secret file must be its owner's alone, and blanks around it do not count") {
  const std::string path = "/tmp/muster_secret_" + random_secret_text();
  {
    const UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
    REQUIRE(fd);
    REQUIRE_OK(write_all(fd.get(), " 0123456789abcdef\n"));
  }
  const auto result = Secret::from_file(path);
  REQUIRE_OK(result);
  REQUIRE(result->mac("a", "b") == secret().mac("a", "b"));
  REQUIRE(::chmod(path.c_str(), 0640) == 0);
  const auto open = Secret::from_file(path);
  ::unlink(path.c_str());
  REQUIRE_FALSE(open);
  REQUIRE(open.error().message.find("chmod 600") != std::string::npos);
  REQUIRE_FALSE(Secret::from_file(path));
}

TEST_CASE("random values do not repeat") {
  REQUIRE(random_nonce() != random_nonce());
  REQUIRE(random_node_id() != random_node_id());
  REQUIRE(random_secret_text().size() == 64);
}
