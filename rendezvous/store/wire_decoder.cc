// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/store/wire_decoder.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

namespace muster::wire {
namespace {

// advance() and its helpers return how many bytes of the request must be there to go on, or one of these.
constexpr std::size_t kDone = 0;
constexpr std::size_t kBad = static_cast<std::size_t>(-1);
constexpr std::size_t kAmbiguous = static_cast<std::size_t>(-2);

// Buffers larger than this are given back after the request that needed them.
constexpr std::size_t kKeptBytes = 65536;

}  // namespace

Decoder::Step Decoder::next(std::string_view& input, Request& request) {
  if (!error_.empty()) return Step::kError;
  if (delivered_) start_over();
  if (undecided_) {
    if (input.empty()) return Step::kUndecided;
    // A client up to 2.0 would be waiting for its answer.
    undecided_ = false;
    generation_ = Generation::kTorch21;
    op_ = Op::kAppend;
    layout_ = op_info(op_).layout;
  }
  while (true) {
    const bool direct = pending_.empty();
    const std::size_t need = advance(direct ? input : std::string_view(pending_));
    if (need == kBad) return Step::kError;
    if (need == kDone) {
      if (!direct) return deliver(pending_.data(), request);
      const char* base = input.data();
      input.remove_prefix(at_);
      return deliver(base, request);
    }
    if (need == kAmbiguous) {
      if (direct) {
        pending_.assign(input.substr(0, at_));
        input.remove_prefix(at_);
      }
      undecided_ = true;
      if (input.empty()) return Step::kUndecided;
      return next(input, request);
    }
    if (direct) {
      pending_.assign(input);
      input = {};
      return Step::kNeedMore;
    }
    const std::size_t take = std::min(need - pending_.size(), input.size());
    pending_.append(input.substr(0, take));
    input.remove_prefix(take);
    if (pending_.size() < need) return Step::kNeedMore;
  }
}

Decoder::Step Decoder::settle(Request& request) {
  if (!undecided_) return error_.empty() ? Step::kNeedMore : Step::kError;
  undecided_ = false;
  generation_ = Generation::kTorch20;
  op_ = Op::kDeleteKey;
  layout_ = op_info(op_).layout;
  return deliver(pending_.data(), request);
}

std::size_t Decoder::reject(std::string text) {
  error_ = std::move(text);
  return kBad;
}

void Decoder::start_over() {
  delivered_ = false;
  undecided_ = false;
  step_ = 0;
  at_ = 0;
  count_known_ = false;
  number_ = 0;
  fields_.clear();
  if (pending_.capacity() > kKeptBytes)
    pending_ = std::string();
  else
    pending_.clear();
  if (items_.capacity() > kKeptBytes / sizeof(std::string_view)) {
    items_ = {};
    fields_ = {};
  }
}

// Detects the generation, resolves the opcode.
std::size_t Decoder::begin_request(std::string_view bytes) {
  if (bytes.empty()) return 1;
  const auto byte = static_cast<unsigned char>(bytes[0]);
  if (generation_ == Generation::kUndetected) {
    if (byte == 0) {
      // VALIDATE, or a SET of an old client: as a key's length the magic would announce a gigabyte.
      if (bytes.size() < 5) return 5;
      const std::uint32_t word = load_u32(bytes.data() + 1);
      if (word != kMagic && word > limits_.max_key_bytes)
        return reject(
            fmt::format("first bytes 00 and 0x{:08x} are neither VALIDATE (0x{:08x}) nor an old client's SET",
                        word, kMagic));
      generation_ = word == kMagic ? Generation::kModern : legacy_;
    } else {
      if (byte > 11) return reject(fmt::format("first byte 0x{:02x} begins no TCPStore request", byte));
      generation_ = legacy_;
    }
  }

  if (generation_ == Generation::kRelayed) {
    if (byte == 0 || byte >= kNumOps) return reject(fmt::format("unknown relayed opcode 0x{:02x}", byte));
    op_ = static_cast<Op>(byte);
  } else if (generation_ == Generation::kModern) {
    if (byte == 0 && num_requests_ > 0) return reject("a second VALIDATE");
    if (byte >= kNumOps) return reject(fmt::format("unknown opcode 0x{:02x}", byte));
    op_ = static_cast<Op>(byte);
  } else if (byte <= 6) {
    op_ = static_cast<Op>(byte + 1);
  } else {
    // 9 to 11 exist in 2.1 only. A client up to 2.0 sends 7 on a connection that carries nothing else, and 8
    // is settled once its string is there.
    if (generation_ == Generation::kLegacy && byte != 8)
      generation_ = byte == 7 && num_requests_ == 0 ? Generation::kTorch20 : Generation::kTorch21;
    if (generation_ == Generation::kTorch20) {
      if (byte == 7) return reject("WATCH_KEY of PyTorch up to 2.0 is not served");
      if (byte > 8) return reject(fmt::format("unknown opcode 0x{:02x} for PyTorch up to 2.0", byte));
      op_ = Op::kDeleteKey;
    } else if (generation_ == Generation::kTorch21) {
      if (byte > 11) return reject(fmt::format("unknown opcode 0x{:02x} for PyTorch 2.1", byte));
      op_ = static_cast<Op>(byte + 1);
    } else {
      op_ = Op::kDeleteKey;  // provisional
    }
  }
  layout_ = op_info(op_).layout;
  at_ = 1;
  return kDone;
}

std::size_t Decoder::take_string(std::string_view bytes, std::size_t limit, std::string_view what) {
  if (bytes.size() - at_ < 8) return at_ + 8;
  const std::uint64_t size = load_u64(bytes.data() + at_);
  if (size > limit)
    return reject(
        fmt::format("{} announces a {} of {} bytes, the limit is {}", current_op(), what, size, limit));
  if (at_ + 8 + size > limits_.max_request_bytes)
    return reject(fmt::format("{} is longer than the limit of {} bytes for one request", current_op(),
                              limits_.max_request_bytes));
  if (bytes.size() - at_ - 8 < size) return at_ + 8 + size;
  fields_.push_back({at_ + 8, size});
  at_ += 8 + size;
  return kDone;
}

std::size_t Decoder::take_count(std::string_view bytes) {
  if (bytes.size() - at_ < 8) return at_ + 8;
  const std::uint64_t count = load_u64(bytes.data() + at_);
  if (count > limits_.max_keys)
    return reject(
        fmt::format("{} announces {} keys, the limit is {}", current_op(), count, limits_.max_keys));
  at_ += 8;
  count_known_ = true;
  strings_left_ = layout_[step_] == 'P' ? 2 * count : count;
  return kDone;
}

std::size_t Decoder::advance(std::string_view bytes) {
  if (at_ == 0)
    if (const std::size_t need = begin_request(bytes); need != kDone) return need;
  for (; step_ < layout_.size(); ++step_) {
    std::size_t need = kDone;
    switch (layout_[step_]) {
      case 'k':
        need = take_string(bytes, limits_.max_key_bytes, "key");
        break;
      case 'v':
        need = take_string(bytes, limits_.max_value_bytes, "value");
        break;
      case 'i':
        if (bytes.size() - at_ < 8) return at_ + 8;
        number_ = static_cast<std::int64_t>(load_u64(bytes.data() + at_));
        at_ += 8;
        break;
      case 'u':
        if (bytes.size() - at_ < 4) return at_ + 4;
        number_ = load_u32(bytes.data() + at_);
        at_ += 4;
        break;
      default:  // K, P
        if (!count_known_) need = take_count(bytes);
        while (need == kDone && strings_left_ > 0) {
          const bool value = layout_[step_] == 'P' && strings_left_ % 2 == 1;
          need = value ? take_string(bytes, limits_.max_value_bytes, "value")
                       : take_string(bytes, limits_.max_key_bytes, "key");
          if (need == kDone) --strings_left_;
        }
    }
    if (need != kDone) return need;
    if (generation_ == Generation::kLegacy && op_ == Op::kDeleteKey) {
      ++step_;
      return kAmbiguous;
    }
  }
  return kDone;
}

Decoder::Step Decoder::deliver(const char* base, Request& request) {
  const auto view = [&](const Field& field) { return std::string_view(base + field.begin, field.size); };
  request = Request{.op = op_, .number = number_};
  if (!layout_.empty() && (layout_[0] == 'K' || layout_[0] == 'P')) {
    items_.clear();
    for (const Field& field : fields_) items_.push_back(view(field));
    request.items = items_;
  } else {
    if (!fields_.empty()) request.key = view(fields_[0]);
    if (fields_.size() > 1) request.value = view(fields_[1]);
    if (fields_.size() > 2) request.desired = view(fields_[2]);
  }
  ++num_requests_;
  delivered_ = true;
  return Step::kRequest;
}

}  // namespace muster::wire
