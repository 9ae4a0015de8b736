// SPDX-License-Identifier: Apache-2.0
#include <muster/prefix_store.h>

namespace muster {
namespace {

class PrefixStore final : public Store {
 public:
  PrefixStore(std::string prefix, std::shared_ptr<Store> store)
      : prefix_(std::move(prefix) + '/'), store_(std::move(store)) {
    Store::set_timeout(store_->timeout());
  }

  Result<void> set(std::string_view key, std::string_view value) override {
    return store_->set(full(key), value);
  }
  Result<std::string> compare_set(std::string_view key, std::string_view expected,
                                  std::string_view desired) override {
    return store_->compare_set(full(key), expected, desired);
  }
  Result<std::string> get(std::string_view key, std::optional<Timeout> timeout) override {
    return store_->get(full(key), limit(timeout));
  }
  Result<std::int64_t> add(std::string_view key, std::int64_t delta) override {
    return store_->add(full(key), delta);
  }
  Result<bool> check(std::span<const std::string> keys) override { return store_->check(full(keys)); }
  Result<void> wait(std::span<const std::string> keys, std::optional<Timeout> timeout) override {
    return store_->wait(full(keys), limit(timeout));
  }
  Result<std::int64_t> num_keys() override { return store_->num_keys(); }
  Result<bool> delete_key(std::string_view key) override { return store_->delete_key(full(key)); }
  Result<void> append(std::string_view key, std::string_view value) override {
    return store_->append(full(key), value);
  }
  Result<std::vector<std::string>> multi_get(std::span<const std::string> keys,
                                             std::optional<Timeout> timeout) override {
    return store_->multi_get(full(keys), limit(timeout));
  }
  Result<void> multi_set(std::span<const std::pair<std::string, std::string>> pairs) override {
    std::vector<std::pair<std::string, std::string>> all;
    all.reserve(pairs.size());
    for (const auto& [key, value] : pairs) all.emplace_back(full(key), value);
    return store_->multi_set(all);
  }
  Result<std::shared_ptr<Store>> apart() override {
    MUSTER_TRY(std::shared_ptr<Store> store, store_->apart());
    if (store == nullptr) return nullptr;
    return std::make_shared<PrefixStore>(prefix_.substr(0, prefix_.size() - 1), std::move(store));
  }

 private:
  std::string full(std::string_view key) const { return std::string(prefix_).append(key); }
  std::vector<std::string> full(std::span<const std::string> keys) const {
    std::vector<std::string> all;
    all.reserve(keys.size());
    for (const std::string& key : keys) all.push_back(full(key));
    return all;
  }
  /// This view's own timeout, so that setting it does not change the store that others share.
  Timeout limit(std::optional<Timeout> wanted) const { return wanted.value_or(timeout()); }

  std::string prefix_;  // with its '/'
  std::shared_ptr<Store> store_;
};

}  // namespace

std::shared_ptr<Store> make_prefix_store(std::string prefix, std::shared_ptr<Store> store) {
  return std::make_shared<PrefixStore>(std::move(prefix), std::move(store));
}

}  // namespace muster
