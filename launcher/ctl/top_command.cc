// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <exception>
#include <poll.h>
#include <unistd.h>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http/empty_body.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/string_body.hpp>
#include <boost/beast/http/write.hpp>
#include <fmt/format.h>

#include "launcher/ctl/commands.h"
#include "launcher/ctl/job_view.h"
#include "launcher/job/exit_status.h"
#include "launcher/text/line_splitter.h"
#include "launcher/text/seconds_text.h"
#include "launcher/text/usage_error.h"
#include "rendezvous/base/fail.h"
#include "rendezvous/base/text.h"
#include "rendezvous/net/awaitable.h"
#include "rendezvous/net/dial.h"
#include "rendezvous/status/page_access.h"
#include "rendezvous/status/status_server.h"

namespace muster::launcher {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;

using net::kTuple;
constexpr std::uint32_t kMaxHeadBytes = 16384;
constexpr std::size_t kMaxBodyBytes = std::size_t{8} << 20;
constexpr std::uint16_t kTensorBoardPort = 6006;  // its default
constexpr std::uint16_t kTunnelPort = 8080;

/// "http://HOST:PORT/..." or "HOST:PORT".
Result<JobPage> page_at(std::string_view text) {
  constexpr std::string_view kScheme = "http://";
  std::string_view rest = text;
  if (rest.starts_with(kScheme)) rest.remove_prefix(kScheme.size());
  const auto address = net::parse_status_address(rest.substr(0, rest.find_first_of("/?")));
  if (!address || address->port == 0) return usage("{} is not http://HOST:PORT", one_line(text));
  JobPage out;
  out.host = out.address = address->host;
  out.port = address->port;
  constexpr std::string_view kToken = "?token=";
  if (const auto at = rest.find(kToken); at != std::string_view::npos)
    out.token = rest.substr(at + kToken.size());
  return out;
}

Result<JobPage> page_of(const JobRecord& record) {
  if (!is_alive(record))
    return fail(ErrorCode::kNotFound, "{} does not run: {}; musterctl logs {} prints its output", record.name,
                state_of(record), record.name);
  auto out = page_at(record.metrics);
  if (!out) return fail(ErrorCode::kNotFound, "{} serves no status page", record.name);
  out->host = record.host;
  out->token = record.page_token;
  return out;
}

/// An address on which a process of that host may connect.
bool is_local(std::string_view address) {
  return address == "127.0.0.1" || address == "::1" || address == "0.0.0.0" || address == "::" ||
         address == "localhost";
}

int status_of(const Error& error) {
  return error.code == ErrorCode::kInvalidArgument ? kExitUsage
         : error.code == ErrorCode::kNotFound      ? kExitNoSuchJob
         : error.code == ErrorCode::kMismatch      ? kExitRefused
                                                   : kExitRendezvous;
}

/// Of the job that a coordinator has by this id, or of the only one that has not ended.
Result<JobPage> page_by_coordinator(const JobsCommand& asked, const Environment& environment) {
  MUSTER_TRY(const net::QueryOptions options, query_options(asked, environment));
  MUSTER_TRY(const net::QueryAnswer answer, net::query(options));
  const control::JobState* found = nullptr;
  for (const control::JobState& job : answer.jobs) {
    if (job.phase == control::JobState::Phase::kEnded) continue;
    if (found != nullptr)
      return usage("{} has several jobs; name one (musterctl jobs --endpoint={} lists them)", asked.endpoint,
                   asked.endpoint);
    found = &job;
  }
  if (found == nullptr)
    return fail(ErrorCode::kNotFound, "{} has no job{} that runs", asked.endpoint,
                asked.job.empty() ? "" : " " + asked.job);
  const std::string job = one_line(found->job);
  if (found->first_status_address.empty())
    return fail(ErrorCode::kNotFound, "{} serves no status page: start it with --metrics-addr=HOST:PORT",
                job);
  MUSTER_TRY(JobPage out, page_at(found->first_status_address));
  if (is_local(out.address) && found->first_host != options.own_host)
    return fail(ErrorCode::kNotFound,
                "{} serves its status page on {} of {} alone: run musterctl there, or start the job with "
                "--metrics-addr=0.0.0.0:PORT",
                job, out.address, one_line(found->first_host));
  out.host = one_line(found->first_host);
  if (options.secret) out.token = net::page_token(*options.secret, found->job);
  return out;
}

Result<JobPage> find_page(const TopCommand& command, const JobRecord* record,
                          const Environment& environment) {
  if (!command.url.empty()) return page_at(command.url);
  return record != nullptr ? page_of(*record) : page_by_coordinator(command.coordinator, environment);
}

Result<std::string> get_now(const JobPage& page, std::string path, Millis timeout) {
  asio::io_context loop(1);
  Result<std::string> out = fail(ErrorCode::kIo, "the event loop failed");
  asio::co_spawn(loop, get(page, std::move(path), SteadyClock::now() + timeout),
                 [&](const std::exception_ptr& failed, Result<std::string> answer) {
                   if (!failed) out = std::move(answer);
                 });
  loop.run();
  return out;
}

/// The document, or what of it is shown, again and again. Ends when nobody reads stdout.
int print_status(const JobPage& page, const TopCommand& command) {
  const Millis timeout = to_millis(command.coordinator.timeout_s);
  for (int left = command.count;; --left) {
    const auto document = get_now(page, "/api/status", timeout);
    if (!document) return complain(document.error().message, status_of(document.error()));
    const auto view = parse_job_view(*document);
    if (!view)
      return complain(fmt::format("{}: {}", endpoint_text(page.address, page.port), view.error().message),
                      kExitRendezvous);
    std::string text = command.coordinator.json ? *document + "\n" : plain_text(*view);
    if (left != 1) text += command.coordinator.json ? "" : "\n";
    if (std::fputs(text.c_str(), stdout) < 0 || std::fflush(stdout) != 0) return kExitOk;
    if (left == 1) return kExitOk;
    pollfd reader{STDOUT_FILENO, 0, 0};  // its end is reported unasked
    if (::poll(&reader, 1, static_cast<int>(to_millis(command.interval_s).count())) > 0) return kExitOk;
  }
}

}  // namespace

asio::awaitable<Result<std::string>> get(JobPage page, std::string path, Instant deadline) {
  const std::string where = endpoint_text(page.address, page.port);
  beast::tcp_stream stream(co_await asio::this_coro::executor);
  const auto dialed = co_await net::dial(stream.socket(), page.address, page.port, 0, deadline);
  if (!dialed) {
    const Error& error = dialed.error();
    co_return fail(error.code == ErrorCode::kNotFound ? ErrorCode::kPeerGone : error.code,
                   fmt::format("{}; does the job still run?", error.message));
  }
  stream.expires_at(deadline);
  http::request<http::empty_body> request(http::verb::get, path, 11);
  request.set(http::field::host, where);
  request.set(http::field::connection, "close");
  if (!page.token.empty()) request.set(http::field::authorization, "Bearer " + page.token);
  const auto [unsent, sent] = co_await http::async_write(stream, request, kTuple);
  http::response_parser<http::string_body> parser;
  parser.header_limit(kMaxHeadBytes);
  parser.body_limit(kMaxBodyBytes);
  beast::flat_buffer buffer(kMaxHeadBytes * 2);
  auto error = unsent;
  if (!error) {
    const auto [unread, received] = co_await http::async_read(stream, buffer, parser, kTuple);
    error = unread;
  }
  if (error == beast::error::timeout) co_return fail(ErrorCode::kTimeout, "{}: no answer in time", where);
  if (error == http::error::body_limit)
    co_return fail(ErrorCode::kProtocol, "{}: an answer longer than {} bytes", where, kMaxBodyBytes);
  if (error) co_return fail(ErrorCode::kPeerGone, "{}: {}", where, error.message());
  const unsigned status = parser.get().result_int();
  if (status == 200) co_return std::move(parser.get().body());
  if (status == 401)
    co_return fail(ErrorCode::kMismatch,
                   "{} wants a token: give --url as muster printed it, or --endpoint and the job's secret",
                   where);
  co_return fail(
      status == 403 ? ErrorCode::kMismatch : ErrorCode::kProtocol,
      fmt::format("{}{}: HTTP status {}: {}", where, path, status, one_clean_line(parser.get().body())));
}

int run_top(const TopCommand& command, const JobRecord* record, const Environment& environment) {
  const auto page = find_page(command, record, environment);
  if (!page) return complain(page.error().message, status_of(page.error()));
  if (command.screen && ::isatty(STDIN_FILENO) == 1 && ::isatty(STDOUT_FILENO) == 1)
    if (const auto status = run_screen(*page, to_millis(command.interval_s))) return *status;
  return print_status(*page, command);
}

int run_open(const TopCommand& command, const JobRecord* record, const Environment& environment) {
  const auto page = find_page(command, record, environment);
  if (!page) return complain(page.error().message, status_of(page.error()));
  const std::string target = is_local(page->address) ? "127.0.0.1" : page->address;
  std::printf(
      "On your own machine:\n"
      "  ssh -N -L %u:%s -L %u:127.0.0.1:%u %s\n"
      "Then open there\n"
      "  http://127.0.0.1:%u/%s  the job\n"
      "  http://127.0.0.1:%u/metrics  for Prometheus\n"
      "  http://127.0.0.1:%u/  TensorBoard, once this runs on %s:\n"
      "    tensorboard --port %u --logdir DIR   (DIR: where the program writes its events)\n",
      kTunnelPort, endpoint_text(target, page->port).c_str(), kTensorBoardPort, kTensorBoardPort,
      one_line(page->host).c_str(), kTunnelPort, page->token.empty() ? "" : ("?token=" + page->token).c_str(),
      kTunnelPort, kTensorBoardPort, one_line(page->host).c_str(), kTensorBoardPort);
  return kExitOk;
}

}  // namespace muster::launcher
