// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/etcd/messages.h"

#include <charconv>
#include <limits>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <openssl/evp.h>

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

std::optional<std::string> from_base64(const std::string& text) {
  if (text.size() % 4 != 0) return std::nullopt;
  // OpenSSL overlooks white space at the ends and a = in the middle.
  const std::size_t length = text.find_last_not_of('=') + 1;
  if (text.size() - length > 2 ||
      text.find_first_not_of("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/") < length)
    return std::nullopt;
  std::string out(text.size() / 4 * 3, '\0');
  const int size =
      EVP_DecodeBlock(reinterpret_cast<unsigned char*>(out.data()),
                      reinterpret_cast<const unsigned char*>(text.data()), static_cast<int>(text.size()));
  if (size < 0) return std::nullopt;
  out.resize(static_cast<std::size_t>(size) - (text.size() - length));
  return out;
}

// One line without what a terminal would obey.
std::string shown(std::string_view text) {
  std::string out(text.substr(0, kShownBytes));
  for (char& c : out)
    if (static_cast<unsigned char>(c) < 0x20 || static_cast<unsigned char>(c) >= 0x7f) c = ' ';
  while (!out.empty() && out.back() == ' ') out.pop_back();
  return out;
}

tl::unexpected<Error> not_etcd(std::string_view what, std::string_view body) {
  return fail(ErrorCode::kProtocol, fmt::format("the answer is not etcd's ({}): {}", what, shown(body)));
}

// Proto3's JSON leaves out what is zero, and writes 64 bits as text.
std::optional<std::int64_t> number(const json& object, const char* name) {
  const auto found = object.find(name);
  if (found == object.end()) return 0;
  if (found->is_number_unsigned()) {
    const auto value = found->get<std::uint64_t>();
    if (value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) return std::nullopt;
    return static_cast<std::int64_t>(value);
  }
  if (found->is_number_integer()) return found->get<std::int64_t>();
  if (!found->is_string()) return std::nullopt;
  const auto& text = found->get_ref<const std::string&>();
  std::int64_t out = 0;
  const char* end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, out);
  if (error != std::errc() || at != end) return std::nullopt;
  return out;
}

bool flag(const json& object, const char* name) {
  const auto found = object.find(name);
  return found != object.end() && found->is_boolean() && found->get<bool>();
}

std::string text_of(const json& object, const char* name) {
  const auto found = object.find(name);
  return found != object.end() && found->is_string() ? found->get<std::string>() : std::string();
}

const json* object_in(const json& object, const char* name) {
  const auto found = object.find(name);
  return found != object.end() && found->is_object() ? &*found : nullptr;
}

// Absent: an empty list.
const json* list_in(const json& object, const char* name) {
  static const json none = json::array();
  const auto found = object.find(name);
  if (found == object.end()) return &none;
  return found->is_array() ? &*found : nullptr;
}

std::optional<KeyValue> entry_of(const json& object) {
  if (!object.is_object()) return std::nullopt;
  auto key = from_base64(text_of(object, "key"));
  auto value = from_base64(text_of(object, "value"));
  const auto created = number(object, "create_revision");
  const auto modified = number(object, "mod_revision");
  const auto lease = number(object, "lease");
  if (!key || !value || !created || !modified || !lease) return std::nullopt;
  return KeyValue{*std::move(key), *std::move(value), *created, *modified, *lease};
}

// Real answers nest 6 deep; each level costs memory before the text is known to be wrong.
bool too_deep(std::string_view body) {
  constexpr int kMaxDepth = 32;
  int depth = 0;
  bool quoted = false;
  for (std::size_t i = 0; i < body.size(); ++i) {
    const char c = body[i];
    if (c == '"') quoted = !quoted;
    if (quoted && c == '\\') ++i;
    if (quoted) continue;
    if ((c == '{' || c == '[') && ++depth > kMaxDepth) return true;
    if (c == '}' || c == ']') --depth;
  }
  return false;
}

Result<json> parse_object(std::string_view body) {
  if (too_deep(body)) return not_etcd("JSON that nests too deep", body);
  json out = json::parse(body, nullptr, false);
  if (!out.is_object()) return not_etcd("no JSON object", body);
  return out;
}

json to_json(const Operation& operation) {
  json out{{"key", base64(operation.key)}};
  if (operation.kind == Operation::Kind::kPut) {
    out["value"] = base64(operation.value);
    if (operation.lease != 0) out["lease"] = fmt::format("{}", operation.lease);
    return {{"request_put", std::move(out)}};
  }
  if (!operation.end.empty()) out["range_end"] = base64(operation.end);
  return {
      {operation.kind == Operation::Kind::kGet ? "request_range" : "request_delete_range", std::move(out)}};
}

json to_json(const std::vector<Operation>& operations) {
  json out = json::array();
  for (const Operation& operation : operations) out.push_back(to_json(operation));
  return out;
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
        ErrorCode::kExhausted,
        fmt::format("{}: the state of a job with so many nodes needs a greater --max-request-bytes of etcd",
                    shown(text))};
  if (says("database space exceeded"))
    return {ErrorCode::kExhausted,
            fmt::format("{}: compact and defragment it, and disarm its alarm, with etcdctl", shown(text))};
  return {ErrorCode::kPeerGone, fmt::format("it cannot answer: {} (HTTP status {})", shown(text), status)};
}

Result<WatchUpdate> parse_update(std::string_view line) {
  MUSTER_TRY(const json object, parse_object(line));
  if (const json* error = object_in(object, "error")) {
    const auto status = number(*error, "http_code").value_or(0);
    return fail(error_of(static_cast<int>(status), text_of(*error, "message")));
  }
  const json* result = object_in(object, "result");
  const json* events = result != nullptr ? list_in(*result, "events") : nullptr;
  if (events == nullptr) return not_etcd("no update of a watch", line);
  if (flag(*result, "canceled"))
    return fail(ErrorCode::kNotFound,
                fmt::format("the watch was cancelled: {}", shown(text_of(*result, "cancel_reason"))));
  WatchUpdate out;
  out.created = flag(*result, "created");
  for (const json& event : *events) {
    if (!event.is_object()) return not_etcd("an event that is no object", line);
    const json* kv = object_in(event, "kv");
    auto entry = kv != nullptr ? entry_of(*kv) : std::nullopt;
    if (!entry) return not_etcd("an event without a key", line);
    out.events.push_back({text_of(event, "type") == "DELETE", *std::move(entry)});
  }
  return out;
}

}  // namespace

std::string end_of_prefix(std::string prefix) {
  while (!prefix.empty() && prefix.back() == '\xff') prefix.pop_back();
  if (!prefix.empty()) prefix.back() = static_cast<char>(static_cast<unsigned char>(prefix.back()) + 1);
  return prefix;
}

Operation get(std::string key, std::string end) {
  return {Operation::Kind::kGet, std::move(key), std::move(end), {}, 0};
}
Operation put(std::string key, std::string value, LeaseId lease) {
  return {Operation::Kind::kPut, std::move(key), {}, std::move(value), lease};
}
Operation erase(std::string key) {
  return {Operation::Kind::kDelete, std::move(key), {}, {}, 0};
}

std::string grant_request(std::int64_t ttl_seconds) {
  return json{{"TTL", fmt::format("{}", ttl_seconds)}}.dump();
}

std::string lease_request(LeaseId id) {
  return json{{"ID", fmt::format("{}", id)}}.dump();
}

std::string txn_request(const Txn& txn) {
  json out{{"success", to_json(txn.then)}, {"failure", to_json(txn.otherwise)}};
  if (txn.fence)
    out["compare"] = json::array({{{"key", base64(txn.fence->key)},
                                   {"target", "CREATE"},
                                   {"result", "EQUAL"},
                                   {"create_revision", fmt::format("{}", txn.fence->create_revision)}}});
  return out.dump();
}

std::string watch_request(std::string_view key, std::string_view end, Revision from) {
  json create{{"key", base64(key)}, {"start_revision", fmt::format("{}", from)}};
  if (!end.empty()) create["range_end"] = base64(end);
  return json{{"create_request", std::move(create)}}.dump();
}

Result<Lease> parse_grant(std::string_view body) {
  MUSTER_TRY(const json object, parse_object(body));
  const auto id = number(object, "ID");
  const auto ttl = number(object, "TTL");
  if (!id || !ttl || *id == 0 || *ttl <= 0) return not_etcd("no lease", body);
  return Lease{*id, *ttl};
}

Result<std::int64_t> parse_keep_alive(std::string_view body) {
  MUSTER_TRY(const json object, parse_object(body));
  if (const json* error = object_in(object, "error"))
    return fail(
        error_of(static_cast<int>(number(*error, "http_code").value_or(0)), text_of(*error, "message")));
  const json* result = object_in(object, "result");
  const auto ttl = result != nullptr ? number(*result, "TTL") : std::nullopt;
  if (!ttl || *ttl < 0) return not_etcd("no answer about a lease", body);
  return *ttl;
}

Result<TxnResponse> parse_txn(std::string_view body) {
  MUSTER_TRY(const json object, parse_object(body));
  const json* header = object_in(object, "header");
  const auto revision = header != nullptr ? number(*header, "revision") : std::nullopt;
  const json* responses = list_in(object, "responses");
  if (!revision || *revision <= 0 || responses == nullptr) return not_etcd("no transaction", body);
  TxnResponse out;
  out.revision = *revision;
  out.succeeded = flag(object, "succeeded");
  for (const json& response : *responses) {
    if (!response.is_object()) return not_etcd("a response that is no object", body);
    const json* range = object_in(response, "response_range");
    if (range == nullptr) continue;
    const json* entries = list_in(*range, "kvs");
    if (entries == nullptr) return not_etcd("keys that are no list", body);
    auto& found = out.found.emplace_back();
    for (const json& object_of_entry : *entries) {
      auto entry = entry_of(object_of_entry);
      if (!entry) return not_etcd("a key that is none", body);
      found.push_back(*std::move(entry));
    }
  }
  return out;
}

Error error_of_response(int status, std::string_view body) {
  std::string text;
  if (const auto object = parse_object(body)) {
    text = text_of(*object, "message");
    if (text.empty()) text = text_of(*object, "error");
  }
  if (!text.empty()) return error_of(status, text);
  // A proxy in front of an etcd that is being started anew has words of its own.
  if (status >= 500) return {ErrorCode::kPeerGone, fmt::format("HTTP status {}: {}", status, shown(body))};
  return {ErrorCode::kMismatch,
          fmt::format("it speaks HTTP, but not as an etcd of 3.4 or later does (status {}): is this its "
                      "client port, mostly 2379, and its gateway not turned off?",
                      status)};
}

Result<std::vector<WatchUpdate>> WatchStream::receive(std::string_view bytes) {
  std::vector<WatchUpdate> out;
  while (true) {
    const auto end = bytes.find('\n');
    const std::string_view piece = bytes.substr(0, end);
    if (line_.size() + piece.size() > max_line_bytes_)
      return fail(ErrorCode::kExhausted,
                  fmt::format("an update of a watch has more than {} bytes", max_line_bytes_));
    line_ += piece;
    if (end == std::string_view::npos) return out;
    bytes.remove_prefix(end + 1);
    if (!line_.empty()) {
      MUSTER_TRY(WatchUpdate update, parse_update(line_));
      out.push_back(std::move(update));
      line_.clear();
    }
  }
}

}  // namespace muster::etcd
