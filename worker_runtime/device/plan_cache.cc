// SPDX-License-Identifier: Apache-2.0
#include "worker_runtime/device/plan_cache.h"

#include <charconv>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <utility>

#include "rendezvous/base/syscall.h"
#include "worker_runtime/core/atomic_file.h"

namespace muster {
namespace {

constexpr std::string_view kFirstLine = "muster plans 1\n";

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
  const std::string_view piece = text;
  if (text.size() <= kMaxBytes) (void)write_file_atomically(path_, std::span(&piece, 1));
}

PlanCache::Entries PlanCache::parse(std::string_view text) {
  Entries entries;
  if (!text.starts_with(kFirstLine)) return entries;
  text.remove_prefix(kFirstLine.size());
  for (auto end = text.find('\n'); end != std::string_view::npos; end = text.find('\n')) {
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(end + 1);
    const auto tab = line.find('\t');
    if (tab == std::string_view::npos || tab == 0) continue;
    int choice = -1;
    const auto [stop, code] = std::from_chars(line.data() + tab + 1, line.data() + line.size(), choice);
    if (code == std::errc() && stop == line.data() + line.size() && choice >= 0)
      entries[std::string(line.substr(0, tab))] = choice;
  }
  return entries;
}

std::string PlanCache::serialize(const Entries& entries) {
  std::string text(kFirstLine);
  for (const auto& [key, choice] : entries) text += key + "\t" + std::to_string(choice) + "\n";
  return text;
}

std::string PlanCache::default_path() {
  const auto folder = [](const char* name) -> std::string {
    const char* const value = std::getenv(name);
    return value != nullptr && *value == '/' ? value : "";
  };
  if (const std::string cache = folder("XDG_CACHE_HOME"); !cache.empty()) return cache + "/muster/plans";
  const std::string home = folder("HOME");
  return home.empty() ? "" : home + "/.cache/muster/plans";
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
