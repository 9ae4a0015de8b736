// SPDX-License-Identifier: Apache-2.0
// PlanCache: which of a library's plans was the fastest, by device, library version, shape and type, in a
// JSON file. Read once, written whole after each new choice, together with what other processes have written
// meanwhile. A file that is no such file, or is too large, counts as empty. Used by a device's thread.
// Failure to write costs the choice in the next run, nothing else.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace muster {

class PlanCache {
 public:
  /// Which entry of a list that the library proposes again and again in one order.
  using Entries = std::map<std::string, int, std::less<>>;
  static constexpr std::size_t kMaxBytes = std::size_t{1} << 20;

  /// `path` empty: nothing is kept beyond the process.
  explicit PlanCache(std::string path);

  [[nodiscard]] std::optional<int> find(std::string_view key) const;
  void store(const std::string& key, int choice);

  [[nodiscard]] static Entries parse(std::string_view text);
  [[nodiscard]] static std::string serialize(const Entries& entries);
  /// $XDG_CACHE_HOME/muster/plans, else ~/.cache/muster/plans; empty without either.
  [[nodiscard]] static std::string default_path();

 private:
  std::string path_;
  Entries entries_;
};

/// What an engine's numerical notes say of it.
struct EngineNotes {
  bool tensor_cores = false;  // for float32: its inputs are rounded to TF32
  bool nondeterministic = false;
  bool approximate = false;  // Winograd, FFT, half precision inside
};
[[nodiscard]] constexpr bool is_allowed(const EngineNotes& notes, bool deterministic, bool tf32) {
  return !notes.approximate && (tf32 || !notes.tensor_cores) && !(deterministic && notes.nondeterministic);
}

/// The index of the shortest time; of those within 2 % of it the first, which the library thinks best.
/// Nothing: none was timed (not finite or not above 0).
[[nodiscard]] std::optional<int> fastest(std::span<const float> milliseconds);

}  // namespace muster
