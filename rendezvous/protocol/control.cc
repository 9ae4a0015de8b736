// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/protocol/control.h"

#include <algorithm>
#include <type_traits>
#include <utility>

#include <fmt/format.h>

#include "rendezvous/base/archive.h"

namespace muster::control {
namespace {

constexpr std::size_t kLengthBytes = 4;

/// "Join" of control::Join, from what the compiler calls this function: "... [with T = muster::control::Join;
/// ...]".
template <class T>
constexpr std::string_view type_name() {
  std::string_view text = __PRETTY_FUNCTION__;
  text.remove_prefix(text.find("T = ") + 4);
  text = text.substr(0, text.find_first_of(";]"));
  return text.substr(text.rfind(':') + 1);
}
static_assert(type_name<Join>() == "Join");

}  // namespace

std::string_view name_of(const Message& message) {
  return std::visit([](const auto& each) { return type_name<std::remove_cvref_t<decltype(each)>>(); },
                    message);
}

bool is_about_store(const Message& message) {
  return name_of(message).starts_with("Store");
}

std::string defect_of_job(std::string_view name) {
  if (name.empty()) return "a job needs a name (--rdzv-id)";
  if (name.size() > kMaxJobBytes)
    return fmt::format("a job's name (--rdzv-id) has at most {} bytes, this one {}", kMaxJobBytes,
                       name.size());
  const bool printable =
      std::ranges::all_of(name, [](char c) { return static_cast<unsigned char>(c) >= 0x20 && c != 0x7f; });
  return printable ? "" : "a job's name (--rdzv-id) has no control characters";
}

std::uint8_t choose_version(const Preamble& offered) {
  return offered.lowest <= kProtocolVersion && kProtocolVersion <= offered.highest ? kProtocolVersion : 0;
}

void encode(const Preamble& preamble, std::string& out) {
  out += kMagic;
  out.push_back(static_cast<char>(preamble.lowest));
  out.push_back(static_cast<char>(preamble.highest));
}

void encode(const Message& message, std::string& out) {
  const std::size_t begin = out.size();
  out.append(kLengthBytes, '\0');
  ArchiveWriter{out}(message);
  const auto size = static_cast<std::uint32_t>(out.size() - begin - kLengthBytes);
  for (std::size_t i = 0; i < kLengthBytes; ++i) out[begin + i] = static_cast<char>(size >> (8 * i) & 0xff);
}

Decoder::Step Decoder::reject(std::string text) {
  error_ = std::move(text);
  pending_ = std::string();
  return Step::kError;
}

Decoder::Step Decoder::next(std::string_view& input, Message& message) {
  if (!error_.empty()) return Step::kError;
  // Brings what is pending up to `size` bytes.
  const auto gather = [&](std::size_t size) {
    const std::size_t take = std::min(size - std::min(size, pending_.size()), input.size());
    pending_.append(input.substr(0, take));
    input.remove_prefix(take);
    return pending_.size() >= size;
  };
  if (!preamble_done_) {
    const bool whole = gather(kPreambleBytes);
    const std::size_t known = std::min(pending_.size(), kMagic.size());
    if (pending_.substr(0, known) != kMagic.substr(0, known)) return reject("no muster control connection");
    if (!whole) return Step::kNeedMore;
    preamble_ = {static_cast<std::uint8_t>(pending_[kMagic.size()]),
                 static_cast<std::uint8_t>(pending_[kMagic.size() + 1])};
    preamble_done_ = true;
    pending_.clear();
    return Step::kPreamble;
  }
  // A frame that lies whole in the input is read there.
  const auto length = [](std::string_view bytes) {
    std::uint32_t size = 0;
    ArchiveReader{bytes.substr(0, kLengthBytes)}(size);
    return size;
  };
  const bool at_once =
      pending_.empty() && input.size() >= kLengthBytes && input.size() - kLengthBytes >= length(input);
  if (!at_once && !gather(kLengthBytes)) return Step::kNeedMore;
  const std::uint32_t size = length(at_once ? input : pending_);
  if (size == 0) return reject("an empty frame");
  if (size > max_frame_bytes_)
    return reject(fmt::format("a frame of {} bytes is announced, the limit is {}", size, max_frame_bytes_));
  if (!at_once && !gather(kLengthBytes + size)) return Step::kNeedMore;

  const std::string_view frame = std::string_view(at_once ? input : pending_).substr(kLengthBytes, size);
  if (at_once) input.remove_prefix(kLengthBytes + size);
  const std::size_t type = static_cast<unsigned char>(frame.front());
  if (type == 0 || type > std::variant_size_v<Message>)
    return reject(fmt::format("unknown message type {}", type));
  ArchiveReader reader(frame, kMaxList);
  reader(message);
  if (!reader.error().empty()) return reject(fmt::format("{}: {}", name_of(message), reader.error()));
  if (!reader.at_end())
    return reject(fmt::format("{}: {} bytes too many", name_of(message), reader.bytes_left()));
  constexpr std::size_t kKeptBytes = 4096;
  if (pending_.capacity() > kKeptBytes)
    pending_ = std::string();
  else
    pending_.clear();
  return Step::kMessage;
}

}  // namespace muster::control
