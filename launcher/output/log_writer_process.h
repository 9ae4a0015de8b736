// SPDX-License-Identifier: Apache-2.0
// The other side of log_writer.h: what the log writer's process does until the launcher and all pipes are
// gone, and the requests it gets, over a SOCK_SEQPACKET pair. Called by LogWriter::start in the forked child.
#pragma once

#include <cstddef>
#include <cstdint>

#include "launcher/job/rotation.h"
#include "launcher/output/log_writer.h"

namespace muster::launcher::log_writer {

/// With kOpen come the pipe's end, the file, and the memory of a LogStreamState, in this order, and behind
/// the request its path and its link. Each is answered by one byte at most, the bell.
struct Request {
  /// kGoOn: with a stream of a writer that is gone; the second descriptor means nothing.
  enum class Kind : std::uint32_t { kOpen, kSettle, kGoOn };

  Kind kind = Kind::kSettle;
  std::uint32_t path_bytes = 0;
  std::uint32_t link_bytes = 0;
  std::uint32_t unused = 0;
  std::uint64_t number = 0;  // of kSettle
};
inline constexpr std::size_t kDescriptors = 3;
inline constexpr std::size_t kMaxPathBytes = 4096;
/// The most that it holds: of one stream.
inline constexpr std::size_t kReadBytes = 256 * 1024;

/// How many bytes of a stream a writer that is gone may have held.
[[nodiscard]] std::uint64_t lost_bytes(const LogStreamState& state);

/// Until there is nothing left to do.
[[noreturn]] void run(int control, LogWriterState& state, Rotation rules);

}  // namespace muster::launcher::log_writer
