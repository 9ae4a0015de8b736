// SPDX-License-Identifier: Apache-2.0
// Decoder: bytes of one connection -> requests. Sans-IO; owned by one Session (or test), one thread.
// Bytes may be split and coalesced anywhere; decoding resumes in the field where it stopped. A request that
// lies whole in the input is decoded without a copy. Memory grows with bytes that arrived, never with a
// length that was announced. Failure: the first error is kept; the connection has to be closed, since there
// is no framing to find a next request. Source: the TCPStore protocol of PyTorch <= 2.0, 2.1 and >= 2.2, told
// apart by the first bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "rendezvous/store/wire.h"

namespace muster::wire {

class Decoder {
 public:
  enum class Step {
    kRequest,    ///< one request; its views are valid until the next call and while the input's bytes are
    kNeedMore,   ///< the input is used up; what belongs to an incomplete request is kept here
    kUndecided,  ///< as kNeedMore, but this may be a whole request: call settle() when the peer stays silent
    kError,      ///< see error()
  };

  /// `legacy`: what an old client is taken for: kTorch20, kTorch21, or kLegacy to find out. kRelayed: it is
  /// no client, but an agent.
  explicit Decoder(const Limits& limits, Generation legacy = Generation::kLegacy)
      : limits_(limits),
        legacy_(legacy),
        generation_(legacy == Generation::kRelayed ? legacy : Generation::kUndetected) {}

  /// Decodes one request from the front of `input` and advances `input` past the bytes used.
  [[nodiscard]] Step next(std::string_view& input, Request& request);

  /// After kUndecided, when nothing more came for a while. Byte 8 with a string is DELETE_KEY up to 2.0,
  /// whose client now waits for an answer, and the beginning of APPEND in 2.1, whose client sends the value
  /// at once.
  [[nodiscard]] Step settle(Request& request);

  [[nodiscard]] Generation generation() const { return generation_; }
  /// True between the first and the last byte of a request.
  [[nodiscard]] bool in_request() const { return !pending_.empty() && !delivered_; }
  /// Kept here of a request that is not whole.
  [[nodiscard]] std::size_t num_pending_bytes() const { return pending_.size(); }
  /// The request being decoded, for error texts; only while in_request().
  [[nodiscard]] std::string_view current_op() const { return at_ > 0 ? op_info(op_).name : "first bytes"; }
  /// That were decoded so far.
  [[nodiscard]] std::uint64_t num_requests() const { return num_requests_; }
  /// Why the connection must be closed.
  [[nodiscard]] const std::string& error() const { return error_; }

 private:
  struct Field {
    std::size_t begin;  // from the request's first byte
    std::size_t size;
  };

  std::size_t advance(std::string_view bytes);
  std::size_t begin_request(std::string_view bytes);
  std::size_t take_string(std::string_view bytes, std::size_t limit, std::string_view what);
  std::size_t take_count(std::string_view bytes);
  std::size_t reject(std::string text);
  Step deliver(const char* base, Request& request);
  void start_over();

  Limits limits_;
  Generation legacy_;
  Generation generation_;
  std::uint64_t num_requests_ = 0;

  // The request under way.
  bool delivered_ = false;  // it was handed out; the next call starts over
  bool undecided_ = false;  // byte 8 of an old client, its key complete
  Op op_ = Op::kPing;
  std::string_view layout_;
  std::size_t step_ = 0;          // position in layout_
  std::size_t at_ = 0;            // bytes of the request decoded so far; 0: its opcode is not known
  bool count_known_ = false;      // within K or P
  std::size_t strings_left_ = 0;  // within K or P
  std::int64_t number_ = 0;
  std::vector<Field> fields_;

  std::string pending_;  // an incomplete request's bytes, from its first
  std::vector<std::string_view> items_;
  std::string error_;
};

}  // namespace muster::wire
