// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/store/session.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "rendezvous/base/text.h"

namespace muster {

using wire::Op;
using wire::put_bytes;
using wire::put_i64;

Session::Session(ClientId id, StoreCore& core, const SessionLimits& limits, TorchrunJobs* torchrun)
    : id_(id), core_(core), torchrun_(torchrun), limits_(limits), decoder_(limits.wire, limits.legacy) {
  core_.limit_to(limits_.store);
}

Session::State Session::close(std::string reason) {
  close_reason_ = std::move(reason);
  return State::kClose;
}

Session::State Session::too_long(wire::Op op, std::size_t reply_bytes) {
  return close(fmt::format("the answer to {} would be {} bytes, the limit is {}", op_info(op).name,
                           reply_bytes, limits_.max_output_bytes));
}

Session::State Session::receive(std::string_view& input, std::string& out) {
  if (!close_reason_.empty()) return State::kClose;
  wire::Request request;
  while (true) {
    if (out.size() >= limits_.pause_output_bytes) return State::kOutputFull;
    switch (decoder_.next(input, request)) {
      case wire::Decoder::Step::kRequest:
        if (const State state = execute(request, out); state == State::kClose) return state;
        break;
      case wire::Decoder::Step::kNeedMore:
        return State::kNeedInput;
      case wire::Decoder::Step::kUndecided:
        return State::kUndecided;
      case wire::Decoder::Step::kError:
        return close(decoder_.error());
    }
  }
}

Session::State Session::settle(std::string& out) {
  wire::Request request;
  if (decoder_.settle(request) != wire::Decoder::Step::kRequest) return State::kNeedInput;
  return execute(request, out);
}

Session::State Session::execute(const wire::Request& request, std::string& out) {
  // An old client gives up a wait without a word, and would take a late STOP for the answer to its next
  // request.
  if (decoder_.generation() < wire::Generation::kModern) core_.cancel_wait(id_);

  std::vector<ClientId>& woken = core_.woken();
  const auto woken_before = static_cast<std::ptrdiff_t>(woken.size());
  const std::size_t out_before = out.size();
  switch (request.op) {
    case Op::kValidate:
      break;
    case Op::kSet:
      core_.set(request.key, request.value);
      break;
    case Op::kCompareSet:
      put_bytes(out, core_.compare_set(request.key, request.value, request.desired));
      if (torchrun_ != nullptr && TorchrunJobs::is_state(request.key) && core_.keys().contains(request.key))
        torchrun_->joined(id_, request.key);
      break;
    case Op::kGet: {
      const std::string_view value = core_.get(request.key);
      if (out.size() + 8 + value.size() > limits_.max_output_bytes)
        return too_long(request.op, 8 + value.size());
      put_bytes(out, value);
      break;
    }
    case Op::kAdd: {
      const auto sum = core_.add(request.key, request.number);
      if (!sum)
        return close(fmt::format("ADD to key {}, whose value \"{}\" is not a 64-bit number",
                                 printable(request.key), printable(core_.get(request.key), 32)));
      put_i64(out, *sum);
      break;
    }
    case Op::kCheck:
      out.push_back(core_.check(request.items) ? wire::kReady : wire::kNotReady);
      break;
    case Op::kWait:
      if (core_.wait(id_, request.items)) out.push_back(wire::kStopWaiting);
      break;
    case Op::kGetNumKeys:
      put_i64(out, static_cast<std::int64_t>(core_.keys().size()));
      break;
    case Op::kDeleteKey:
      put_i64(out, core_.delete_key(request.key) ? 1 : 0);
      break;
    case Op::kAppend:
      core_.append(request.key, request.value);
      break;
    case Op::kMultiGet: {
      // A request may name a long value very often.
      std::size_t reply_bytes = 0;
      for (const std::string_view key : request.items) reply_bytes += 8 + core_.get(key).size();
      if (out.size() + reply_bytes > limits_.max_output_bytes) return too_long(request.op, reply_bytes);
      for (const std::string_view key : request.items) put_bytes(out, core_.get(key));
      break;
    }
    case Op::kMultiSet:
      core_.multi_set(request.items);
      break;
    case Op::kCancelWait:
      core_.cancel_wait(id_);
      out.push_back(wire::kWaitCanceled);
      break;
    case Op::kPing:
      wire::put_u32(out, static_cast<std::uint32_t>(request.number));
      break;
    case Op::kQueuePush:
      core_.queue_push(request.key, request.value);
      break;
    case Op::kQueuePop:
      put_i64(out, core_.queue_len(request.key));
      if (const auto element = core_.queue_pop(request.key)) put_bytes(out, *element);
      break;
    case Op::kQueueLen:
      put_i64(out, core_.queue_len(request.key));
      break;
    case Op::kListKeys: {
      std::size_t reply_bytes = 8;
      for (const auto& [key, value] : core_.keys()) reply_bytes += 8 + key.size();
      if (out.size() + reply_bytes > limits_.max_output_bytes) return too_long(request.op, reply_bytes);
      put_i64(out, static_cast<std::int64_t>(core_.keys().size()));
      for (const auto& [key, value] : core_.keys()) put_bytes(out, key);
      break;
    }
    case Op::kBarrier:
      if (const auto barrier = core_.barrier(id_, request.key, request.number);
          barrier == StoreCore::Barrier::kNotANumber)
        return close(
            fmt::format("BARRIER at key {}, whose value is not a 64-bit number", printable(request.key)));
      else if (barrier == StoreCore::Barrier::kOpen)
        out.push_back(wire::kStopWaiting);
      break;
  }
  if (!core_.excess().empty()) [[unlikely]] {
    out.resize(out_before);  // it says that something was done
    exceeded_limit_ = true;
    return close(fmt::format("{} {}", op_info(request.op).name, core_.take_excess()));
  }

  // A client that sent on after a WAIT can wake itself: its byte belongs before the next reply.
  if (const auto own = std::find(woken.begin() + woken_before, woken.end(), id_); own != woken.end()) {
    woken.erase(own);
    out.push_back(wire::kStopWaiting);
  }
  if (out.size() > limits_.max_output_bytes) return too_long(request.op, out.size());
  return State::kNeedInput;
}

}  // namespace muster
