// SPDX-License-Identifier: Apache-2.0
// Arbitrary bytes, decoded whole and in pieces, give the same requests, the same error and the same
// generation; every view lies within what was received.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "rendezvous/store/wire_decoder.h"

namespace {

using namespace muster::wire;

struct Decoded {
  std::vector<std::string> requests;
  std::string error;
  Generation generation = Generation::kUndetected;
  bool operator==(const Decoded&) const = default;
};

// Encoded again where the generation has the request, so that two can be compared as bytes.
std::string text_of(const Request& request) {
  std::string out = std::to_string(static_cast<int>(request.op)) + " " + std::to_string(request.number);
  put_bytes(out, request.key);
  put_bytes(out, request.value);
  put_bytes(out, request.desired);
  for (const std::string_view item : request.items) put_bytes(out, item);
  return out;
}

Decoded decode(std::string_view bytes, std::size_t piece_bytes) {
  const Limits limits{
      .max_key_bytes = 300, .max_value_bytes = 1000, .max_keys = 50, .max_request_bytes = 4000};
  Decoder decoder(limits);
  Decoded out;
  Request request;
  while (!bytes.empty() && out.error.empty()) {
    // Memory of exactly this size, so that a read beyond it is noticed.
    const std::vector<char> piece(
        bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(std::min(piece_bytes, bytes.size())));
    bytes.remove_prefix(piece.size());
    std::string_view input(piece.data(), piece.size());
    while (true) {
      const auto step = decoder.next(input, request);
      if (step == Decoder::Step::kRequest) {
        out.requests.push_back(text_of(request));
        continue;
      }
      if (step == Decoder::Step::kError) out.error = decoder.error();
      if (step != Decoder::Step::kError && !input.empty()) std::abort();
      break;
    }
  }
  out.generation = decoder.generation();
  return out;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  const Decoded whole = decode(bytes, std::max<std::size_t>(bytes.size(), 1));
  for (const std::size_t piece : {std::size_t{1}, std::size_t{data[0]} + 1})
    if (!(decode(bytes, piece) == whole)) std::abort();
  return 0;
}
