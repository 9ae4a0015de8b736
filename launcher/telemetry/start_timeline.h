// SPDX-License-Identifier: Apache-2.0
// StartTimeline: how long each phase of a start took: of this node's agent up to the last worker that was
// executed, and of the workers that link the runtime up to the end of their first step
// (rendezvous/base/runtime_page.h). Values and their text and JSON. Pure. Of workers each phase names the
// rank that it took longest; of several nodes the parts are put together on the first one. What came from
// another process or node is checked: numbers that cannot be are left out.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <muster/result.h>

#include "rendezvous/base/clock.h"
#include "rendezvous/base/runtime_page.h"

namespace muster::launcher {

/// Of an agent, in order. A phase that is part of the one before it is in brackets there.
struct AgentPhase {
  std::string_view name;  // as in the events, with _seconds behind it
  double seconds = 0;
  bool within = false;

  friend bool operator==(const AgentPhase&, const AgentPhase&) = default;
};

/// "9 ms to start on host-a: placement 2 ms, rendezvous 4 ms (connect 1 ms, gather 3 ms), spawn 3 ms".
[[nodiscard]] std::string agent_start_text(std::string_view host, std::span<const AgentPhase> phases);

/// How far the workers of a node have come.
enum class StartStage : std::uint8_t { kGroups, kFirstStep };

/// Of which rank a phase took longest.
struct WorkerPhase {
  double seconds = 0;
  int rank = -1;
  std::string host = {};

  friend bool operator==(const WorkerPhase&, const WorkerPhase&) = default;
};

/// In the order in which a worker goes through them. Phases end with a mark, and begin with the last mark
/// before it that was made.
struct PhaseRow {
  PageMark end;
  StartStage stage;        // with which it is told
  std::string_view name;   // in the events, with _seconds and _rank behind it
  std::string_view title;  // in texts
};
inline constexpr std::array kWorkerPhases = {
    PhaseRow{PageMark::kInitBegun, StartStage::kGroups, "load", "load"},
    PhaseRow{PageMark::kStoreConnected, StartStage::kGroups, "store", "store"},
    PhaseRow{PageMark::kGathered, StartStage::kGroups, "gather", "gather"},
    PhaseRow{PageMark::kNcclLoaded, StartStage::kGroups, "nccl_load", "NCCL's library"},
    PhaseRow{PageMark::kNcclIdKnown, StartStage::kGroups, "nccl_id", "NCCL's id"},
    PhaseRow{PageMark::kGroupReady, StartStage::kGroups, "group", "group"},
    PhaseRow{PageMark::kFirstStepBegun, StartStage::kFirstStep, "prepare", "preparation"},
    PhaseRow{PageMark::kFirstStepDone, StartStage::kFirstStep, "first_step", "first step"},
};

/// What a worker's page says.
using StartMarks = std::array<std::int64_t, RuntimePage::kMarks>;  // CLOCK_MONOTONIC in ns; 0: not yet
/// Nothing: it is no page.
[[nodiscard]] std::optional<StartMarks> marks_in(std::string_view page);
[[nodiscard]] bool has_come(const StartMarks& marks, StartStage stage);

struct WorkersStart {
  StartStage stage = StartStage::kGroups;
  int ranks = 0;       // that have come so far
  double seconds = 0;  // from the first worker's start until the last one has come so far
  std::map<std::string, WorkerPhase, std::less<>> phases = {};  // by name

  void add(std::string_view phase, const WorkerPhase& longest);
  friend bool operator==(const WorkersStart&, const WorkersStart&) = default;
};

/// Of a node's workers, by local rank; `started`: when the first was to be executed. Nothing: not all of
/// them have come so far.
[[nodiscard]] std::optional<WorkersStart> summarize(StartStage stage, Instant started, int base_rank,
                                                    const std::string& host,
                                                    std::span<const std::optional<StartMarks>> marks);

/// "the groups of 8 ranks are ready after 1.8 s; longest: load 1.2 s (rank 5), store 3 ms (rank 2), ...".
/// Hosts are named where `with_hosts`.
[[nodiscard]] std::string workers_start_text(const WorkersStart& start, bool with_hosts);

/// Of another node, capped.
[[nodiscard]] std::string to_json(const WorkersStart& start);
[[nodiscard]] Result<WorkersStart> workers_start_from_json(std::string_view text);
/// The longer one of each phase.
[[nodiscard]] WorkersStart merged(std::span<const WorkersStart> parts);

}  // namespace muster::launcher
