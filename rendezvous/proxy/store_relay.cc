// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/proxy/store_relay.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "rendezvous/proxy/relay_worker.h"

namespace muster {
namespace {

using wire::Op;

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
  Worker& worker = *workers_.emplace(id, std::make_unique<Worker>(id, options_, window_)).first->second;
  if (connected_) worker.incarnation = incarnation_;
  if (connected_ || attaching_)
    urgent_.push_back(control::StoreOpen{id, 0, worker.incarnation, 0});
  else
    worker.resuming = true;  // connected() names it
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
  const std::uint64_t begin = worker.stream.end();
  wire::encode(request, worker.stream.writable(), wire::Generation::kRelayed);
  if (has_answer(request)) worker.asked(begin);
  if (request.op == Op::kCancelWait) worker.cancel_end = worker.asked_end;
  make_ready(worker);
  release_followers(worker);
}

void StoreRelay::ask(Worker& worker, std::string_view request) {
  const std::uint64_t begin = worker.stream.end();
  worker.stream.write(request);
  worker.asked(begin);
  make_ready(worker);
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

}  // namespace muster
