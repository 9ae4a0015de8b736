// SPDX-License-Identifier: Apache-2.0
// Journal: the bytes of musterd's state log. Sans-IO. A file is a header and frames; a frame is what was
// committed at once: one or more records, so that many requests share one sync and a MULTI_SET is kept whole
// or not at all.
//   header  "MUSTLOG", u8 version, u64 salt, u32 CRC of the 16 bytes
//   frame   u64 payload length, u32 CRC of the payload, u32 CRC of (salt, the frame's offset, length,
//   payload's CRC), then the records, as archive.h writes them
// CRC-32C; little-endian. A length is believed only after its CRC fits; salt and offset keep a frame from
// being taken for one anywhere else. Failure: replay() says what is wrong and where; it never skips anything.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <variant>

#include "rendezvous/coordinator/job_record.h"
#include "rendezvous/proxy/hosted_record.h"
#include "rendezvous/store/store_core.h"

namespace muster::journal {

inline constexpr std::size_t kFileHeaderBytes = 20;
inline constexpr std::size_t kFrameHeaderBytes = 16;
/// What a disk writes at once; see Replayed::End::kTorn.
inline constexpr std::size_t kSectorBytes = 512;

/// One record of the log. Its views are the caller's.
using LogRecord = std::variant<StoreChange, JobChange, HostedChange>;
using LogSink = std::function<void(const LogRecord&)>;

[[nodiscard]] std::string file_header(std::uint64_t salt);
/// Of a file whose header is whole.
[[nodiscard]] std::uint64_t salt_of(std::string_view file);

/// Records on their way to become a frame.
class Encoder {
 public:
  Encoder() { clear(); }

  void add(const LogRecord& record);
  /// Records as they are in a frame.
  void add_encoded(std::string_view records) { bytes_ += records; }

  [[nodiscard]] bool empty() const { return bytes_.size() == kFrameHeaderBytes; }
  [[nodiscard]] std::size_t size() const { return bytes_.size(); }
  /// The frame, to be written at `offset` of the file; again where that failed. Valid until the next record.
  [[nodiscard]] std::string_view seal(std::uint64_t salt, std::uint64_t offset);
  void clear();

 private:
  std::string bytes_;
};

struct Replayed {
  enum class End {
    kClean,
    /// The last frame was not written to its end when the machine or the process stopped, so nobody was told
    /// of it: it goes beyond the end of the file, or a sector of it was never written (it is all zeros).
    kTorn,
    kDamaged,  ///< bytes that had been written are not what they were, or it is no such file: see text
  };
  End end = End::kClean;
  std::size_t good_bytes = 0;  ///< of the file, up to the end of the last whole frame
  std::size_t num_frames = 0;
  std::string text;

  friend bool operator==(const Replayed&, const Replayed&) = default;
};
[[nodiscard]] Replayed replay(std::string_view file, const LogSink& to);

}  // namespace muster::journal

namespace muster {

/// The store, the jobs and the hosted stores that the records of a log describe, to be moved into the servers
/// that go on with them.
struct RecoveredState {
  StoreCore store;
  JobRecords jobs;
  SavedStores hosted;

  [[nodiscard]] journal::LogSink sink() {
    return [this](const journal::LogRecord& record) {
      if (const auto* change = std::get_if<StoreChange>(&record))
        store.apply(*change);
      else if (const auto* job = std::get_if<JobChange>(&record))
        muster::apply(*job, jobs);
      else
        muster::apply(std::get<HostedChange>(record), hosted);
    };
  }
};

}  // namespace muster
