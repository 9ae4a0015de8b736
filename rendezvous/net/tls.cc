// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/net/tls.h"

#include <cerrno>
#include <sys/stat.h>
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

struct Free {
  void operator()(SSL_CTX* context) const { ::SSL_CTX_free(context); }
  void operator()(SSL* ssl) const { ::SSL_free(ssl); }
};

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

Result<void> check_key_file(const std::string& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) return fail(errno_error("--tls-key " + path, errno));
  if (S_ISREG(info.st_mode) && (info.st_mode & 077) != 0)
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("--tls-key {} is open to others than its owner (mode {:o}); try: chmod 600 {}",
                            path, info.st_mode & 0777, path));
  return {};
}

}  // namespace

struct Context::Impl {
  std::unique_ptr<SSL_CTX, Free> ssl;
  bool is_server = false;
  bool asks = false;

  static Result<std::shared_ptr<Impl>> make(const Files& files, bool is_server) {
    auto out = std::make_shared<Impl>();
    out->is_server = is_server;
    ::ERR_clear_error();
    out->ssl.reset(::SSL_CTX_new(is_server ? ::TLS_server_method() : ::TLS_client_method()));
    MUSTER_CHECK(out->ssl != nullptr, "OpenSSL makes no TLS context");
    SSL_CTX* ssl = out->ssl.get();
    ::SSL_CTX_set_min_proto_version(ssl, TLS1_3_VERSION);
    // An idle connection costs 10 KiB with, 50 KiB without.
    ::SSL_CTX_set_mode(ssl, SSL_MODE_RELEASE_BUFFERS);
    // Each connection begins anew: no state of past ones.
    ::SSL_CTX_set_num_tickets(ssl, 0);
    ::SSL_CTX_set_session_cache_mode(ssl, SSL_SESS_CACHE_OFF);

    if (files.cert.empty() != files.key.empty())
      return fail(ErrorCode::kInvalidArgument, "--tls-cert and --tls-key go together");
    if (!files.cert.empty()) {
      MUSTER_OK(check_key_file(files.key));
      if (::SSL_CTX_use_certificate_chain_file(ssl, files.cert.c_str()) != 1)
        return fail(file_error("--tls-cert", files.cert, "certificate"));
      if (::SSL_CTX_use_PrivateKey_file(ssl, files.key.c_str(), SSL_FILETYPE_PEM) != 1)
        return fail(file_error("--tls-key", files.key, "private key of --tls-cert"));
    }
    if (!files.ca.empty()) {
      if (::SSL_CTX_load_verify_file(ssl, files.ca.c_str()) != 1)
        return fail(file_error("--tls-ca", files.ca, "certificate"));
      ::SSL_CTX_set_verify(ssl, SSL_VERIFY_PEER | (is_server ? SSL_VERIFY_FAIL_IF_NO_PEER_CERT : 0), nullptr);
      out->asks = is_server;
    }
    return out;
  }
};

Result<Context> Context::server(const Files& files) {
  if (files.cert.empty()) return fail(ErrorCode::kInvalidArgument, "TLS needs --tls-cert and --tls-key");
  MUSTER_TRY(auto impl, Impl::make(files, true));
  return Context(std::move(impl));
}

Result<Context> Context::client(const Files& files) {
  if (files.ca.empty())
    return fail(ErrorCode::kInvalidArgument,
                "TLS needs --tls-ca, the certificate that the coordinator's is signed by");
  MUSTER_TRY(auto impl, Impl::make(files, false));
  return Context(std::move(impl));
}

bool Context::asks_for_certificate() const {
  return impl_->asks;
}

SSL_CTX* Context::share() const {
  ::SSL_CTX_up_ref(impl_->ssl.get());
  return impl_->ssl.get();
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

struct Stream::Impl {
  std::shared_ptr<Context::Impl> context;
  std::unique_ptr<SSL, Free> ssl;
  BIO* in = nullptr;   // the SSL's
  BIO* out = nullptr;  // the SSL's
  std::string unsent;  // plain, until established
  Error failure;
  bool failed = false;

  // Moves what the machine wants to send.
  void collect(std::string& to) {
    char* data = nullptr;
    const long size = BIO_get_mem_data(out, &data);
    if (size > 0) to.append(data, static_cast<std::size_t>(size));
    (void)BIO_reset(out);
  }

  Error broken() {
    failed = true;
    failure.code = ErrorCode::kMismatch;
    const std::string reason = last_error();
    failure.message = "TLS: " + rejected_certificate(ssl.get()).value_or(reason);
    return failure;
  }

  // Empty-handed is fine: more has to come.
  bool wants_more(int result) {
    const int error = ::SSL_get_error(ssl.get(), result);
    return error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE || error == SSL_ERROR_ZERO_RETURN;
  }

  Result<void> shake_hands() {
    if (::SSL_is_init_finished(ssl.get()) == 1) return {};
    ::ERR_clear_error();
    const int result = ::SSL_do_handshake(ssl.get());
    if (result == 1 || wants_more(result)) return {};
    return fail(broken());
  }

  Result<void> write(std::string_view plain) {
    while (!plain.empty()) {
      ::ERR_clear_error();
      std::size_t written = 0;
      // To memory: all of it, or never.
      if (::SSL_write_ex(ssl.get(), plain.data(), plain.size(), &written) != 1) return fail(broken());
      plain.remove_prefix(written);
    }
    return {};
  }
};

Stream::Stream(const Context& context, const std::string& server_name) : impl_(std::make_unique<Impl>()) {
  impl_->context = context.impl_;
  impl_->ssl.reset(::SSL_new(context.impl_->ssl.get()));
  MUSTER_CHECK(impl_->ssl != nullptr, "OpenSSL makes no TLS connection");
  SSL* ssl = impl_->ssl.get();
  impl_->in = ::BIO_new(::BIO_s_mem());
  impl_->out = ::BIO_new(::BIO_s_mem());
  MUSTER_CHECK(impl_->in != nullptr && impl_->out != nullptr, "OpenSSL makes no buffers");
  ::SSL_set_bio(ssl, impl_->in, impl_->out);
  if (context.impl_->is_server) {
    ::SSL_set_accept_state(ssl);
    return;
  }
  ::SSL_set_connect_state(ssl);
  expect_server(ssl, server_name);
}

Stream::~Stream() = default;
Stream::Stream(Stream&&) noexcept = default;
Stream& Stream::operator=(Stream&&) noexcept = default;

bool Stream::established() const {
  return !impl_->failed && ::SSL_is_init_finished(impl_->ssl.get()) == 1;
}

std::string Stream::channel_binding() const {
  if (!established()) return {};
  constexpr std::string_view kLabel = "EXPORTER-Channel-Binding";
  std::string out(32, '\0');
  MUSTER_CHECK(::SSL_export_keying_material(impl_->ssl.get(), reinterpret_cast<unsigned char*>(out.data()),
                                            out.size(), kLabel.data(), kLabel.size(), nullptr, 0, 0) == 1,
               "OpenSSL exports no keying material");
  return out;
}

Result<void> Stream::start(std::string& out) {
  std::string nothing;
  return receive({}, nothing, out);
}

Result<void> Stream::receive(std::string_view bytes, std::string& plain, std::string& out) {
  Impl& impl = *impl_;
  if (impl.failed) return fail(impl.failure);
  if (!bytes.empty())
    MUSTER_CHECK(
        ::BIO_write(impl.in, bytes.data(), static_cast<int>(bytes.size())) == static_cast<int>(bytes.size()),
        "OpenSSL takes no bytes");
  auto shaken = impl.shake_hands();
  if (shaken && established()) {
    if (!impl.unsent.empty()) shaken = impl.write(std::exchange(impl.unsent, {}));
    char block[16384];
    while (shaken) {
      ::ERR_clear_error();
      std::size_t size = 0;
      const int result = ::SSL_read_ex(impl.ssl.get(), block, sizeof block, &size);
      if (result == 1) {
        plain.append(block, size);
        continue;
      }
      if (!impl.wants_more(result)) shaken = fail(impl.broken());
      break;
    }
  }
  impl.collect(out);
  return shaken;
}

Result<void> Stream::send(std::string_view plain, std::string& out) {
  Impl& impl = *impl_;
  if (impl.failed) return fail(impl.failure);
  if (!established()) {
    impl.unsent += plain;
    return {};
  }
  auto written = impl.write(plain);
  impl.collect(out);
  return written;
}

}  // namespace muster::tls
