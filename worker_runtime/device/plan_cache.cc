// SPDX-License-Identifier: Apache-2.0
#include "worker_runtime/device/plan_cache.h"

#include <cmath>
#include <filesystem>
#include <utility>

#include <climits>
#include <nlohmann/json.hpp>

#include "rendezvous/base/env.h"
#include "rendezvous/base/syscall.h"
#include "worker_runtime/core/atomic_file.h"

namespace muster {
namespace {

constexpr const char* kPlans = "muster plans 1";  // what of another name, or version, is passed over

PlanCache::Entries read_entries(const std::string& path) {
  const auto text = path.empty() ? Result<std::string>() : read_file(path, PlanCache::kMaxBytes);
  return text ? PlanCache::parse(*text) : PlanCache::Entries{};
}

}  // namespace

PlanCache::PlanCache(std::string path) : path_(std::move(path)), entries_(read_entries(path_)) {}

std::optional<int> PlanCache::find(std::string_view key) const {
  const auto found = entries_.find(key);
  return found == entries_.end() ? std::nullopt : std::optional(found->second);
}

void PlanCache::store(const std::string& key, int choice) {
  entries_.merge(read_entries(path_));
  entries_[key] = choice;
  if (path_.empty()) return;
  std::error_code error;
  std::filesystem::create_directories(std::filesystem::path(path_).parent_path(), error);
  const std::string text = serialize(entries_);
  if (text.size() <= kMaxBytes) (void)write_file_atomically(path_, text);
}

PlanCache::Entries PlanCache::parse(std::string_view text) {
  const auto json = nlohmann::json::parse(text.begin(), text.end(), nullptr, false);
  const auto plans = json.is_object() ? json.find(kPlans) : json.end();
  Entries entries;
  if (plans == json.end() || !plans->is_object()) return entries;
  for (const auto& [key, choice] : plans->items())
    if (choice.is_number_unsigned() && choice.get<std::uint64_t>() <= std::uint64_t{INT_MAX})
      entries[key] = choice;
  return entries;
}

std::string PlanCache::serialize(const Entries& entries) {
  const nlohmann::json json{{kPlans, entries}};
  return json.dump(1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

std::string PlanCache::default_path() {
  for (const auto& [name, place] :
       {std::pair("XDG_CACHE_HOME", "/muster/plans"), {"HOME", "/.cache/muster/plans"}})
    if (const auto folder = current_value(name); folder && folder->starts_with('/')) return *folder + place;
  return "";
}

std::optional<int> fastest(std::span<const float> milliseconds) {
  const auto timed = [](float time) { return std::isfinite(time) && time > 0; };
  float least = INFINITY;
  for (const float time : milliseconds)
    if (timed(time) && time < least) least = time;
  for (std::size_t i = 0; i < milliseconds.size(); ++i)
    if (timed(milliseconds[i]) && milliseconds[i] <= 1.02F * least) return static_cast<int>(i);
  return std::nullopt;
}

}  // namespace muster
