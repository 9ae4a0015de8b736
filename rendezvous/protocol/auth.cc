// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/protocol/auth.h"

#include <algorithm>
#include <array>
#include <initializer_list>
#include <sys/random.h>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
// SHA256_Init() and its like are called deprecated since OpenSSL 3, in favour of the providers.
#define OPENSSL_SUPPRESS_DEPRECATED
#include <openssl/crypto.h>
#include <openssl/sha.h>

#include <muster/check.h>

#include "rendezvous/base/env_contract.h"
#include "rendezvous/base/fail.h"
#include "rendezvous/base/syscall.h"

namespace muster::auth {
namespace {

constexpr std::string_view kAgentLabel = "muster control 2 agent";
constexpr std::string_view kCoordinatorLabel = "muster control 2 coordinator";

void wipe(std::string& bytes) {
  if (!bytes.empty()) OPENSSL_cleanse(bytes.data(), bytes.size());
  bytes.clear();
}

/// The functions below OpenSSL's providers: those take 1.3 MB of an agent's memory to begin with.
void sha256(std::initializer_list<std::string_view> pieces, unsigned char* out) {
  SHA256_CTX context;
  bool ok = SHA256_Init(&context) == 1;
  for (const std::string_view piece : pieces)
    ok = ok && SHA256_Update(&context, piece.data(), piece.size()) == 1;
  MUSTER_CHECK(ok && SHA256_Final(out, &context) == 1, "SHA-256 failed");
  OPENSSL_cleanse(&context, sizeof context);
}

/// In time that does not depend on where they differ.
bool equal(const control::Mac& a, const control::Mac& b) {
  return CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

/// The kernel's own: OpenSSL's generator costs an agent without a secret 1 MB of its code and 1.5 ms to
/// begin. Up to 256 bytes come whole.
void random_bytes(void* out, std::size_t size) {
  const ssize_t n = retry_eintr([&] { return ::getrandom(out, size, 0); });
  MUSTER_CHECK(n == static_cast<ssize_t>(size), "the system gives no random bytes");
}

}  // namespace

// kMinBytes is more than a std::string keeps within itself: only its pointer moves, no byte stays behind.
Secret::Secret(Secret&& other) noexcept {
  bytes_.swap(other.bytes_);
}
Secret& Secret::operator=(Secret&& other) noexcept {
  if (this != &other) {
    wipe(bytes_);
    bytes_.swap(other.bytes_);
  }
  return *this;
}
Secret::~Secret() {
  wipe(bytes_);
}

Result<Secret> Secret::from_bytes(std::string_view bytes) {
  if (bytes.size() < kMinBytes)
    return invalid("the secret has {} bytes, it needs {}; try: openssl rand -hex 32", bytes.size(),
                   kMinBytes);
  return Secret(bytes);
}

Result<Secret> Secret::from_file(const std::string& path) {
  MUSTER_OK(check_private("secret file", path));
  MUSTER_TRY(std::string text, read_file(path, 4096));
  constexpr std::string_view kBlank = " \t\r\n";
  std::string_view bytes(text);
  bytes.remove_prefix(std::min(bytes.find_first_not_of(kBlank), bytes.size()));
  bytes = bytes.substr(0, bytes.find_last_not_of(kBlank) + 1);
  auto secret = from_bytes(bytes);
  wipe(text);
  if (!secret) return fail("secret file " + path, std::move(secret).error());
  return secret;
}

Result<std::optional<Secret>> find_secret(const std::string& file, const Environment& environment) {
  const auto given = file.empty() ? lookup(environment, env::kSecret) : std::nullopt;
  if (file.empty() && (!given || given->empty())) return std::optional<Secret>{};
  auto secret = file.empty() ? Secret::from_bytes(*given) : Secret::from_file(file);
  if (!secret)
    return invalid("{}: {}", file.empty() ? env::kSecret : "--secret-file", secret.error().message);
  return std::optional(*std::move(secret));
}

// HMAC of RFC 2104 with SHA-256.
control::Mac Secret::mac(std::string_view label, std::string_view transcript) const {
  std::array<unsigned char, SHA256_CBLOCK> key{};
  if (bytes_.size() <= key.size())
    std::copy(bytes_.begin(), bytes_.end(), key.begin());
  else
    sha256({bytes_}, key.data());
  const auto padded = [&key](unsigned char with) {
    std::string out;
    for (const unsigned char byte : key) out.push_back(static_cast<char>(byte ^ with));
    return out;
  };
  std::string inner = padded(0x36), outer = padded(0x5c);
  control::Mac out{};
  static_assert(out.size() == SHA256_DIGEST_LENGTH);
  sha256({inner, label, std::string_view("\0", 1), transcript}, out.data());
  const control::Mac digest = out;
  sha256({outer, {reinterpret_cast<const char*>(digest.data()), digest.size()}}, out.data());
  OPENSSL_cleanse(key.data(), key.size());
  wipe(inner);
  wipe(outer);
  return out;
}

control::Nonce random_nonce() {
  control::Nonce out;
  random_bytes(out.data(), out.size());
  return out;
}

std::string random_secret_text() {
  return fmt::format("{:02x}", fmt::join(random_nonce(), ""));
}

membership::NodeId random_node_id() {
  membership::NodeId out;
  random_bytes(&out.high, sizeof out.high);
  random_bytes(&out.low, sizeof out.low);
  return out;
}

// Its length, so that no transcript without one is another's with one.
void ServerHandshake::preamble(const control::Preamble& theirs, const control::Preamble& mine,
                               std::string_view binding) {
  control::encode(theirs, transcript_);
  control::encode(mine, transcript_);
  transcript_.push_back(static_cast<char>(binding.size()));
  transcript_ += binding;
  bound_ = !binding.empty();
}

control::Challenge ServerHandshake::start(const control::Start& start, std::optional<Secret> secret) {
  secret_ = std::move(secret);
  const control::Challenge out{secret_.has_value(), nonce_};
  control::encode(control::Message(start), transcript_);
  control::encode(control::Message(out), transcript_);
  return out;
}

Result<control::Mac> ServerHandshake::proof(const control::Proof& proof) {
  if (!secret_) return control::Mac{};
  if (!equal(proof.mac, secret_->mac(kAgentLabel, transcript_)))
    return fail(ErrorCode::kMismatch,
                std::string(kOtherSecret) + (bound_ ? ", or its TLS connection is relayed" : ""));
  return secret_->mac(kCoordinatorLabel, transcript_);
}

control::Start ClientHandshake::start(const control::Preamble& mine, std::string job, std::string host) {
  mine_ = mine;
  start_ = {std::move(job), std::move(host), nonce_};
  return start_;
}

void ClientHandshake::preamble(const control::Preamble& theirs, std::string_view binding) {
  control::encode(mine_, transcript_);
  control::encode(theirs, transcript_);
  transcript_.push_back(static_cast<char>(binding.size()));
  transcript_ += binding;
}

Result<control::Proof> ClientHandshake::challenge(const control::Challenge& challenge) {
  if (secret_ && !challenge.has_secret)
    return fail(ErrorCode::kMismatch, "the coordinator has no secret for this job, this agent has one");
  if (!secret_ && challenge.has_secret)
    return fail(ErrorCode::kMismatch,
                "the coordinator asks for the job's secret; give it with MUSTER_SECRET or --secret-file");
  control::encode(control::Message(start_), transcript_);
  control::encode(control::Message(challenge), transcript_);
  if (!secret_) return control::Proof{};
  return control::Proof{secret_->mac(kAgentLabel, transcript_)};
}

Result<void> ClientHandshake::welcome(const control::Welcome& welcome) const {
  if (!secret_ || equal(welcome.mac, secret_->mac(kCoordinatorLabel, transcript_))) return {};
  return fail(ErrorCode::kMismatch,
              "the coordinator does not know the job's secret; is it another job's, or an impostor?");
}

}  // namespace muster::auth
