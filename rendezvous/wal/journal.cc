// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/wal/journal.h"

#include <algorithm>
#include <optional>

#include <boost/crc.hpp>
#include <fmt/format.h>

#include "rendezvous/base/archive.h"
#include "rendezvous/store/wire.h"

namespace muster::journal {
namespace {

constexpr std::string_view kMagic = "MUSTLOG";
constexpr char kVersion = 1;
constexpr std::size_t kHeaderCrcOffset = 16;
// A buffer that grew beyond this for one large frame is given back.
constexpr std::size_t kKeptBytes = std::size_t{1} << 20;

std::uint32_t crc32c(std::string_view bytes) {
  boost::crc_optimal<32, 0x1EDC6F41, 0xFFFFFFFF, 0xFFFFFFFF, true, true> crc;
  crc.process_bytes(bytes.data(), bytes.size());
  return crc.checksum();
}

std::string frame_header(std::uint64_t salt, std::uint64_t offset, std::uint64_t length,
                         std::uint32_t payload_crc) {
  std::string covered;
  ArchiveWriter{covered}(salt, offset, length, payload_crc);
  std::string out = covered.substr(16);
  ArchiveWriter{out}(crc32c(covered));
  return out;
}

// The header at `offset`, if it is one.
struct Header {
  std::uint64_t length;
  std::uint32_t payload_crc;
};
std::optional<Header> read_header(std::string_view file, std::uint64_t salt, std::size_t offset) {
  if (file.size() - offset < kFrameHeaderBytes) return std::nullopt;
  const std::string_view bytes = file.substr(offset, kFrameHeaderBytes);
  const Header out{wire::load_u64(bytes.data()), wire::load_u32(bytes.data() + 8)};
  if (out.length == 0 || frame_header(salt, offset, out.length, out.payload_crc) != bytes)
    return std::nullopt;
  return out;
}

bool fits(std::string_view file, std::size_t offset, const Header& header) {
  return header.length <= file.size() - offset - kFrameHeaderBytes;
}

bool is_whole(std::string_view file, std::size_t offset, const Header& header) {
  return fits(file, offset, header) &&
         crc32c(file.substr(offset + kFrameHeaderBytes, header.length)) == header.payload_crc;
}

// The first whole frame at or after `offset`.
std::optional<std::size_t> find_frame(std::string_view file, std::uint64_t salt, std::size_t offset) {
  for (; offset + kFrameHeaderBytes < file.size(); ++offset) {
    // Cheap: hardly any eight bytes are a length that fits.
    if (wire::load_u64(file.data() + offset) > file.size() - offset - kFrameHeaderBytes) continue;
    if (const auto header = read_header(file, salt, offset); header && is_whole(file, offset, *header))
      return offset;
  }
  return std::nullopt;
}

bool has_unwritten_sector(std::string_view file, std::size_t offset) {
  while (offset < file.size()) {
    const std::size_t end = std::min(file.size(), (offset / kSectorBytes + 1) * kSectorBytes);
    const std::string_view sector = file.substr(offset, end - offset);
    if (sector.find_first_not_of('\0') == sector.npos) return true;
    offset = end;
  }
  return false;
}

// Empty, or what is wrong.
std::string replay_records(std::string_view payload, const LogSink& to) {
  ArchiveReader reader(payload);
  while (!reader.at_end()) {
    LogRecord record;
    reader(record);
    if (!reader.error().empty()) return fmt::format("a record that cannot be read: {}", reader.error());
    if (const auto* change = std::get_if<JobChange>(&record); change != nullptr && !makes_sense(*change))
      return "a job's record that makes no sense";
    to(record);
  }
  return {};
}

}  // namespace

std::string file_header(std::uint64_t salt) {
  std::string out(kMagic);
  ArchiveWriter{out}(kVersion, salt);
  ArchiveWriter{out}(crc32c(out));
  return out;
}

std::uint64_t salt_of(std::string_view file) {
  return wire::load_u64(file.data() + kMagic.size() + 1);
}

void Encoder::add(const LogRecord& record) {
  ArchiveWriter{bytes_}(record);
}

std::string_view Encoder::seal(std::uint64_t salt, std::uint64_t offset) {
  const std::string_view payload = std::string_view(bytes_).substr(kFrameHeaderBytes);
  bytes_.replace(0, kFrameHeaderBytes, frame_header(salt, offset, payload.size(), crc32c(payload)));
  return bytes_;
}

void Encoder::clear() {
  if (bytes_.capacity() > kKeptBytes) bytes_ = std::string();
  bytes_.assign(kFrameHeaderBytes, '\0');
}

Replayed replay(std::string_view file, const LogSink& to) {
  using End = Replayed::End;
  Replayed out;
  const auto damaged = [&](std::string text) {
    out.end = End::kDamaged;
    out.text = std::move(text);
    return out;
  };
  if (file.size() < kFileHeaderBytes || !file.starts_with(kMagic)) return damaged("it is no state log");
  if (const char version = file[kMagic.size()]; version != kVersion)
    return damaged(fmt::format("it is of version {}, this release reads version {}",
                               static_cast<int>(version), static_cast<int>(kVersion)));
  if (crc32c(file.substr(0, kHeaderCrcOffset)) != wire::load_u32(file.data() + kHeaderCrcOffset))
    return damaged("its header's checksum does not fit");

  const std::uint64_t salt = salt_of(file);
  std::size_t at = kFileHeaderBytes;
  while (true) {
    out.good_bytes = at;
    if (at == file.size()) return out;
    const auto header = read_header(file, salt, at);
    if (header && is_whole(file, at, *header)) {
      const std::string wrong = replay_records(file.substr(at + kFrameHeaderBytes, header->length), to);
      if (!wrong.empty()) return damaged(fmt::format("the frame at offset {} has {}", at, wrong));
      ++out.num_frames;
      at += kFrameHeaderBytes + header->length;
      continue;
    }
    const bool cut_short = header ? !fits(file, at, *header) : file.size() - at < kFrameHeaderBytes;
    if (!cut_short) {
      // A frame is begun after the one before it was synced: before another one, it had been whole.
      const std::size_t from = header ? at + kFrameHeaderBytes + header->length : at + 1;
      if (const auto next = find_frame(file, salt, from))
        return damaged(fmt::format(
            "the frame at offset {} is not what was written, and a good one follows at {}", at, *next));
      if (!has_unwritten_sector(file, at))
        return damaged(fmt::format("the last frame, at offset {}, is not what was written", at));
    }
    out.end = End::kTorn;
    return out;
  }
}

}  // namespace muster::journal
