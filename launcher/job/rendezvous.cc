// SPDX-License-Identifier: Apache-2.0
#include "launcher/job/rendezvous.h"

#include <fmt/format.h>

#include "launcher/job/exit_status.h"

namespace muster::launcher {

namespace {

using CauseKind = membership::Cause::Kind;

std::string named(const membership::Cause& cause) {
  if (cause.group_rank < 0) return cause.host;
  return fmt::format("node {} ({})", cause.group_rank, cause.host);
}

std::string text_of(const membership::Cause& cause) {
  if (cause.kind == CauseKind::kNodeLost) return fmt::format("lost {}: {}", named(cause), cause.text);
  if (cause.kind == CauseKind::kNodeLeft) return fmt::format("{} left the job: {}", named(cause), cause.text);
  if (cause.kind == CauseKind::kStale) return fmt::format("this node was away: {}", cause.text);
  return cause.text;
}

FailureNotice notice_of(const membership::Cause& cause) {
  FailureNotice out{.node_rank = cause.group_rank,
                    .rank = cause.rank,
                    .exit_code = cause.exit_code,
                    .text = text_of(cause)};
  if (cause.kind == CauseKind::kNodeLost) out.lost_node = cause.group_rank;
  // Its text names the node.
  if (cause.kind == CauseKind::kNodeLost || cause.kind == CauseKind::kNodeLeft) out.node_rank = -1;
  return out;
}

}  // namespace

FailureNotice outcome_of(const control::GenerationOver& over) {
  FailureNotice out = notice_of(over.cause);
  out.restart = true;
  out.regroup = over.cause.kind != CauseKind::kWorkerFailed && over.cause.kind != CauseKind::kNodeLost;
  return out;
}

AttemptOutcome outcome_of(const control::Closed& closed) {
  const CauseKind kind = closed.cause.kind;
  if (kind == CauseKind::kSucceeded) return AllSucceeded{};
  FailureNotice out = notice_of(closed.cause);
  if (kind == CauseKind::kNodeLost || kind == CauseKind::kNodeLeft)
    out.exit_code = kExitPeerLost;
  else if (kind == CauseKind::kTimeout || out.exit_code == 0)  // 0 would pass for success
    out.exit_code = kExitRendezvous;
  return out;
}

FailureNotice outcome_of(const Error& lost, bool running, const std::string& endpoint,
                         const std::string& busy) {
  FailureNotice out{.node_rank = -1,
                    .exit_code = running ? kExitPeerLost : kExitRendezvous,
                    .text = running ? fmt::format("lost the coordinator at {}: {}", endpoint, lost.message)
                                    : fmt::format("rendezvous: {}", lost.message),
                    .cut_off = true};
  if (lost.code == ErrorCode::kMismatch) out.exit_code = kExitRefused;
  if (!busy.empty() && (lost.code == ErrorCode::kTimeout || lost.code == ErrorCode::kProtocol)) {
    out.text += fmt::format(" (this agent could not run the coordinator itself: {})", busy);
    out.exit_code = kExitPortInUse;
  }
  return out;
}

}  // namespace muster::launcher
