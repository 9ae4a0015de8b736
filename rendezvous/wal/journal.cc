// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/wal/journal.h"

#include <algorithm>
#include <optional>

#include <boost/crc.hpp>
#include <fmt/format.h>

#include "rendezvous/protocol/record_fields.h"
#include "rendezvous/store/wire.h"

namespace muster::journal {
namespace {

constexpr std::string_view kMagic = "MUSTLOG";
constexpr char kVersion = 3;  // 1: jobs without steps
constexpr char kOldest = 2;   // without what the last generation reached while nodes gather
constexpr std::size_t kHeaderCrcOffset = 16;
// A buffer that grew beyond this for one large frame is given back.
constexpr std::size_t kKeptBytes = std::size_t{1} << 20;

std::uint32_t crc32c(std::string_view bytes) {
  boost::crc_optimal<32, 0x1EDC6F41, 0xFFFFFFFF, 0xFFFFFFFF, true, true> crc;
  crc.process_bytes(bytes.data(), bytes.size());
  return crc.checksum();
}

void put_u64(std::string& out, std::uint64_t value) {
  wire::put_i64(out, static_cast<std::int64_t>(value));
}

std::string frame_header(std::uint64_t salt, std::uint64_t offset, std::uint64_t length,
                         std::uint32_t payload_crc) {
  std::string covered;
  put_u64(covered, salt);
  put_u64(covered, offset);
  put_u64(covered, length);
  wire::put_u32(covered, payload_crc);
  const std::uint32_t crc = crc32c(covered);
  std::string out = covered.substr(16);
  wire::put_u32(out, crc);
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

bool has_value(StoreChange::Kind kind) {
  return kind != StoreChange::Kind::kErase && kind != StoreChange::Kind::kPop;
}

// A record of a hosted store. Empty, or what is wrong.
std::string tell_hosted(Type type, FieldReader& reader, Recorder& to) {
  constexpr std::string_view kShort = "a record that ends within a field";
  const auto instance = static_cast<std::uint64_t>(reader.number());
  ChannelName name;
  ChannelMark mark;
  switch (type) {
    case Type::kHostedBegan: {
      const std::string_view job = reader.text();
      const std::int64_t generation = reader.number();
      if (!reader.ok()) return std::string(kShort);
      to.hosted_began(job, generation, instance);
      return {};
    }
    case Type::kHostedEnded:
      if (!reader.ok()) return std::string(kShort);
      to.hosted_ended(instance);
      return {};
    case Type::kHostedChanged: {
      StoreChange change;
      change.kind = static_cast<StoreChange::Kind>(reader.byte());
      if (change.kind < StoreChange::Kind::kSet || change.kind > StoreChange::Kind::kPop)
        return "a change that means nothing";
      change.key = reader.text();
      if (has_value(change.kind)) change.value = reader.text();
      if (!reader.ok()) return std::string(kShort);
      to.hosted_changed(instance, change);
      return {};
    }
    default:
      break;
  }
  reader(name.node.high, name.node.low, name.channel);
  if (type == Type::kHostedDone) reader(mark.end, mark.answer, mark.barrier);
  if (!reader.ok()) return std::string(kShort);
  if (type == Type::kHostedDone)
    to.hosted_done(instance, name, mark);
  else
    to.hosted_gone(instance, name);
  return {};
}

// Empty, or what is wrong.
std::string tell_records(std::string_view payload, Recorder& to) {
  FieldReader reader(payload);
  while (!reader.at_end()) {
    const auto type = static_cast<Type>(reader.byte());
    if (type >= Type::kHostedBegan && type <= Type::kHostedGone) {
      if (std::string wrong = tell_hosted(type, reader, to); !wrong.empty()) return wrong;
      continue;
    }
    const std::string_view name = reader.text();
    const bool has_value = type == Type::kSet || type == Type::kAppend || type == Type::kPush ||
                           type == Type::kJob || type == Type::kJobProgress;
    const std::string_view value = has_value ? reader.text() : std::string_view();
    membership::NodeId node;
    if (type == Type::kJobFinished || type == Type::kJobLeft) reader(node.high, node.low);
    if (!reader.ok()) return "a record that ends within a field";
    switch (type) {
      case Type::kSet:
        to.set(name, value);
        break;
      case Type::kAppend:
        to.append(name, value);
        break;
      case Type::kErase:
        to.erase(name);
        break;
      case Type::kPush:
        to.push(name, value);
        break;
      case Type::kPop:
        to.pop(name);
        break;
      case Type::kJob: {
        const auto record = decode_job(value);
        if (!record) return "a job's record that makes no sense";
        to.job(name, *record);
        break;
      }
      case Type::kJobProgress: {
        const auto progress = decode_progress(value);
        if (!progress) return "a record of a job's steps that makes no sense";
        to.job_progress(name, *progress);
        break;
      }
      case Type::kJobFinished:
        to.job_finished(name, node);
        break;
      case Type::kJobLeft:
        to.job_left(name, node);
        break;
      case Type::kJobForgotten:
        to.job_forgotten(name);
        break;
      default:
        return fmt::format("a record of unknown type {}; was it written by a newer release?",
                           static_cast<int>(type));
    }
  }
  return {};
}

}  // namespace

std::string file_header(std::uint64_t salt) {
  std::string out(kMagic);
  out.push_back(kVersion);
  put_u64(out, salt);
  wire::put_u32(out, crc32c(out));
  return out;
}

std::uint64_t salt_of(std::string_view file) {
  return wire::load_u64(file.data() + kMagic.size() + 1);
}

std::string& Encoder::begin(Type type) {
  bytes_.push_back(static_cast<char>(type));
  return bytes_;
}

void Encoder::set(std::string_view key, std::string_view value) {
  wire::put_bytes(begin(Type::kSet), key);
  wire::put_bytes(bytes_, value);
}
void Encoder::append(std::string_view key, std::string_view bytes) {
  wire::put_bytes(begin(Type::kAppend), key);
  wire::put_bytes(bytes_, bytes);
}
void Encoder::erase(std::string_view key) {
  wire::put_bytes(begin(Type::kErase), key);
}
void Encoder::push(std::string_view queue, std::string_view element) {
  wire::put_bytes(begin(Type::kPush), queue);
  wire::put_bytes(bytes_, element);
}
void Encoder::pop(std::string_view queue) {
  wire::put_bytes(begin(Type::kPop), queue);
}
void Encoder::job(std::string_view name, const JobRecord& record) {
  std::string text;
  encode(record, text);
  wire::put_bytes(begin(Type::kJob), name);
  wire::put_bytes(bytes_, text);
}
void Encoder::about_node(Type type, std::string_view name, const membership::NodeId& node) {
  wire::put_bytes(begin(type), name);
  put_u64(bytes_, node.high);
  put_u64(bytes_, node.low);
}
void Encoder::job_finished(std::string_view name, const membership::NodeId& node) {
  about_node(Type::kJobFinished, name, node);
}
void Encoder::job_progress(std::string_view name, const JobProgress& progress) {
  std::string text;
  encode(progress, text);
  wire::put_bytes(begin(Type::kJobProgress), name);
  wire::put_bytes(bytes_, text);
}
void Encoder::job_left(std::string_view name, const membership::NodeId& node) {
  about_node(Type::kJobLeft, name, node);
}
void Encoder::job_forgotten(std::string_view name) {
  wire::put_bytes(begin(Type::kJobForgotten), name);
}

void Encoder::begin_hosted(Type type, std::uint64_t instance) {
  put_u64(begin(type), instance);
}
void Encoder::put(const ChannelName& name) {
  FieldWriter{bytes_}(name.node.high, name.node.low, name.channel);
}
void Encoder::hosted_began(std::string_view job, std::int64_t generation, std::uint64_t instance) {
  begin_hosted(Type::kHostedBegan, instance);
  wire::put_bytes(bytes_, job);
  wire::put_i64(bytes_, generation);
}
void Encoder::hosted_ended(std::uint64_t instance) {
  begin_hosted(Type::kHostedEnded, instance);
}
void Encoder::hosted_changed(std::uint64_t instance, const StoreChange& change) {
  begin_hosted(Type::kHostedChanged, instance);
  bytes_.push_back(static_cast<char>(change.kind));
  wire::put_bytes(bytes_, change.key);
  if (has_value(change.kind)) wire::put_bytes(bytes_, change.value);
}
void Encoder::hosted_done(std::uint64_t instance, const ChannelName& name, const ChannelMark& mark) {
  begin_hosted(Type::kHostedDone, instance);
  put(name);
  FieldWriter{bytes_}(mark.end, mark.answer, mark.barrier);
}
void Encoder::hosted_gone(std::uint64_t instance, const ChannelName& name) {
  begin_hosted(Type::kHostedGone, instance);
  put(name);
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

Replayed replay(std::string_view file, Recorder& to) {
  using End = Replayed::End;
  Replayed out;
  const auto damaged = [&](std::string text) {
    out.end = End::kDamaged;
    out.text = std::move(text);
    return out;
  };
  if (file.size() < kFileHeaderBytes || !file.starts_with(kMagic)) return damaged("it is no state log");
  if (const char version = file[kMagic.size()]; version < kOldest || version > kVersion)
    return damaged(fmt::format("it is of version {}, this release reads versions {} and {}",
                               static_cast<int>(version), static_cast<int>(kOldest),
                               static_cast<int>(kVersion)));
  if (crc32c(file.substr(0, kHeaderCrcOffset)) != wire::load_u32(file.data() + kHeaderCrcOffset))
    return damaged("its header's checksum does not fit");

  const std::uint64_t salt = salt_of(file);
  std::size_t at = kFileHeaderBytes;
  while (true) {
    out.good_bytes = at;
    if (at == file.size()) return out;
    const auto header = read_header(file, salt, at);
    if (header && is_whole(file, at, *header)) {
      const std::string wrong = tell_records(file.substr(at + kFrameHeaderBytes, header->length), to);
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
