// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/protocol/control.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <type_traits>
#include <utility>

#include <fmt/format.h>

namespace muster::control {
namespace {

constexpr std::size_t kLengthBytes = 4;
static_assert(std::endian::native == std::endian::little, "numbers go as they lie in memory");

// The fields of every type in wire order, once for both directions.

template <class Archive>
void fields(Archive& io, Start& m) {
  io(m.job, m.host, m.nonce);
}
template <class Archive>
void fields(Archive& io, Challenge& m) {
  io(m.has_secret, m.nonce);
}
template <class Archive>
void fields(Archive& io, Proof& m) {
  io(m.mac);
}
template <class Archive>
void fields(Archive& io, Welcome& m) {
  io(m.mac, m.heartbeat_ms, m.software, m.reconnect_ms);
}
template <class Archive>
void fields(Archive& io, Refused& m) {
  io.enumerator(m.reason, Refused::Reason::kBusy);
  io(m.text);
}
template <class Archive>
void fields(Archive& io, membership::Request& m) {
  io(m.id.high, m.id.low, m.host, m.machine, m.role, m.wanted_ranks, m.order, m.addresses, m.master_port,
     m.unfit, m.program);
}
template <class Archive>
void fields(Archive& io, membership::Settings& m) {
  io(m.min_nodes, m.max_nodes, m.spares, m.max_restarts, m.join_timeout, m.last_call_timeout, m.stop_timeout,
     m.heartbeat_timeout, m.cool_down, m.reconnect_grace, m.grow_at_safe_point, m.safe_point_patience,
     m.restart_after_loss, m.max_without_progress);
}
template <class Archive>
void fields(Archive& io, membership::Cause& m) {
  io.enumerator(m.kind, membership::Cause::Kind::kStoreLost);
  io(m.host, m.group_rank, m.rank, m.exit_code, m.text);
}
template <class Archive>
void fields(Archive& io, Join& m) {
  fields(io, m.request);
  fields(io, m.settings);
  io(m.resume, m.software, m.age);
}
template <class Archive>
void fields(Archive& io, Ready& m) {
  io(m.generation, m.master_port, m.reached.epoch, m.reached.step);
}
template <class Archive>
void fields(Archive&, Heartbeat&) {}
template <class Archive>
void fields(Archive& io, Assignment& m) {
  io(m.generation, m.restarts_used, m.group_rank, m.group_world_size, m.base_rank, m.ranks, m.world_size,
     m.role_base_rank, m.role_world_size, m.master_addresses, m.master_port, m.master_host, m.peer_addresses,
     m.peer_port, m.peer_host);
}
template <class Archive>
void fields(Archive& io, Waiting& m) {
  io(m.present, m.min_nodes, m.max_nodes, m.outside, m.text, m.master_addresses, m.master_port, m.master_host,
     m.rest);
}
template <class Archive>
void fields(Archive& io, GenerationOver& m) {
  io(m.generation, m.restarts_used);
  fields(io, m.cause);
}
template <class Archive>
void fields(Archive& io, Closed& m) {
  fields(io, m.cause);
}
template <class Archive>
void fields(Archive& io, WorkerFailed& m) {
  io(m.generation, m.rank, m.exit_code, m.may_restart, m.machine_at_fault, m.text, m.reached.epoch,
     m.reached.step);
}
template <class Archive>
void fields(Archive& io, Finished& m) {
  io(m.generation);
}
template <class Archive>
void fields(Archive& io, SafePoint& m) {
  io(m.generation);
}
template <class Archive>
void fields(Archive& io, SafePointPassed& m) {
  io(m.generation);
}
template <class Archive>
void fields(Archive& io, Report& m) {
  io(m.generation, m.host, m.group_rank, m.payload);
}
template <class Archive>
void fields(Archive& io, Leave& m) {
  io(m.reason);
}
template <class Archive>
void fields(Archive& io, Stop& m) {
  io(m.exit_code, m.reason, m.or_leave);
}
template <class Archive>
void fields(Archive& io, StoreAttach& m) {
  io(m.generation, m.instance, m.num_connections);
}
template <class Archive>
void fields(Archive& io, StoreAttached& m) {
  io(m.generation, m.instance);
}
template <class Archive>
void fields(Archive& io, StoreRefused& m) {
  io(m.generation, m.text);
}
template <class Archive>
void fields(Archive& io, StoreOpen& m) {
  io(m.connection, m.acked);
}
template <class Archive>
void fields(Archive& io, StoreRequest& m) {
  io(m.connection, m.number, m.acked, m.more, m.bytes);
}
template <class Archive>
void fields(Archive& io, StoreAnswer& m) {
  io(m.connection, m.number, m.more, m.bytes);
}
template <class Archive>
void fields(Archive& io, StoreClose& m) {
  io(m.connection, m.reason);
}
template <class Archive>
void fields(Archive& io, Clock& m) {
  io(m.asked, m.received, m.answered);
}

template <class Archive>
void fields(Archive& io, Hang& m) {
  io(m.generation);
  io.enumerator(m.kind, Hang::Kind::kKnown);
  io(m.number, m.host, m.group_rank, m.payload);
}

template <class Archive>
void fields(Archive& io, Remark& m) {
  io(m.text);
}

class Writer {
 public:
  explicit Writer(std::string& out) : out_(out) {}

  template <class... T>
  void operator()(const T&... values) {
    (put(values), ...);
  }
  template <class E>
  void enumerator(E value, E) {
    put(static_cast<std::uint8_t>(value));
  }

 private:
  template <class T>
  requires std::is_integral_v<T>
  void put(T value) {
    char bytes[sizeof value];
    std::memcpy(bytes, &value, sizeof value);
    out_.append(bytes, sizeof value);
  }
  void put(bool value) { out_.push_back(value ? 1 : 0); }
  void put(Millis value) { put(static_cast<std::int64_t>(value.count())); }
  void put(const std::string& value) {
    put(static_cast<std::uint32_t>(value.size()));
    out_ += value;
  }
  template <std::size_t N>
  void put(const std::array<std::uint8_t, N>& value) {
    out_.append(value.begin(), value.end());
  }
  template <class T>
  void put(const std::optional<T>& value) {
    put(value.has_value());
    if (value) put(*value);
  }
  void put(const std::vector<std::string>& values) {
    put(static_cast<std::uint32_t>(values.size()));
    for (const std::string& value : values) put(value);
  }

  std::string& out_;
};

class Reader {
 public:
  Reader(std::string_view in, std::size_t max_list) : in_(in), max_list_(max_list) {}

  template <class... T>
  void operator()(T&... values) {
    (take(values), ...);
  }
  template <class E>
  void enumerator(E& value, E last) {
    std::uint8_t number = 0;
    take(number);
    if (number > static_cast<std::uint8_t>(last)) return bad("a number that means nothing");
    value = static_cast<E>(number);
  }

  void bad(std::string_view text) {
    if (error_.empty()) error_ = text;
    in_ = {};
  }
  [[nodiscard]] const std::string& error() const { return error_; }
  [[nodiscard]] std::size_t rest() const { return in_.size(); }

 private:
  [[nodiscard]] std::string_view bytes(std::size_t size) {
    if (in_.size() < size) {
      bad("it ends within a field");
      return {};
    }
    const std::string_view out = in_.substr(0, size);
    in_.remove_prefix(size);
    return out;
  }
  template <class T>
  requires std::is_integral_v<T>
  void take(T& value) {
    value = 0;
    if (const std::string_view from = bytes(sizeof value); !from.empty())
      std::memcpy(&value, from.data(), sizeof value);
  }
  void take(bool& value) {
    std::uint8_t byte = 0;
    take(byte);
    if (byte > 1) return bad("a yes or no that is neither");
    value = byte == 1;
  }
  void take(Millis& value) {
    std::int64_t count = 0;
    take(count);
    value = Millis(count);
  }
  void take(std::string& value) {
    std::uint32_t size = 0;
    take(size);
    value = bytes(size);
  }
  template <std::size_t N>
  void take(std::array<std::uint8_t, N>& value) {
    const std::string_view from = bytes(N);
    std::copy(from.begin(), from.end(), value.begin());
  }
  template <class T>
  void take(std::optional<T>& value) {
    bool there = false;
    take(there);
    value.reset();
    if (there) take(value.emplace());
  }
  void take(std::vector<std::string>& values) {
    std::uint32_t count = 0;
    take(count);
    if (count > max_list_) return bad("a list that is too long");
    values.clear();
    for (std::uint32_t i = 0; i < count && error_.empty(); ++i) take(values.emplace_back());
  }

  std::string_view in_;
  std::size_t max_list_;
  std::string error_;
};

// A message of the same type keeps its buffers: all of its fields are read.
template <std::size_t... I>
bool construct(Message& message, std::size_t index, std::index_sequence<I...>) {
  return message.index() == index || ((I == index && (message.emplace<I>(), true)) || ...);
}

// Of the first four bytes.
std::size_t load_length(std::string_view bytes) {
  std::uint32_t size = 0;
  std::memcpy(&size, bytes.data(), sizeof size);
  return size;
}

}  // namespace

std::string defect_of_job(std::string_view name) {
  if (name.empty()) return "a job needs a name (--rdzv-id)";
  if (name.size() > kMaxJobBytes)
    return fmt::format("a job's name (--rdzv-id) has at most {} bytes, this one {}", kMaxJobBytes,
                       name.size());
  const bool printable = std::all_of(
      name.begin(), name.end(), [](char c) { return static_cast<unsigned char>(c) >= 0x20 && c != 0x7f; });
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
  out.push_back(static_cast<char>(message.index() + 1));
  Writer writer(out);
  // fields() serves reading too and so takes its argument without const; a Writer changes nothing.
  std::visit([&](const auto& m) { fields(writer, const_cast<std::remove_cvref_t<decltype(m)>&>(m)); },
             message);
  const auto size = static_cast<std::uint32_t>(out.size() - begin - kLengthBytes);
  std::memcpy(out.data() + begin, &size, sizeof size);
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
  const bool at_once =
      pending_.empty() && input.size() >= kLengthBytes && input.size() - kLengthBytes >= load_length(input);
  if (!at_once && !gather(kLengthBytes)) return Step::kNeedMore;
  const std::size_t size = load_length(at_once ? input : pending_);
  if (size == 0) return reject("an empty frame");
  if (size > limits_.max_frame_bytes)
    return reject(
        fmt::format("a frame of {} bytes is announced, the limit is {}", size, limits_.max_frame_bytes));
  if (!at_once && !gather(kLengthBytes + size)) return Step::kNeedMore;

  const std::string_view frame = std::string_view(at_once ? input : pending_).substr(kLengthBytes, size);
  if (at_once) input.remove_prefix(kLengthBytes + size);
  const std::size_t type = static_cast<unsigned char>(frame.front());
  if (type == 0 || !construct(message, type - 1, std::make_index_sequence<std::variant_size_v<Message>>{}))
    return reject(fmt::format("unknown message type {}", type));
  Reader reader(frame.substr(1), limits_.max_list);
  std::visit([&](auto& m) { fields(reader, m); }, message);
  if (!reader.error().empty()) return reject(fmt::format("{}: {}", name_of(message), reader.error()));
  if (reader.rest() != 0)
    return reject(fmt::format("{}: {} bytes too many", name_of(message), reader.rest()));
  constexpr std::size_t kKeptBytes = 4096;  // of each connection; frames of the store are read in the input
  if (pending_.capacity() > kKeptBytes)
    pending_ = std::string();
  else
    pending_.clear();
  return Step::kMessage;
}

}  // namespace muster::control
