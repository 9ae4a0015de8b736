// SPDX-License-Identifier: Apache-2.0
// The StoreRelay's side towards the coordinator: channels, and how they go on over a new connection or with a
// new process.
#include <algorithm>
#include <utility>

#include "rendezvous/proxy/hosted_stores.h"
#include "rendezvous/proxy/relay_worker.h"
#include "rendezvous/proxy/store_relay.h"

namespace muster {

void StoreRelay::connected() {
  connected_ = false;
  attaching_ = true;
  urgent_.clear();
  turns_.clear();
  if (given_up_) return give_up();
  std::vector<WorkerId> ids;
  for (const auto& [id, worker] : workers_) {
    worker->resuming = true;
    worker->close_sent = false;
    worker->in_turn = false;
    if (!worker->lost) ids.push_back(id);
  }
  std::sort(ids.begin(), ids.end());
  urgent_.push_back(control::StoreAttach{generation_, instance_, static_cast<std::uint32_t>(ids.size())});
  for (const WorkerId id : ids) {
    const Worker& worker = at(id);
    urgent_.push_back(control::StoreOpen{id, worker.stream.received(), worker.incarnation,
                                         worker.settled(worker.stream.forgotten())});
  }
}

void StoreRelay::disconnected() {
  connected_ = false;
  attaching_ = false;
  urgent_.clear();
}

// A worker would be told something that is not true: the coordinator ends the generation.
void StoreRelay::give_up() {
  given_up_ = true;
  connected_ = false;
  attaching_ = false;
  urgent_.clear();
  urgent_.push_back(control::StoreAttach{generation_, instance_, 0, true});
}

Result<void> StoreRelay::receive(const control::Message& message) {
  const auto broken = [](std::string text) {
    return fail(ErrorCode::kProtocol, "the coordinator's store: " + std::move(text));
  };
  if (const auto* refused = std::get_if<control::StoreRefused>(&message)) {
    if (refused->generation != generation_) return {};
    return fail(ErrorCode::kPeerGone, refused->text);
  }
  if (given_up_) return {};
  if (const auto* attached = std::get_if<control::StoreAttached>(&message)) {
    if (attached->generation != generation_) return {};
    if (attached->instance == 0 || attached->window_bytes == 0) return broken("an empty StoreAttached");
    instance_ = attached->instance;
    window_ = attached->window_bytes;
    incarnation_ = attached->incarnation;
    connected_ = true;
    attaching_ = false;
    for (const auto& [id, worker] : workers_)
      if (!worker->resuming && worker->incarnation == 0) worker->incarnation = incarnation_;
    return {};
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
    settle_until(*worker, bytes->done);
  } else if (const auto* credit = std::get_if<control::StoreCredit>(&message)) {
    Worker* worker = find(credit->channel);
    if (worker == nullptr) return {};
    const bool resuming = std::exchange(worker->resuming, false);
    const bool fits = credit->anew ? resuming && worker->stream.start_over(credit->consumed, window_)
                      : resuming   ? worker->stream.resume(credit->consumed)
                                   : worker->stream.acknowledge(credit->consumed);
    if (!fits) return broken("it has not what was sent, or more");
    if (credit->anew && !begin_anew(*worker, credit->consumed)) {
      give_up();
      return {};
    }
    settle_until(*worker, credit->done);
    make_ready(*worker);
  } else if (const auto* closed = std::get_if<control::StoreClose>(&message)) {
    Worker* worker = find(closed->channel);
    if (worker == nullptr || worker->lost) return {};
    worker->lost = true;
    // So that it need not be remembered there.
    if (incarnation_ != 0 && !worker->close_sent) urgent_.push_back(control::StoreClose{worker->id, {}});
    if (worker->closing) {
      remove(worker->id);
      return {};
    }
    worker->reason = closed->reason.empty() ? "the coordinator closed it" : closed->reason;
    touch(*worker);
  }
  return {};
}

// Another process has done what came before `place`. False: the worker cannot go on.
bool StoreRelay::begin_anew(Worker& worker, std::uint64_t place) {
  using Mode = Worker::Mode;
  const bool is_new = std::exchange(worker.incarnation, incarnation_) == 0;
  worker.unconsumed = 0;
  worker.answer.start_over();
  if (worker.closing || is_new) return true;
  // What it watches was known to the former process alone.
  if (worker.mode == Mode::kRaw) return false;
  // The wait was over before what followed it was done, and nobody waits for the word of it.
  if (worker.mode == Mode::kDropping && place >= worker.cancel_end) {
    worker.mode = worker.next_mode;
    touch(worker);
  }
  return true;
}

// What is done and answered, or has no answer, need not be kept for another process.
void StoreRelay::settle_until(Worker& worker, std::uint64_t done) {
  worker.stream.forget(worker.settled(done));
  if (worker.closing) make_ready(worker);
}

void StoreRelay::answered(Worker& worker, std::string_view bytes, bool whole) {
  using Mode = Worker::Mode;
  std::size_t at_once = bytes.size();
  bool is_answer = false;
  // An answer that is out is one to all that was asked before.
  const auto settle = [&](std::uint64_t end) {
    if (worker.incarnation != 0) worker.stream.forget(end);
  };
  while (!bytes.empty()) {
    if (worker.closing) break;
    const char byte = bytes.front();
    if (worker.mode == Mode::kWaiting) {
      settle(worker.asked_end);
      woken(worker, byte == wire::kElementCame);
    } else if (worker.mode == Mode::kCancelling) {
      put(worker, byte == wire::kWaitCanceled ? byte : wire::kStopWaiting);
      settle(byte == wire::kWaitCanceled ? worker.cancel_end : worker.asked_begin);
      if (byte == wire::kWaitCanceled) worker.mode = Mode::kFree;
    } else if (worker.mode == Mode::kDropping) {
      if (byte == wire::kWaitCanceled) {
        settle(worker.cancel_end);
        worker.mode = worker.next_mode;
        touch(worker);
      }
    } else {
      if (worker.incarnation != 0 && worker.mode == Mode::kAnswer && !worker.answer.take(bytes, whole)) {
        give_up();
        return;
      }
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
  if (is_answer && whole && worker.mode == Mode::kAnswer) {
    settle(worker.asked_end);
    worker.mode = Mode::kFree;
  }
  if (worker.stream.credit_is_due()) make_ready(worker);
}

void StoreRelay::make_ready(Worker& worker) {
  if (std::exchange(worker.in_turn, true)) return;
  turns_.push_back(worker.id);
}

// Of a worker that has gone, before its channel is closed: another process would not know what was done. An
// answer says so; until then the requests are kept.
bool StoreRelay::awaits_last_word(Worker& worker) {
  if (worker.incarnation == 0 || worker.stream.forgotten() == worker.stream.end()) return false;
  if (std::exchange(worker.last_word_asked, true)) return true;
  wire::encode({.op = wire::Op::kCancelWait}, worker.stream.writable(), wire::Generation::kRelayed);
  make_ready(worker);
  return true;
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
    if (worker.closing && worker.stream.num_unsent() == 0 && !awaits_last_word(worker)) {
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
