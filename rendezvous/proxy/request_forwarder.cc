// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/proxy/request_forwarder.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "rendezvous/proxy/hosted_stores.h"

namespace muster {
namespace {

using wire::Op;
using wire::OpKind;

constexpr std::size_t kKeptBytes = 65536;  // of an empty buffer

struct WorkerRequest {
  std::string bytes;
  bool discard = false;  // its answer is not for the worker

  [[nodiscard]] Op op() const { return static_cast<Op>(bytes.front()); }
  [[nodiscard]] OpKind kind() const { return op_info(op()).kind; }
  [[nodiscard]] bool is_wait() const { return op() == Op::kWait || op() == Op::kBarrier; }
};

}  // namespace

struct RequestForwarder::Connection {
  Connection(Number its_number, const wire::Limits& limits, wire::Generation legacy)
      : number(its_number), decoder(limits, legacy) {}

  [[nodiscard]] bool reads_too_slowly() const { return out.size() - taken >= kMaxUnreadBytes; }
  [[nodiscard]] bool full() const {
    return requests.size() >= kMaxRequests || request_bytes >= kMaxRequestBytes || reads_too_slowly();
  }

  /// Whether the next request may be sent before those that are under way are answered.
  [[nodiscard]] bool may_send() const {
    if (num_sent == requests.size() || reads_too_slowly()) return false;
    if (num_sent == 0) return true;
    const WorkerRequest& last = requests[num_sent - 1];
    const WorkerRequest& next = requests[num_sent];
    switch (last.kind()) {
      case OpKind::kSilentChange:
        return true;
      case OpKind::kRead: {
        const bool too_many = num_sent >= kMaxReads && requests[num_sent - kMaxReads].kind() == OpKind::kRead;
        return next.kind() == OpKind::kRead && !too_many;
      }
      default:
        return last.is_wait() && next.op() == Op::kCancelWait;
    }
  }

  void pop() {
    const WorkerRequest& first = requests.front();
    request_bytes -= first.bytes.size();
    if (first.kind() != OpKind::kSilentChange) --num_asked;
    requests.pop_front();
    --num_sent;
    ++acked;
  }

  Number number;
  wire::Decoder decoder;
  std::deque<WorkerRequest> requests;  // that are not known to be done; the first has the number acked + 1
  std::uint64_t acked = 0;             // requests that are done, and their answers are here
  std::size_t num_asked = 0;           // of requests: that have an answer
  std::size_t num_sent = 0;            // of requests: whole, over the present control connection
  std::size_t sent_bytes = 0;          // of the request after these
  std::size_t request_bytes = 0;       // of requests
  std::size_t closing_bytes = 0;       // of these, as counted last while `closing`
  std::string answer;                  // the pieces of one that is not whole
  std::string out;                     // for the worker, from taken
  std::size_t taken = 0;
  std::string reason;  // it is to be closed
  bool paused = false;
  bool closing = false;  // the worker has gone
  bool lost = false;     // the coordinator has closed it
  bool in_turns = false;
  bool in_ready = false;
};

RequestForwarder::RequestForwarder(std::int64_t generation, const wire::Limits& limits,
                                   wire::Generation legacy)
    : generation_(generation), limits_(limits), legacy_(legacy) {}

RequestForwarder::~RequestForwarder() = default;

// Workers.

RequestForwarder::Number RequestForwarder::open() {
  const Number number = next_connection_++;
  connections_.emplace(number, std::make_unique<Connection>(number, limits_, legacy_));
  if (linked_) opens_.push_back(number);
  return number;
}

RequestForwarder::State RequestForwarder::receive(Number number, std::string_view& input) {
  Connection& connection = at(number);
  wire::Request request;
  while (true) {
    if (!connection.reason.empty()) return State::kClose;
    connection.paused = connection.full();
    if (connection.paused) return State::kPaused;
    switch (connection.decoder.next(input, request)) {
      case wire::Decoder::Step::kRequest:
        take(connection, request);
        break;
      case wire::Decoder::Step::kNeedMore:
        return State::kNeedInput;
      case wire::Decoder::Step::kUndecided:
        return State::kUndecided;
      case wire::Decoder::Step::kError:
        connection.reason = connection.decoder.error();
        return State::kClose;
    }
  }
}

RequestForwarder::State RequestForwarder::settle(Number number) {
  Connection& connection = at(number);
  wire::Request request;
  if (connection.decoder.settle(request) != wire::Decoder::Step::kRequest) return State::kNeedInput;
  take(connection, request);
  std::string_view nothing;
  return receive(number, nothing);
}

void RequestForwarder::take(Connection& connection, const wire::Request& request) {
  if (request.op == Op::kValidate || (request.op == Op::kMultiGet && request.items.empty())) return;
  if ((request.op == Op::kPing || request.op == Op::kCancelWait) && connection.num_asked == 0) {
    if (request.op == Op::kPing)
      wire::put_u32(connection.out, static_cast<std::uint32_t>(request.number));
    else
      connection.out.push_back(wire::kWaitCanceled);
    return make_ready(connection);
  }
  // An old client gives up a wait without a word.
  if (connection.decoder.generation() < wire::Generation::kModern && request.op != Op::kCancelWait &&
      !connection.requests.empty() && connection.requests.back().is_wait()) {
    connection.requests.back().discard = true;
    insert(connection, connection.requests.size(), {.op = Op::kCancelWait}, true);
  }
  insert(connection, connection.requests.size(), request, false);
}

void RequestForwarder::insert(Connection& connection, std::size_t at, const wire::Request& request,
                              bool discard) {
  WorkerRequest& added =
      *connection.requests.emplace(connection.requests.begin() + static_cast<std::ptrdiff_t>(at));
  added.discard = discard;
  wire::encode(request, added.bytes, wire::Generation::kRelayed);
  connection.request_bytes += added.bytes.size();
  if (added.kind() != OpKind::kSilentChange) ++connection.num_asked;
  take_turn(connection);
}

void RequestForwarder::make_ready(Connection& connection) {
  if (connection.closing || std::exchange(connection.in_ready, true)) return;
  ready_.push_back(connection.number);
}

std::vector<RequestForwarder::Number> RequestForwarder::take_ready() {
  auto out = std::exchange(ready_, {});
  std::erase_if(out, [&](Number number) {
    const auto found = connections_.find(number);
    if (found == connections_.end()) return true;
    found->second->in_ready = false;
    return found->second->closing;
  });
  return out;
}

std::string_view RequestForwarder::answers(Number number) const {
  const Connection& connection = at(number);
  return std::string_view(connection.out).substr(connection.taken);
}

void RequestForwarder::consumed(Number number, std::size_t size) {
  Connection& connection = at(number);
  connection.taken += size;
  if (connection.taken == connection.out.size()) {
    connection.taken = 0;
    if (connection.out.capacity() > kKeptBytes) connection.out = std::string();
    connection.out.clear();
  }
  if (connection.paused && !connection.full()) make_ready(connection);
  take_turn(connection);
}

const std::string& RequestForwarder::reason(Number number) const {
  return at(number).reason;
}

std::size_t RequestForwarder::num_buffered_bytes(Number number) const {
  const Connection& connection = at(number);
  return connection.out.size() + connection.answer.size() + connection.decoder.num_pending_bytes() +
         connection.request_bytes;
}

bool RequestForwarder::between_requests(Number number) const {
  return !at(number).decoder.in_request();
}

void RequestForwarder::close(Number number) {
  Connection& connection = at(number);
  if (connection.lost) {
    connections_.erase(number);
    return;
  }
  connection.closing = true;
  connection.out = std::string();
  connection.taken = 0;
  // Nobody waits any more; what was asked for behind a wait is done, as a server without a proxy does it.
  auto& requests = connection.requests;
  for (std::size_t i = 0; i < requests.size(); ++i)
    if (requests[i].is_wait() && (i + 1 == requests.size() || requests[i + 1].op() != Op::kCancelWait))
      insert(connection, i + 1, {.op = Op::kCancelWait}, true);
  // The answer to it says that the rest is done. Until then the requests are kept for another process.
  if (!requests.empty() && requests.back().op() != Op::kCancelWait)
    insert(connection, requests.size(), {.op = Op::kCancelWait}, true);
  count_closing(connection, connection.request_bytes);
  take_turn(connection);
}

void RequestForwarder::count_closing(Connection& connection, std::size_t bytes) {
  num_closing_bytes_ += bytes - std::exchange(connection.closing_bytes, bytes);  // modulo 2^64
}

// The coordinator.

void RequestForwarder::connected() {
  linked_ = true;
  attached_ = false;
  attach_is_due_ = true;
  opens_.clear();
  closes_.clear();
  turns_.clear();
  for (const auto& [number, connection] : connections_) {
    connection->num_sent = 0;
    connection->sent_bytes = 0;
    connection->answer = std::string();
    connection->in_turns = false;
    if (!connection->lost) opens_.push_back(number);
  }
  std::ranges::sort(opens_);
  num_reopened_ = static_cast<std::uint32_t>(opens_.size());
}

void RequestForwarder::disconnected() {
  linked_ = attached_ = false;
}

Result<void> RequestForwarder::receive(const control::Message& message) {
  const auto broken = [](const std::string& text) {
    return fail(ErrorCode::kProtocol, "the coordinator's store: " + text);
  };
  if (const auto* answer = std::get_if<control::StoreAnswer>(&message)) {
    if (!attached_) return {};  // of a former generation
    if (const std::string error = answered(*answer); !error.empty()) return broken(error);
  } else if (const auto* closing = std::get_if<control::StoreClose>(&message)) {
    if (attached_) closed(*closing);
  } else if (const auto* refused = std::get_if<control::StoreRefused>(&message)) {
    if (refused->generation == generation_) return fail(ErrorCode::kPeerGone, refused->text);
  } else if (const auto* attached = std::get_if<control::StoreAttached>(&message)) {
    if (attached->generation != generation_ || !linked_) return {};
    if (attached->instance == 0) return broken("an empty StoreAttached");
    instance_ = attached->instance;
    attached_ = true;
    for (const auto& [number, connection] : connections_) take_turn(*connection);
  }
  return {};
}

// Empty, or how it breaks the protocol.
std::string RequestForwarder::answered(const control::StoreAnswer& answer) {
  const auto found = connections_.find(answer.connection);
  if (found == connections_.end() || found->second->lost) return {};
  Connection& connection = *found->second;
  if (answer.number <= connection.acked || answer.number > connection.acked + connection.num_sent)
    return fmt::format("it answers request {} of connection {}, of which {} to {} are under way",
                       answer.number, answer.connection, connection.acked + 1,
                       connection.acked + connection.num_sent);
  if (answer.more) {
    connection.answer += answer.bytes;
    return {};
  }
  while (connection.acked + 1 < answer.number) {
    const WorkerRequest& first = connection.requests.front();
    // A wait that was given up has no answer of its own.
    if (first.kind() != OpKind::kSilentChange && !first.is_wait())
      return fmt::format("it leaves out the answer to request {} of connection {}", connection.acked + 1,
                         answer.connection);
    connection.pop();
  }
  const WorkerRequest& request = connection.requests.front();
  if ((request.kind() == OpKind::kSilentChange) != (answer.bytes.empty() && connection.answer.empty()))
    return fmt::format("its answer to request {} of connection {} has {} bytes", answer.number,
                       answer.connection, answer.bytes.size());
  if (!request.discard && !connection.closing) {
    connection.out += connection.answer;
    connection.out += answer.bytes;
    make_ready(connection);
  }
  if (!connection.answer.empty()) connection.answer = std::string();
  connection.pop();
  if (connection.closing) count_closing(connection, connection.request_bytes);
  if (connection.paused && !connection.full()) make_ready(connection);
  take_turn(connection);
  return {};
}

void RequestForwarder::closed(const control::StoreClose& closed) {
  const auto found = connections_.find(closed.connection);
  if (found == connections_.end() || found->second->lost) return;
  Connection& connection = *found->second;
  closes_.push_back(connection.number);  // so that it need not be remembered there
  if (connection.closing) {
    count_closing(connection, 0);
    connections_.erase(found);
    return;
  }
  connection.lost = true;
  connection.requests.clear();
  connection.request_bytes = connection.num_asked = connection.num_sent = connection.sent_bytes = 0;
  connection.answer = std::string();
  connection.reason = closed.reason.empty() ? "the coordinator closed it" : closed.reason;
  make_ready(connection);
}

void RequestForwarder::take_turn(Connection& connection) {
  if (!attached_ || !(connection.may_send() || (connection.closing && connection.requests.empty()))) return;
  if (!std::exchange(connection.in_turns, true)) turns_.push_back(connection.number);
}

bool RequestForwarder::next(control::Message& message) {
  if (!linked_) return false;
  const auto pop = [](std::deque<Number>& from) {
    const Number number = from.front();
    from.pop_front();
    return number;
  };
  if (std::exchange(attach_is_due_, false)) {
    message = control::StoreAttach{generation_, instance_, num_reopened_};
    return true;
  }
  if (!opens_.empty()) {
    const Number number = pop(opens_);
    message = control::StoreOpen{number, at(number).acked};
    return true;
  }
  if (!closes_.empty()) {
    message = control::StoreClose{pop(closes_), {}};
    return true;
  }
  while (!turns_.empty()) {
    const auto found = connections_.find(pop(turns_));
    if (found == connections_.end()) continue;
    Connection& connection = *found->second;
    connection.in_turns = false;
    if (connection.lost) continue;
    if (connection.may_send()) {
      const std::string_view bytes = connection.requests[connection.num_sent].bytes;
      const std::string_view piece = bytes.substr(connection.sent_bytes, kStorePieceBytes);
      connection.sent_bytes += piece.size();
      // A message that is used again keeps its buffer.
      if (!std::holds_alternative<control::StoreRequest>(message)) message = control::StoreRequest();
      auto& out = std::get<control::StoreRequest>(message);
      out.connection = connection.number;
      out.number = connection.acked + connection.num_sent + 1;
      out.acked = connection.acked;
      out.more = connection.sent_bytes < bytes.size();
      out.bytes = piece;
      if (!out.more) {
        connection.sent_bytes = 0;
        ++connection.num_sent;
      }
      take_turn(connection);
      return true;
    }
    if (connection.closing && connection.requests.empty()) {
      message = control::StoreClose{connection.number, {}};
      connections_.erase(found);
      return true;
    }
  }
  return false;
}

}  // namespace muster
