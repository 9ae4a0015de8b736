// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <mutex>
#include <optional>
#include <utility>

#include <muster/tcp_store.h>

#include "rendezvous/base/fail.h"
#include "rendezvous/base/text.h"
#include "rendezvous/client/store_link.h"
#include "rendezvous/store/wire.h"

namespace muster {
namespace {

using wire::Op;
using wire::Request;

// How long after its own timeout an answer may still come before the server counts as gone.
constexpr Millis kMargin{5000};
// The one key without '/' in front, by which PyTorch's hosting process counts its clients.
constexpr std::string_view kCheckInKey = "init/";
// What the library's PyTorch counterpart allows at most in one request.
constexpr std::size_t kMaxKeys = wire::Limits{}.max_keys;

std::string slash(std::string_view key) {
  std::string out;
  out.reserve(key.size() + 1);
  out.push_back('/');
  out.append(key);
  return out;
}

// Keys as they go over the wire: one block of text and views into it.
class WireKeys {
 public:
  explicit WireKeys(std::span<const std::string> keys) {
    texts_.reserve(keys.size());
    views_.reserve(keys.size());
    for (const std::string& key : keys) views_.push_back(texts_.emplace_back(slash(key)));
  }
  [[nodiscard]] std::span<const std::string_view> views() const { return views_; }

 private:
  std::vector<std::string> texts_;
  std::vector<std::string_view> views_;
};

class TcpStoreClient final : public TcpStore {
 public:
  TcpStoreClient(TcpStoreOptions options, StoreLink link)
      : options_(std::move(options)), link_(std::move(link)) {
    Store::set_timeout(options_.timeout);
  }

  Result<void> check_in() {
    MUSTER_OK(ask_number({.op = Op::kAdd, .key = kCheckInKey, .number = 1}));
    return {};
  }

  Result<void> set(std::string_view key, std::string_view value) override {
    return put(Op::kSet, key, value);
  }

  Result<std::string> compare_set(std::string_view key, std::string_view expected,
                                  std::string_view desired) override {
    const std::string name = slash(key);
    const std::lock_guard lock(mutex_);
    MUSTER_OK(send({.op = Op::kCompareSet, .key = name, .value = expected, .desired = desired}));
    return link_.read_bytes(reply_deadline());
  }

  Result<std::string> get(std::string_view key, std::optional<Timeout> timeout) override {
    const std::string name = slash(key);
    const std::string_view names[] = {name};
    const std::lock_guard lock(mutex_);
    const Wait wait = begin_wait(timeout);
    MUSTER_OK(wait_for(names, wait));
    MUSTER_OK(send({.op = Op::kGet, .key = name}));
    return link_.read_bytes(reply_deadline());
  }

  Result<std::int64_t> add(std::string_view key, std::int64_t delta) override {
    return ask_number({.op = Op::kAdd, .key = slash(key), .number = delta});
  }

  Result<bool> check(std::span<const std::string> keys) override {
    MUSTER_OK(check_count("CHECK", keys.size()));
    const WireKeys names(keys);
    const std::lock_guard lock(mutex_);
    MUSTER_OK(send({.op = Op::kCheck, .items = names.views()}));
    MUSTER_TRY(const std::uint8_t answer, link_.read_number<std::uint8_t>(reply_deadline()));
    return answer == wire::kReady;
  }

  Result<void> wait(std::span<const std::string> keys, std::optional<Timeout> timeout) override {
    MUSTER_OK(check_count("WAIT", keys.size()));
    const WireKeys names(keys);
    const std::lock_guard lock(mutex_);
    const Wait wait = begin_wait(timeout);
    return wait_for(names.views(), wait);
  }

  Result<std::int64_t> num_keys() override { return ask_number({.op = Op::kGetNumKeys}); }

  Result<bool> delete_key(std::string_view key) override {
    MUSTER_TRY(const std::int64_t removed, ask_number({.op = Op::kDeleteKey, .key = slash(key)}));
    return removed == 1;
  }

  Result<void> append(std::string_view key, std::string_view value) override {
    return put(Op::kAppend, key, value);
  }

  Result<std::vector<std::string>> multi_get(std::span<const std::string> keys,
                                             std::optional<Timeout> timeout) override {
    MUSTER_OK(check_count("MULTI_GET", keys.size()));
    const WireKeys names(keys);
    const std::lock_guard lock(mutex_);
    const Wait wait = begin_wait(timeout);
    MUSTER_OK(wait_for(names.views(), wait));
    MUSTER_OK(send({.op = Op::kMultiGet, .items = names.views()}));
    std::vector<std::string> out;
    for (std::size_t i = 0; i < keys.size(); ++i) {
      MUSTER_TRY(std::string value, link_.read_bytes(reply_deadline()));
      out.push_back(std::move(value));
    }
    return out;
  }

  Result<void> multi_set(std::span<const std::pair<std::string, std::string>> pairs) override {
    MUSTER_OK(check_count("MULTI_SET", pairs.size()));
    std::vector<std::string> names;
    std::vector<std::string_view> items;
    names.reserve(pairs.size());
    for (const auto& [key, value] : pairs) {
      items.push_back(names.emplace_back(slash(key)));
      items.push_back(value);
    }
    const std::lock_guard lock(mutex_);
    return send({.op = Op::kMultiSet, .items = items});
  }

  Result<std::unique_ptr<TcpStore>> clone() override {
    TcpStoreOptions options = options_;
    options.world_size = -1;
    options.timeout = timeout();
    return TcpStore::connect(options);
  }

  Result<std::shared_ptr<Store>> apart() override {
    MUSTER_TRY(std::shared_ptr<Store> store, clone());
    return store;
  }

  Result<void> queue_push(std::string_view key, std::string_view value) override {
    return put(Op::kQueuePush, key, value);
  }

  Result<std::string> queue_pop(std::string_view key, bool block, std::optional<Timeout> timeout) override {
    const std::string name = slash(key);
    const std::string_view names[] = {name};
    const std::lock_guard lock(mutex_);
    const Wait wait = begin_wait(timeout);
    if (block) MUSTER_OK(wait_for(names, wait));
    MUSTER_OK(send({.op = Op::kQueuePop, .key = name}));
    MUSTER_TRY(const std::int64_t length, link_.read_number<std::int64_t>(reply_deadline()));
    if (length <= 0)
      return fail(ErrorCode::kNotFound, "QUEUE_POP {} at the store {}: the queue is empty", printable(name),
                  link_.endpoint());
    return link_.read_bytes(reply_deadline());
  }

  Result<std::int64_t> queue_len(std::string_view key) override {
    return ask_number({.op = Op::kQueueLen, .key = slash(key)});
  }

  Result<std::vector<std::string>> list_keys() override {
    const std::lock_guard lock(mutex_);
    MUSTER_OK(send({.op = Op::kListKeys}));
    MUSTER_TRY(const std::int64_t count, link_.read_number<std::int64_t>(reply_deadline()));
    std::vector<std::string> out;
    for (std::int64_t i = 0; i < count; ++i) {
      MUSTER_TRY(const std::string key, link_.read_bytes(reply_deadline()));
      if (key.starts_with('/')) out.push_back(key.substr(1));
    }
    return out;
  }

  Result<void> barrier(std::string_view key, std::int64_t world_size,
                       std::optional<Timeout> timeout) override {
    const std::string name = slash(key);
    const std::lock_guard lock(mutex_);
    const Wait wait = begin_wait(timeout);
    MUSTER_OK(send({.op = Op::kBarrier, .key = name, .number = world_size}));
    MUSTER_TRY(const bool open, link_.await_stop(wait.until, kMargin));
    if (open) return {};
    return fail(ErrorCode::kTimeout,
                "barrier timeout after {}ms, key: {} (store {}, {} participants): have all ranks reached it?",
                wait.limit.count(), printable(key), link_.endpoint(), world_size);
  }

 private:
  struct Wait {
    Timeout limit;
    Instant until;
  };
  [[nodiscard]] Wait begin_wait(std::optional<Timeout> timeout) const {
    const Timeout limit = timeout.value_or(this->timeout());
    return {limit, after(limit)};
  }

  [[nodiscard]] Instant reply_deadline() const {
    return after(std::clamp(timeout(), Timeout(0), Timeout::max() - kMargin) + kMargin);
  }

  Result<void> put(Op op, std::string_view key, std::string_view value) {
    const std::string name = slash(key);
    const std::lock_guard lock(mutex_);
    return send({.op = op, .key = name, .value = value});
  }

  Result<std::int64_t> ask_number(const Request& request) {
    const std::lock_guard lock(mutex_);
    MUSTER_OK(send(request));
    return link_.read_number<std::int64_t>(reply_deadline());
  }

  Result<void> send(const Request& request) { return link_.request(request, reply_deadline()); }

  Result<void> wait_for(std::span<const std::string_view> keys, const Wait& wait) {
    MUSTER_OK(send({.op = Op::kWait, .items = keys}));
    MUSTER_TRY(const bool there, link_.await_stop(wait.until, kMargin));
    if (there) return {};
    return fail(ErrorCode::kTimeout,
                "wait timeout after {}ms, keys: {} (store {}): nobody has set them; is a rank missing?",
                wait.limit.count(), list_keys_text(keys), link_.endpoint());
  }

  Result<void> check_count(std::string_view what, std::size_t count) const {
    if (count <= kMaxKeys) return {};
    return invalid("{} of {} keys: servers accept {} at most in one request", what, count, kMaxKeys);
  }

  TcpStoreOptions options_;
  std::mutex mutex_;  // held for a whole request and reply
  StoreLink link_;
};

}  // namespace

Result<std::unique_ptr<TcpStore>> TcpStore::connect(const TcpStoreOptions& options) {
  if (options.world_size == 0) return fail(ErrorCode::kInvalidArgument, "TCPStore world size cannot be 0");
  if (options.host.empty() || options.port == 0)
    return invalid("a TCPStore needs a host and a port, not \"{}\" and {}", options.host, options.port);
  MUSTER_TRY(StoreLink link, StoreLink::open(options.host, options.port, options.timeout));
  auto client = std::make_unique<TcpStoreClient>(options, std::move(link));
  if (options.world_size > 0) MUSTER_OK(client->check_in());
  return client;
}

}  // namespace muster
