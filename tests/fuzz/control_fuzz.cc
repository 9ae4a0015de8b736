// SPDX-License-Identifier: Apache-2.0
// Arbitrary bytes after a control preamble: decoded whole and in pieces they give the same messages and the
// same error; what is decoded encodes to the bytes it came from; and a coordinator that is told them by four
// connections neither breaks nor waits for a moment that has passed, nor do the stores of its workers. What
// it answers to somebody who looks in arrives as it was said.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "rendezvous/coordinator/jobs.h"
#include "rendezvous/protocol/control.h"
#include "rendezvous/proxy/hosted_stores.h"

namespace {

using namespace muster;

struct Decoded {
  std::vector<control::Message> messages;
  std::string error;
  bool operator==(const Decoded&) const = default;
};

// The next piece's length: always the same, or at random where there is a generator.
struct Pieces {
  std::size_t bytes = 1;
  std::minstd_rand* random = nullptr;
  std::size_t next() { return random == nullptr ? bytes : 1 + (*random)() % 40; }
};

Decoded decode(std::string_view bytes, Pieces pieces) {
  control::Decoder decoder(2000);
  Decoded out;
  control::Message message;
  while (!bytes.empty() && out.error.empty()) {
    // Memory of exactly this size, so that a read beyond it is noticed.
    const std::vector<char> piece(
        bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(std::min(pieces.next(), bytes.size())));
    bytes.remove_prefix(piece.size());
    std::string_view input(piece.data(), piece.size());
    while (true) {
      const auto step = decoder.next(input, message);
      if (step == control::Decoder::Step::kMessage) out.messages.push_back(message);
      if (step == control::Decoder::Step::kError) out.error = decoder.error();
      if (step == control::Decoder::Step::kError || step == control::Decoder::Step::kNeedMore) break;
    }
  }
  return out;
}

void check(bool holds) {
  if (!holds) std::abort();
}

void look_in(const Jobs& jobs, const control::Query& question, Instant now) {
  control::QueryEnd over;
  std::vector<control::Message> said = jobs.answer(
      question, [](std::string_view job) { return job == "a"; }, now, over);
  said.emplace_back(over);
  std::string bytes;
  for (const control::Message& each : said) control::encode(each, bytes);
  control::Decoder decoder(16384);
  std::string preamble;
  control::encode(control::Preamble{}, preamble);
  control::Message heard;
  std::string_view input = preamble;
  check(decoder.next(input, heard) == control::Decoder::Step::kPreamble);
  input = bytes;
  for (const control::Message& each : said)
    check(decoder.next(input, heard) == control::Decoder::Step::kMessage && heard == each);
  check(input.empty());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  std::string bytes;
  control::encode(control::Preamble{}, bytes);
  bytes.append(reinterpret_cast<const char*>(data) + 2, size - 2);
  const Decoded whole = decode(bytes, {bytes.size()});
  for (const std::size_t piece : {std::size_t{1}, std::size_t{data[0]} + 1})
    check(decode(bytes, {piece}) == whole);
  std::minstd_rand random(data[0] + 256u * data[1] + 1);
  for (int i = 0; i < 2; ++i) check(decode(bytes, {1, &random}) == whole);

  std::string again;
  control::encode(control::Preamble{}, again);
  for (const control::Message& message : whole.messages) control::encode(message, again);
  check(bytes.starts_with(again));

  JobsOptions options;
  options.max_nodes_per_job = 3;
  Jobs jobs(options);
  Instant now{std::chrono::hours(1)};
  for (ConnectionId id = 0; id < 4; ++id) jobs.connected(id, id == 3 ? "b" : "a", "10.0.0.1");
  // The workers' stores hear what is theirs, by two nodes of one generation.
  HostedStoresOptions bounds;
  bounds.max_connections = 3;
  HostedStores stores(bounds, 1);
  std::size_t turn = data[1];
  for (const control::Message& message : whole.messages) {
    if (control::is_about_store(message)) {
      const ConnectionId from = turn % 2;
      (void)stores.receive(from, NodeAssignment{"a", {1, from}, 1}, message);
      control::Message answer;
      for (const ConnectionId to : stores.take_ready())
        while (stores.next(to, answer)) check(control::is_about_store(answer));
      check(stores.take_refused().size() <= 1);
      check(stores.num_connections() <= 6);
    }
    if (const auto* question = std::get_if<control::Query>(&message)) look_in(jobs, *question, now);
    jobs.receive(turn % 4, message, now);
    turn = turn / 4 + turn * 7 + message.index();
    if (turn % 5 == 0) now += Millis(turn % 20'000);
    if (turn % 11 == 0) {
      jobs.disconnected(turn % 4, "reset", now);
      stores.disconnected(turn % 2);
      jobs.connected(turn % 4, "a", "10.0.0.2");
    }
    jobs.advance(now);
    check(jobs.next_deadline() > now);
  }
  return 0;
}
