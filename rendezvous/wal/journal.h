// SPDX-License-Identifier: Apache-2.0
// Journal: the bytes of musterd's state log. Sans-IO. A file is a header and frames; a frame is what was
// committed at once: one or more records, so that many requests share one sync and a MULTI_SET is kept whole
// or not at all.
//   header  "MUSTLOG", u8 version, u64 salt, u32 CRC of the 16 bytes
//   frame   u64 payload length, u32 CRC of the payload, u32 CRC of (salt, the frame's offset, length,
//   payload's CRC) record  u8 type, fields as in record_fields.h
// CRC-32C; little-endian. A length is believed only after its CRC fits; salt and offset keep a frame from
// being taken for one anywhere else. Failure: replay() says what is wrong and where; it never skips anything.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "rendezvous/coordinator/job_record.h"
#include "rendezvous/proxy/hosted_record.h"
#include "rendezvous/store/store_recorder.h"

namespace muster::journal {

inline constexpr std::size_t kFileHeaderBytes = 20;
inline constexpr std::size_t kFrameHeaderBytes = 16;
/// What a disk writes at once; see Replayed::End::kTorn.
inline constexpr std::size_t kSectorBytes = 512;

/// Everything the log keeps. What a log was told, replay() tells again.
class Recorder : public StoreRecorder, public JobRecorder, public HostedRecorder {};

enum class Type : std::uint8_t {
  kSet = 1,
  kAppend = 2,
  kErase = 3,
  kPush = 4,
  kPop = 5,
  kJob = 6,
  kJobFinished = 7,
  kJobForgotten = 8,
  kHostedBegan = 9,
  kHostedEnded = 10,
  kHostedChanged = 11,
  kHostedDone = 12,
  kHostedGone = 13,
  kJobLeft = 16,
  kJobProgress = 17,
};

[[nodiscard]] std::string file_header(std::uint64_t salt);
/// Of a file whose header is whole.
[[nodiscard]] std::uint64_t salt_of(std::string_view file);

/// Records on their way to become a frame.
class Encoder final : public Recorder {
 public:
  Encoder() { clear(); }

  void set(std::string_view key, std::string_view value) override;
  void append(std::string_view key, std::string_view bytes) override;
  void erase(std::string_view key) override;
  void push(std::string_view queue, std::string_view element) override;
  void pop(std::string_view queue) override;
  void job(std::string_view name, const JobRecord& record) override;
  void job_finished(std::string_view name, const membership::NodeId& node) override;
  void job_progress(std::string_view name, const JobProgress& progress) override;
  void job_left(std::string_view name, const membership::NodeId& node) override;
  void job_forgotten(std::string_view name) override;
  void hosted_began(std::string_view job, std::int64_t generation, std::uint64_t instance) override;
  void hosted_ended(std::uint64_t instance) override;
  void hosted_changed(std::uint64_t instance, const StoreChange& change) override;
  void hosted_done(std::uint64_t instance, const ChannelName& name, const ChannelMark& mark) override;
  void hosted_gone(std::uint64_t instance, const ChannelName& name) override;

  /// Records as they are in a frame.
  void add_encoded(std::string_view records) { bytes_ += records; }

  [[nodiscard]] bool empty() const { return bytes_.size() == kFrameHeaderBytes; }
  [[nodiscard]] std::size_t size() const { return bytes_.size(); }
  /// The frame, to be written at `offset` of the file; again where that failed. Valid until the next record.
  [[nodiscard]] std::string_view seal(std::uint64_t salt, std::uint64_t offset);
  void clear();

 private:
  std::string& begin(Type type);
  void about_node(Type type, std::string_view name, const membership::NodeId& node);
  void begin_hosted(Type type, std::uint64_t instance);
  void put(const ChannelName& name);

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
[[nodiscard]] Replayed replay(std::string_view file, Recorder& to);

}  // namespace muster::journal
