// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/etcd/messages.h"

#include <algorithm>
#include <charconv>
#include <exception>
#include <stdexcept>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <openssl/evp.h>

#include "rendezvous/base/fail.h"
#include "rendezvous/base/text.h"

namespace muster::etcd {
namespace {

using nlohmann::json;

constexpr std::size_t kShownBytes = 200;

std::string base64(std::string_view bytes) {
  std::string out(4 * ((bytes.size() + 2) / 3) + 1, '\0');  // and the zero that OpenSSL appends
  const int size =
      EVP_EncodeBlock(reinterpret_cast<unsigned char*>(out.data()),
                      reinterpret_cast<const unsigned char*>(bytes.data()), static_cast<int>(bytes.size()));
  out.resize(static_cast<std::size_t>(size));
  return out;
}

// What is no answer of etcd's, thrown within parse() like the exceptions of nlohmann::json.
[[noreturn]] void refuse(const std::string& what) {
  throw std::invalid_argument(what);
}

std::string from_base64(const std::string& text) {
  // OpenSSL overlooks white space at the ends and a = in the middle.
  const std::size_t length = text.find_last_not_of('=') + 1;
  std::string out(text.size() / 4 * 3, '\0');
  if (text.size() % 4 != 0 || text.size() - length > 2 ||
      text.find_first_not_of("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/") < length)
    refuse("bytes that are not in base64");
  EVP_DecodeBlock(reinterpret_cast<unsigned char*>(out.data()),
                  reinterpret_cast<const unsigned char*>(text.data()), static_cast<int>(text.size()));
  out.resize(out.size() - (text.size() - length));
  return out;
}

std::string shown(std::string_view text) {
  return one_line(text.substr(0, text.find_last_not_of(" \r\n") + 1), kShownBytes);
}

// Proto3's JSON leaves out what is zero, and writes 64 bits as text.
std::int64_t number(const json& object, const char* name) {
  const json value = object.value(name, json(0));
  const std::string text = value.is_string() ? value.get<std::string>() : value.dump();
  std::int64_t out = 0;
  const auto [at, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  if (error != std::errc() || at != text.data() + text.size())
    refuse(fmt::format("\"{}\" is no number", name));
  return out;
}

// A lease that is over has none, or a negative one.
Millis time_to_live(const json& object) {
  return std::chrono::seconds(std::clamp<std::int64_t>(number(object, "TTL"), 0, 1'000'000));
}

std::string text_of(const json& object, const char* name) {
  return object.value(name, std::string());
}

// Absent: an empty list.
json list_in(const json& object, const char* name) {
  json out = object.value(name, json::array());
  if (!out.is_array()) refuse(fmt::format("\"{}\" is no list", name));
  return out;
}

KeyValue entry_of(const json& object) {
  return {from_base64(text_of(object, "key")), from_base64(text_of(object, "value")),
          number(object, "mod_revision"), number(object, "lease")};
}

// Real answers nest 6 deep; each level costs memory before the text is known to be wrong.
json parse_json(std::string_view body) {
  return json::parse(body, [](int depth, json::parse_event_t, const json&) {
    if (depth > 32) refuse("JSON that nests too deep");
    return true;
  });
}

// read(object) makes the result, or throws.
template <class Read>
auto parse(std::string_view body, const Read& read) -> decltype(read(json())) {
  try {
    return read(parse_json(body));
  } catch (const std::exception& error) {
    return fail(ErrorCode::kProtocol, "the answer is not etcd's ({}): {}", shown(error.what()), shown(body));
  }
}

Error error_of(int status, const std::string& text) {
  const auto says = [&](std::string_view words) { return text.find(words) != std::string::npos; };
  if (says("user name is empty") || says("invalid auth token") || says("permission denied") || status == 401)
    return {ErrorCode::kMismatch,
            fmt::format("it asks who is there ({}), and muster does not log in: use an etcd without "
                        "authentication of its own, on a network of its own or behind TLS certificates, or "
                        "a musterd with a secret",
                        shown(text))};
  if (says("requested lease not found") || says("required revision has been compacted"))
    return {ErrorCode::kNotFound, shown(text)};
  if (says("request is too large"))
    return {
        ErrorCode::kInvalidArgument,
        fmt::format("{}: the state of a job with so many nodes needs a greater --max-request-bytes of etcd",
                    shown(text))};
  if (says("database space exceeded"))
    return {ErrorCode::kExhausted,
            fmt::format("{}: compact and defragment it, and disarm its alarm, with etcdctl", shown(text))};
  return {ErrorCode::kPeerGone, fmt::format("it cannot answer: {} (HTTP status {})", shown(text), status)};
}

// The answer of a call that is a stream to etcd's gateway.
template <class Value, class Read>
Result<Value> parse_result(std::string_view body, const Read& read) {
  return parse(body, [&](const json& object) -> Result<Value> {
    if (object.contains("error")) {
      const json& error = object.at("error");
      return fail(error_of(static_cast<int>(number(error, "http_code")), text_of(error, "message")));
    }
    return read(object.at("result"));
  });
}

Result<WatchUpdate> parse_update(std::string_view line) {
  return parse_result<WatchUpdate>(line, [](const json& result) -> Result<WatchUpdate> {
    if (result.value("canceled", false))
      return fail(ErrorCode::kNotFound, "the watch was cancelled: {}",
                  shown(text_of(result, "cancel_reason")));
    WatchUpdate out;
    out.created = result.value("created", false);
    for (const json& event : list_in(result, "events"))
      out.events.push_back({text_of(event, "type") == "DELETE", entry_of(event.at("kv"))});
    return out;
  });
}

Result<Lease> parse_grant(std::string_view body) {
  return parse(body, [](const json& object) -> Result<Lease> {
    const Lease out{number(object, "ID"), time_to_live(object)};
    if (out.id == 0 || out.ttl == Millis(0)) refuse("no lease");
    return out;
  });
}

Result<Millis> parse_keep_alive(std::string_view body) {
  return parse_result<Millis>(body, [](const json& result) { return time_to_live(result); });
}

Result<TxnResponse> parse_txn(std::string_view body) {
  return parse(body, [](const json& object) -> Result<TxnResponse> {
    TxnResponse out;
    out.revision = number(object.at("header"), "revision");
    if (out.revision <= 0) refuse("no revision");
    out.succeeded = object.value("succeeded", false);
    for (const json& response : list_in(object, "responses")) {
      if (!response.is_object()) refuse("a response that is no object");
      const auto range = response.find("response_range");
      if (range == response.end()) continue;
      auto& found = out.found.emplace_back();
      for (const json& entry : list_in(*range, "kvs")) found.push_back(entry_of(entry));
    }
    return out;
  });
}

std::string lease_request(LeaseId id) {
  return json{{"ID", fmt::format("{}", id)}}.dump();
}

}  // namespace

Operation get(std::string_view key, std::string_view end) {
  json range{{"key", base64(key)}};
  if (!end.empty()) range["range_end"] = base64(end);
  return json{{"request_range", std::move(range)}}.dump();
}

Operation put(std::string_view key, std::string_view value, LeaseId lease) {
  return json{
      {"request_put", {{"key", base64(key)}, {"value", base64(value)}, {"lease", fmt::format("{}", lease)}}}}
      .dump();
}

Operation erase(std::string_view key) {
  return json{{"request_delete_range", {{"key", base64(key)}}}}.dump();
}

Call<Lease> grant(std::int64_t ttl_seconds) {
  return {"/v3/lease/grant", json{{"TTL", fmt::format("{}", ttl_seconds)}}.dump(), parse_grant};
}

Call<Millis> keep_alive(LeaseId lease) {
  return {"/v3/lease/keepalive", lease_request(lease), parse_keep_alive};
}

Call<void> revoke(LeaseId lease) {
  return {"/v3/lease/revoke", lease_request(lease), [](std::string_view) { return Result<void>(); }};
}

Call<TxnResponse> commit(const std::vector<Operation>& operations, const std::vector<Fence>& fences) {
  json compare = json::array();
  for (const Fence& fence : fences)
    compare.push_back({{"key", base64(fence.key)},
                       {"target", "MOD"},
                       {"result", "EQUAL"},
                       {"mod_revision", fmt::format("{}", fence.revision)}});
  return {"/v3/kv/txn",
          fmt::format(R"({{"compare":{},"success":[{}]}})", compare.dump(), fmt::join(operations, ",")),
          parse_txn};
}

std::string watch_request(std::string_view key, std::string_view end, Revision from) {
  json create{{"key", base64(key)}, {"start_revision", fmt::format("{}", from)}};
  if (!end.empty()) create["range_end"] = base64(end);
  return json{{"create_request", std::move(create)}}.dump();
}

Error error_of_response(int status, std::string_view body) {
  const auto text = parse(body, [](const json& object) -> Result<std::string> {
    std::string message = text_of(object, "message");
    return message.empty() ? text_of(object, "error") : std::move(message);
  });
  if (text && !text->empty()) return error_of(status, *text);
  // A proxy in front of an etcd that is being started anew has words of its own.
  if (status >= 500) return {ErrorCode::kPeerGone, fmt::format("HTTP status {}: {}", status, shown(body))};
  return {ErrorCode::kProtocol,
          fmt::format("it speaks HTTP, but not as the gateway of an etcd does (status {})", status)};
}

Result<std::vector<WatchUpdate>> WatchStream::receive(std::string_view bytes) {
  std::vector<WatchUpdate> out;
  std::size_t from = input_.size();  // what came before has no end of a line
  input_ += bytes;
  while (true) {
    const auto end = input_.find('\n', std::exchange(from, 0));
    if (std::min(end, input_.size()) > max_line_bytes_)
      return fail(ErrorCode::kProtocol, "an update of a watch has more than {} bytes", max_line_bytes_);
    if (end == std::string::npos) return out;
    if (end > 0) {
      MUSTER_TRY(WatchUpdate update, parse_update(std::string_view(input_).substr(0, end)));
      out.push_back(std::move(update));
    }
    input_.erase(0, end + 1);
  }
}

}  // namespace muster::etcd
