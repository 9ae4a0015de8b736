// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/net/tls.h"

#include <cerrno>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509_vfy.h>
#include <openssl/x509v3.h>

#include <muster/check.h>

#include "rendezvous/base/syscall.h"

namespace muster::tls {
namespace {

// The last key that this thread has read. Not by the callback's own argument: Asio deletes what that points
// to.
thread_local bool is_encrypted = false;

// The last error of this thread, and none left for the next.
std::string last_error() {
  const unsigned long number = ::ERR_peek_last_error();
  ::ERR_clear_error();
  if (number == 0) return "no reason given";
  const char* text = ::ERR_reason_error_string(number);
  return text != nullptr ? text : fmt::format("error {:x}", number);
}

Error file_error(std::string_view option, const std::string& path, std::string_view wanted) {
  const std::string reason =
      fmt::format("{} {}: no {} in PEM format: {}", option, path, wanted, last_error());
  const bool readable = ::access(path.c_str(), R_OK) == 0;
  return {ErrorCode::kInvalidArgument,
          readable ? reason : errno_error(fmt::format("{} {}", option, path), errno).message};
}

// Moves what the machine wants to send.
void collect(const SSL* ssl, std::string& to) {
  BIO* out = ::SSL_get_wbio(ssl);
  char* data = nullptr;
  const long size = BIO_get_mem_data(out, &data);
  if (size > 0) to.append(data, static_cast<std::size_t>(size));
  (void)BIO_reset(out);
}

// Empty-handed is fine: more has to come.
bool wants_more(const SSL* ssl, int result) {
  const int error = ::SSL_get_error(ssl, result);
  return error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE || error == SSL_ERROR_ZERO_RETURN;
}

}  // namespace

Result<Context> Context::make(const Files& files, bool is_server) {
  ::ERR_clear_error();
  const std::shared_ptr<SSL_CTX> out(::SSL_CTX_new(is_server ? ::TLS_server_method() : ::TLS_client_method()),
                                     ::SSL_CTX_free);
  SSL_CTX* ssl = out.get();
  MUSTER_CHECK(ssl != nullptr, "OpenSSL makes no TLS context");
  ::SSL_CTX_set_min_proto_version(ssl, TLS1_3_VERSION);
  // An idle connection costs 10 KiB with, 50 KiB without.
  ::SSL_CTX_set_mode(ssl, SSL_MODE_RELEASE_BUFFERS);
  // Each connection begins anew: no state of past ones.
  ::SSL_CTX_set_num_tickets(ssl, 0);
  ::SSL_CTX_set_session_cache_mode(ssl, SSL_SESS_CACHE_OFF);
  // OpenSSL would ask for a key's pass phrase on the terminal, and wait.
  is_encrypted = false;
  ::SSL_CTX_set_default_passwd_cb(ssl, [](char*, int, int, void*) {
    is_encrypted = true;
    return -1;
  });

  const auto& [cert, key, ca] = files.names;
  if (files.cert.empty() != files.key.empty())
    return fail(ErrorCode::kInvalidArgument, fmt::format("{} and {} go together", cert, key));
  if (!files.cert.empty()) {
    MUSTER_OK(check_private(key, files.key));
    if (::SSL_CTX_use_certificate_chain_file(ssl, files.cert.c_str()) != 1)
      return fail(file_error(cert, files.cert, "certificate"));
    if (::SSL_CTX_use_PrivateKey_file(ssl, files.key.c_str(), SSL_FILETYPE_PEM) != 1)
      return is_encrypted ? fail(ErrorCode::kInvalidArgument,
                                 fmt::format("{} {} has a pass phrase, for which nobody is asked; give one "
                                             "without, which its owner alone may read",
                                             key, files.key))
                          : fail(file_error(key, files.key, fmt::format("private key of {}", cert)));
  }
  if (!files.ca.empty()) {
    if (::SSL_CTX_load_verify_file(ssl, files.ca.c_str()) != 1)
      return fail(file_error(ca, files.ca, "certificate"));
    ::SSL_CTX_set_verify(ssl, SSL_VERIFY_PEER | (is_server ? SSL_VERIFY_FAIL_IF_NO_PEER_CERT : 0), nullptr);
  }
  return Context(out);
}

Result<Context> Context::server(const Files& files) {
  if (files.cert.empty()) return fail(ErrorCode::kInvalidArgument, "TLS needs --tls-cert and --tls-key");
  return make(files, true);
}

Result<Context> Context::client(const Files& files) {
  if (files.ca.empty())
    return fail(ErrorCode::kInvalidArgument,
                "TLS needs --tls-ca, the certificate that the coordinator's is signed by");
  return make(files, false);
}

bool Context::asks_for_certificate() const {
  return (::SSL_CTX_get_verify_mode(context_.get()) & SSL_VERIFY_FAIL_IF_NO_PEER_CERT) != 0;
}

SSL_CTX* Context::share() const {
  ::SSL_CTX_up_ref(context_.get());
  return context_.get();
}

void expect_server(SSL* ssl, const std::string& server_name) {
  // An address is looked for among the certificate's addresses, a name among its names.
  X509_VERIFY_PARAM* expected = ::SSL_get0_param(ssl);
  if (::X509_VERIFY_PARAM_set1_ip_asc(expected, server_name.c_str()) == 1) return;
  ::ERR_clear_error();
  MUSTER_CHECK(::X509_VERIFY_PARAM_set1_host(expected, server_name.data(), server_name.size()) == 1,
               "OpenSSL takes no name");
  (void)SSL_set_tlsext_host_name(ssl, server_name.c_str());
}

std::optional<std::string> rejected_certificate(const SSL* ssl) {
  const long verdict = ::SSL_get_verify_result(ssl);
  if (verdict == X509_V_OK || (::SSL_get_verify_mode(ssl) & SSL_VERIFY_PEER) == 0) return std::nullopt;
  return fmt::format("its certificate is not accepted: {}", ::X509_verify_cert_error_string(verdict));
}

Stream::Stream(const Context& context, const std::string& server_name)
    : ssl_(::SSL_new(context.context_.get()), ::SSL_free) {
  SSL* ssl = ssl_.get();
  MUSTER_CHECK(ssl != nullptr, "OpenSSL makes no TLS connection");
  BIO* in = ::BIO_new(::BIO_s_mem());
  BIO* out = ::BIO_new(::BIO_s_mem());
  MUSTER_CHECK(in != nullptr && out != nullptr, "OpenSSL makes no buffers");
  ::SSL_set_bio(ssl, in, out);
  if (::SSL_is_server(ssl) == 1) {
    ::SSL_set_accept_state(ssl);
    return;
  }
  ::SSL_set_connect_state(ssl);
  expect_server(ssl, server_name);
}

bool Stream::established() const {
  return !failure_ && ::SSL_is_init_finished(ssl_.get()) == 1;
}

Error Stream::broken() {
  const std::string reason = last_error();
  failure_ = Error{ErrorCode::kMismatch, "TLS: " + rejected_certificate(ssl_.get()).value_or(reason)};
  return *failure_;
}

std::string Stream::channel_binding() const {
  if (!established()) return {};
  constexpr std::string_view kLabel = "EXPORTER-Channel-Binding";
  std::string out(32, '\0');
  MUSTER_CHECK(::SSL_export_keying_material(ssl_.get(), reinterpret_cast<unsigned char*>(out.data()),
                                            out.size(), kLabel.data(), kLabel.size(), nullptr, 0, 0) == 1,
               "OpenSSL exports no keying material");
  return out;
}

Result<void> Stream::start(std::string& out) {
  std::string nothing;
  return receive({}, nothing, out);
}

Result<void> Stream::receive(std::string_view bytes, std::string& plain, std::string& out) {
  if (failure_) return fail(*failure_);
  SSL* ssl = ssl_.get();
  const int size = static_cast<int>(bytes.size());
  if (size > 0)
    MUSTER_CHECK(::BIO_write(::SSL_get_rbio(ssl), bytes.data(), size) == size, "OpenSSL takes no bytes");
  auto taken = take(plain);
  collect(ssl, out);
  return taken;
}

// What has come, as far as it goes.
Result<void> Stream::take(std::string& plain) {
  SSL* ssl = ssl_.get();
  ::ERR_clear_error();
  if (const int result = established() ? 1 : ::SSL_do_handshake(ssl); result != 1 && !wants_more(ssl, result))
    return fail(broken());
  if (!established()) return {};
  MUSTER_OK(write(std::exchange(unsent_, {})));
  char block[16384];
  while (true) {
    ::ERR_clear_error();
    std::size_t size = 0;
    if (const int result = ::SSL_read_ex(ssl, block, sizeof block, &size); result == 1)
      plain.append(block, size);
    else if (wants_more(ssl, result))
      return {};
    else
      return fail(broken());
  }
}

Result<void> Stream::write(std::string_view plain) {
  while (!plain.empty()) {
    ::ERR_clear_error();
    std::size_t written = 0;
    // To memory: all of it, or never.
    if (::SSL_write_ex(ssl_.get(), plain.data(), plain.size(), &written) != 1) return fail(broken());
    plain.remove_prefix(written);
  }
  return {};
}

Result<void> Stream::send(std::string_view plain, std::string& out) {
  if (failure_) return fail(*failure_);
  if (!established()) {
    unsent_ += plain;
    return {};
  }
  auto written = write(plain);
  collect(ssl_.get(), out);
  return written;
}

}  // namespace muster::tls
