// SPDX-License-Identifier: Apache-2.0
// CollectiveWord: the collective that a process group of a worker began last, as its runtime tells without a
// word of the program (rendezvous/base/runtime_page.h). Read when workers hang, and at looks for a sign of
// life of a worker that says nothing of its progress. Pure but for read_collectives(). Nothing in the file is
// trusted; what was being written while it was read is left out.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "rendezvous/base/runtime_page.h"

namespace muster::launcher {

struct CollectiveWord {
  std::string group = {};    // its name; "default" is init()'s
  std::string backend = {};  // "shm"
  int world_size = 0;
  PageOperation operation = PageOperation::kNone;  // kNone: the group had no collective yet
  PageState state = PageState::kNone;
  std::uint64_t sequence = 0;
  std::uint64_t size_bytes = 0;
  int root = -1;  // of a broadcast

  friend bool operator==(const CollectiveWord&, const CollectiveWord&) = default;
};

/// Of a worker at most so many are kept and sent.
inline constexpr std::size_t kMostCollectives = RuntimePage::kSlots;

/// `reads`: the file's bytes as they were read one after another, three times. A slot counts that is the same
/// version in all of them: nothing was written between the first and the last, so that the one in the middle
/// is whole. In the order of the slots; of two of one name, as of a worker and a process it started, the
/// first.
[[nodiscard]] std::vector<CollectiveWord> parse_collectives(std::span<const std::string, 3> reads);

/// Rises with whatever a group does, and says whether one is in a collective now. Nothing: it is no page, or
/// no group of it had a collective.
struct CollectiveLife {
  std::uint64_t moves = 0;
  bool waits = false;

  friend bool operator==(const CollectiveLife&, const CollectiveLife&) = default;
};
[[nodiscard]] std::optional<CollectiveLife> life_in(std::string_view bytes);

/// "all_reduce #1432 of 4 MiB (begun, not finished)"; with the group's name where it is another one.
[[nodiscard]] std::string describe(const CollectiveWord& word);
/// "all_reduce #1432 of 4 MiB".
[[nodiscard]] std::string title_of(const CollectiveWord& word);
/// Of a worker, those it waits in first: "all_reduce #1432 of 4 MiB (begun, not finished); ...". Empty: none.
[[nodiscard]] std::string describe(std::span<const CollectiveWord> words);

/// In JSON.
[[nodiscard]] std::string_view name_of(PageState state);
[[nodiscard]] std::string_view name_of(PageOperation operation);
[[nodiscard]] std::optional<PageState> state_from(std::string_view name);
[[nodiscard]] std::optional<PageOperation> operation_from(std::string_view name);

/// Given the worker's file for words about its progress.
[[nodiscard]] std::vector<CollectiveWord> read_collectives(const std::string& progress_file);
[[nodiscard]] std::optional<CollectiveLife> read_collective_life(const std::string& progress_file);

}  // namespace muster::launcher
