// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/store_relay.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "rendezvous/hosted_stores.h"
#include "rendezvous/relay_worker.h"

namespace muster {
namespace {

using wire::Op;

// A worker is not listened to while so much of what it said is not on its way.
constexpr std::size_t kMaxUnsentBytes = std::size_t{1} << 20;

bool has_answer(const wire::Request& request) {
  switch (request.op) {
    case Op::kSet:
    case Op::kAppend:
    case Op::kMultiSet:
    case Op::kQueuePush:
      return false;
    case Op::kMultiGet:
      return !request.items.empty();
    default:
      return true;
  }
}

}  // namespace

StoreRelay::StoreRelay(std::int64_t generation, const StoreRelayOptions& options)
    : generation_(generation), options_(options) {}

StoreRelay::~StoreRelay() = default;

// Workers.

StoreRelay::WorkerId StoreRelay::open() {
  const WorkerId id = next_worker_++;
  workers_.emplace(id, std::make_unique<Worker>(id, options_, window_));
  if (connected_ || attaching_)
    urgent_.push_back(control::StoreOpen{id, 0});
  else
    at(id).resuming = true;  // connected() names it
  return id;
}

StoreRelay::State StoreRelay::receive(WorkerId id, std::string_view& input) {
  Worker& worker = at(id);
  wire::Request request;
  while (true) {
    if (!worker.reason.empty()) return State::kClose;
    if (!worker.held.empty() && worker.mode == Worker::Mode::kFree) {
      const std::string bytes = std::exchange(worker.held, {});
      std::string_view rest = bytes;
      wire::Decoder decoder(options_.wire, wire::Generation::kRelayed);
      if (decoder.next(rest, request) == wire::Decoder::Step::kRequest && !take(worker, request))
        return State::kClose;
      continue;
    }
    worker.paused = !worker.held.empty() || worker.mode == Worker::Mode::kAnswer ||
                    worker.mode == Worker::Mode::kCancelling || worker.mode == Worker::Mode::kDropping ||
                    worker.stream.num_unsent() >= kMaxUnsentBytes;
    if (worker.paused) return State::kPaused;
    switch (worker.decoder.next(input, request)) {
      case wire::Decoder::Step::kRequest:
        if (!take(worker, request)) return State::kClose;
        break;
      case wire::Decoder::Step::kNeedMore:
        return State::kNeedInput;
      case wire::Decoder::Step::kUndecided:
        return State::kUndecided;
      case wire::Decoder::Step::kError:
        worker.reason = worker.decoder.error();
        return State::kClose;
    }
  }
}

StoreRelay::State StoreRelay::settle(WorkerId id) {
  Worker& worker = at(id);
  wire::Request request;
  if (worker.decoder.settle(request) != wire::Decoder::Step::kRequest) return State::kNeedInput;
  if (!take(worker, request)) return State::kClose;
  std::string_view nothing;
  return receive(id, nothing);
}

bool StoreRelay::take(Worker& worker, const wire::Request& request) {
  using Mode = Worker::Mode;
  if (worker.mode == Mode::kRaw) {
    send(worker, request);
    return true;
  }
  if (worker.mode != Mode::kFree) {
    if (request.op == Op::kCancelWait) {
      cancel_wait(worker);
      return true;
    }
    if (worker.decoder.generation() >= wire::Generation::kModern) {
      wire::encode(request, worker.held, wire::Generation::kRelayed);
      return true;
    }
    // An old client gives up a wait without a word.
    cancel_wait(worker);
    if (worker.mode == Mode::kCancelling) {
      worker.mode = Mode::kDropping;
      worker.next_mode = Mode::kFree;
    } else {
      worker.out.pop_back();  // no answer to what it did not say
    }
  }
  const auto enter = [&](Mode mode) {
    (worker.mode == Mode::kDropping ? worker.next_mode : worker.mode) = mode;
  };
  switch (request.op) {
    case Op::kValidate:
      return true;
    case Op::kPing:
      wire::put_u32(worker.out, static_cast<std::uint32_t>(request.number));
      touch(worker);
      return true;
    case Op::kCancelWait:
      put(worker, wire::kWaitCanceled);
      return true;
    case Op::kWait:
      if (worker.mode == Mode::kFree) {
        wait(worker, request);
        return true;
      }
      enter(Mode::kWaiting);
      break;
    case Op::kBarrier:
      enter(Mode::kWaiting);
      break;
    case Op::kWatchKey:
      enter(Mode::kRaw);
      break;
    case Op::kQueuePush:
    case Op::kQueuePop:
    case Op::kQueueLen:
      remember_queue(request.key);
      [[fallthrough]];
    default:
      if (has_answer(request)) enter(Mode::kAnswer);
  }
  send(worker, request);
  return true;
}

void StoreRelay::send(Worker& worker, const wire::Request& request) {
  wire::encode(request, worker.stream.writable(), wire::Generation::kRelayed);
  make_ready(worker);
  release_followers(worker);
}

void StoreRelay::put(Worker& worker, char byte) {
  worker.out.push_back(byte);
  touch(worker);
}

void StoreRelay::touch(Worker& worker) {
  if (worker.closing || std::exchange(worker.touched, true)) return;
  touched_.push_back(worker.id);
}

std::vector<StoreRelay::WorkerId> StoreRelay::take_touched() {
  for (const WorkerId id : touched_)
    if (const auto found = workers_.find(id); found != workers_.end()) found->second->touched = false;
  auto out = std::exchange(touched_, {});
  std::erase_if(out, [&](WorkerId id) {
    const auto found = workers_.find(id);
    return found == workers_.end() || found->second->closing;
  });
  return out;
}

std::string_view StoreRelay::answers(WorkerId id) const {
  const Worker& worker = *workers_.at(id);
  return std::string_view(worker.out).substr(worker.taken);
}

void StoreRelay::consumed(WorkerId id, std::size_t size) {
  Worker& worker = at(id);
  worker.taken += size;
  std::size_t done = std::min(size, worker.unconsumed);
  if (worker.taken == worker.out.size()) {
    done = worker.unconsumed;
    worker.taken = 0;
    constexpr std::size_t kKeptBytes = 65536;
    if (worker.out.capacity() > kKeptBytes) worker.out = std::string();
    worker.out.clear();
  }
  worker.unconsumed -= done;
  worker.stream.consume(done);
  if (worker.stream.credit_is_due()) make_ready(worker);
}

const std::string& StoreRelay::reason(WorkerId id) const {
  return workers_.at(id)->reason;
}

std::size_t StoreRelay::num_buffered_bytes(WorkerId id) const {
  const Worker& worker = *workers_.at(id);
  return worker.out.size() + worker.decoder.num_pending_bytes() + worker.stream.num_bytes() +
         worker.wait.size() + worker.held.size();
}

bool StoreRelay::between_requests(WorkerId id) const {
  return !workers_.at(id)->decoder.in_request();
}

void StoreRelay::close(WorkerId id) {
  Worker& worker = at(id);
  using Mode = Worker::Mode;
  if (worker.mode == Mode::kJoined || worker.mode == Mode::kFollowing)
    cancel_wait(worker);
  else
    stop_sharing(worker);
  release_followers(worker);
  worker.closing = true;
  if (worker.lost) return remove(id);
  worker.stream.consume(std::exchange(worker.unconsumed, 0));
  worker.out = std::string();
  worker.taken = 0;
  make_ready(worker);
}

void StoreRelay::remove(WorkerId id) {
  workers_.erase(id);
}

// The coordinator.

void StoreRelay::connected() {
  connected_ = false;
  attaching_ = true;
  urgent_.clear();
  turns_.clear();
  std::vector<WorkerId> ids;
  for (const auto& [id, worker] : workers_) {
    worker->resuming = true;
    worker->close_sent = false;
    worker->in_turn = false;
    if (!worker->lost) ids.push_back(id);
  }
  std::sort(ids.begin(), ids.end());
  urgent_.push_back(control::StoreAttach{generation_, instance_, static_cast<std::uint32_t>(ids.size())});
  for (const WorkerId id : ids) urgent_.push_back(control::StoreOpen{id, at(id).stream.received()});
}

void StoreRelay::disconnected() {
  connected_ = false;
  attaching_ = false;
  urgent_.clear();
}

Result<void> StoreRelay::receive(const control::Message& message) {
  const auto broken = [](std::string text) {
    return fail(ErrorCode::kProtocol, "the coordinator's store: " + std::move(text));
  };
  if (const auto* attached = std::get_if<control::StoreAttached>(&message)) {
    if (attached->generation != generation_) return {};
    if (attached->instance == 0 || attached->window_bytes == 0) return broken("an empty StoreAttached");
    instance_ = attached->instance;
    window_ = attached->window_bytes;
    connected_ = true;
    attaching_ = false;
    return {};
  }
  if (const auto* refused = std::get_if<control::StoreRefused>(&message)) {
    if (refused->generation != generation_) return {};
    return fail(ErrorCode::kPeerGone, refused->text);
  }
  if (!connected_) return {};  // of a former generation
  const auto find = [&](std::uint32_t channel) {
    const auto found = workers_.find(channel);
    return found == workers_.end() ? nullptr : found->second.get();
  };
  if (const auto* bytes = std::get_if<control::StoreBytes>(&message)) {
    Worker* worker = find(bytes->channel);
    if (worker == nullptr) return {};
    if (!worker->stream.acknowledge(bytes->consumed)) return broken("it consumed more than was sent");
    if (!worker->stream.receive(bytes->bytes.size())) return broken("it sent more than the window");
    if (worker->stream.num_unsent() > 0) make_ready(*worker);
    answered(*worker, bytes->bytes, bytes->whole);
  } else if (const auto* credit = std::get_if<control::StoreCredit>(&message)) {
    Worker* worker = find(credit->channel);
    if (worker == nullptr) return {};
    const bool fits = std::exchange(worker->resuming, false) ? worker->stream.resume(credit->consumed)
                                                             : worker->stream.acknowledge(credit->consumed);
    if (!fits) return broken("it has not what was sent, or more");
    make_ready(*worker);
  } else if (const auto* closed = std::get_if<control::StoreClose>(&message)) {
    Worker* worker = find(closed->channel);
    if (worker == nullptr) return {};
    worker->lost = true;
    if (worker->closing) {
      remove(worker->id);
      return {};
    }
    worker->reason = closed->reason.empty() ? "the coordinator closed it" : closed->reason;
    touch(*worker);
  }
  return {};
}

void StoreRelay::answered(Worker& worker, std::string_view bytes, bool whole) {
  using Mode = Worker::Mode;
  std::size_t at_once = bytes.size();
  bool is_answer = false;
  while (!bytes.empty()) {
    if (worker.closing) break;
    const char byte = bytes.front();
    if (worker.mode == Mode::kWaiting) {
      woken(worker, byte == wire::kElementCame);
    } else if (worker.mode == Mode::kCancelling) {
      put(worker, byte == wire::kWaitCanceled ? byte : wire::kStopWaiting);
      if (byte == wire::kWaitCanceled) worker.mode = Mode::kFree;
    } else if (worker.mode == Mode::kDropping) {
      if (byte == wire::kWaitCanceled) {
        worker.mode = worker.next_mode;
        touch(worker);
      }
    } else {
      worker.out += bytes;
      worker.unconsumed += bytes.size();
      at_once -= bytes.size();
      is_answer = true;
      break;
    }
    bytes.remove_prefix(1);
  }
  worker.stream.consume(at_once);
  if (worker.closing) {
    if (worker.stream.credit_is_due()) make_ready(worker);
    return;
  }
  if (is_answer) touch(worker);
  if (is_answer && whole && worker.mode == Mode::kAnswer) worker.mode = Mode::kFree;
  if (worker.stream.credit_is_due()) make_ready(worker);
}

void StoreRelay::make_ready(Worker& worker) {
  if (std::exchange(worker.in_turn, true)) return;
  turns_.push_back(worker.id);
}

bool StoreRelay::next(control::Message& message) {
  if (!urgent_.empty()) {
    message = std::move(urgent_.front());
    urgent_.pop_front();
    return true;
  }
  if (!connected_) return false;
  while (!turns_.empty()) {
    const WorkerId id = turns_.front();
    turns_.pop_front();
    const auto found = workers_.find(id);
    if (found == workers_.end()) continue;
    Worker& worker = *found->second;
    worker.in_turn = false;
    if (worker.resuming || worker.lost) continue;  // its StoreCredit comes first
    const std::string_view piece = worker.stream.sendable(kStoreChunkBytes);
    if (!piece.empty()) {
      control::StoreBytes out{id, worker.stream.tell_consumed(), false, std::string(piece)};
      worker.stream.sent(piece.size());
      if (worker.stream.num_unsent() > 0 || worker.closing) make_ready(worker);
      if (worker.paused && worker.stream.num_unsent() < kMaxUnsentBytes) touch(worker);
      message = std::move(out);
      return true;
    }
    if (worker.closing && worker.stream.num_unsent() == 0) {
      if (std::exchange(worker.close_sent, true)) continue;
      message = control::StoreClose{id, {}};
      return true;
    }
    if (worker.stream.credit_is_due()) {
      message = control::StoreCredit{id, worker.stream.tell_consumed()};
      return true;
    }
  }
  return false;
}

}  // namespace muster
