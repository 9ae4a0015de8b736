// SPDX-License-Identifier: Apache-2.0
// CollectiveState: the collective that a process group of a worker began last, as the worker's runtime writes
// it to a page beside the progress file (rendezvous/base/runtime_page.h). Read when workers hang, and as a
// sign of life of a worker that reports no progress. Pure but for the read functions.
// Nothing in the file is trusted; what was being written while it was read is left out.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "rendezvous/base/fieldwise.h"
#include "rendezvous/base/runtime_page.h"

namespace muster::launcher {

using fieldwise::operator==;

struct CollectiveState {
  std::string group = {};    // its name; "default" is init()'s
  std::string backend = {};  // "shm"
  int world_size = 0;
  PageOperation operation = PageOperation::kNone;  // kNone: the group had no collective yet
  PageState state = PageState::kNone;
  std::uint64_t sequence = 0;
  std::uint64_t size_bytes = 0;
  int root = -1;  // of a broadcast
};

/// `reads`: the file's bytes as they were read one after another, three times. A slot counts that is the same
/// version in all of them: nothing was written between the first and the last, so that the one in the middle
/// is whole. In the order of the slots; of two of one name, as of a worker and a process it started, the
/// first.
[[nodiscard]] std::vector<CollectiveState> parse_collectives(std::span<const std::string, 3> reads);

/// Rises with whatever a group does, and says whether one is in a collective now. Nothing: it is no page, or
/// no group of it had a collective.
struct CollectiveActivity {
  std::uint64_t moves = 0;
  bool waits = false;
};
[[nodiscard]] std::optional<CollectiveActivity> activity_in(std::string_view bytes);

/// "all_reduce #1432 of 4 MiB (begun, not finished)"; with the group's name where it is another one.
[[nodiscard]] std::string describe(const CollectiveState& state);
/// "all_reduce #1432 of 4 MiB".
[[nodiscard]] std::string title_of(const CollectiveState& state);
/// Of a worker, those it waits in first: "all_reduce #1432 of 4 MiB (begun, not finished); ...". Empty: none.
[[nodiscard]] std::string describe(std::span<const CollectiveState> states);

/// In JSON.
[[nodiscard]] std::string_view name_of(PageState state);
[[nodiscard]] std::string_view name_of(PageOperation operation);

/// Given the worker's progress file. The page beside it is read, never mapped: a worker that cuts its file
/// short must not end the agent by SIGBUS.
[[nodiscard]] std::vector<CollectiveState> read_collectives(const std::string& progress_file);
[[nodiscard]] std::optional<CollectiveActivity> read_collective_activity(const std::string& progress_file);

}  // namespace muster::launcher
