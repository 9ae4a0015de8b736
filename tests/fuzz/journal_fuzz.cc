// SPDX-License-Identifier: Apache-2.0
// Arbitrary bytes as a state log, and as the records of a frame whose checksums fit: replay ends with a
// verdict; a log cut at any point tells a beginning of what the whole one tells; what was told, written again
// and told again, is the same; and a coordinator goes on with whatever jobs that gave.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "rendezvous/jobs.h"
#include "rendezvous/saved_state.h"

namespace {

using namespace muster;

// Memory of exactly this size, so that a read beyond it is noticed.
journal::Replayed replay_exactly(std::string_view bytes, journal::Recorder& to) {
  const std::vector<char> exact(bytes.begin(), bytes.end());
  return journal::replay({exact.data(), exact.size()}, to);
}

void check(bool holds) {
  if (!holds) std::abort();
}

std::string frame(std::string_view payload, std::uint64_t salt, std::size_t offset) {
  journal::Encoder encoder;
  encoder.add_encoded(payload);
  return std::string(encoder.seal(salt, offset));
}

void go_on_with(SavedState& saved) {
  const Instant now{std::chrono::hours(1)};
  Jobs jobs{JobsOptions{}};
  JobsEffects effects;
  for (const auto& [name, record] : saved.jobs) jobs.restore(name, record, now, Millis(1000), effects);
  jobs.advance(now, effects);
  check(jobs.next_deadline() > now);
  SavedState again;
  jobs.describe(again, now);
  for (const auto& [name, record] : again.jobs)
    check(record.world.generation == saved.jobs.at(name).world.generation);
  jobs.connected(1, "a", "10.0.0.1");
  control::Join join;
  join.request.id = {1, 2};
  join.resume = 0;
  jobs.receive(1, join, now, effects);
  jobs.advance(now + std::chrono::hours(2), effects);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 2, size - 2);
  std::string file;
  if (data[0] % 2 == 0) {
    file = bytes;
  } else {
    file = journal::file_header(7);
    // One frame, or two.
    const std::size_t split = data[0] % 4 == 1 ? bytes.size() : std::min<std::size_t>(bytes.size(), data[1]);
    for (const std::string_view part : {bytes.substr(0, split), bytes.substr(split)})
      if (!part.empty()) file += frame(part, 7, file.size());
  }
  SavedState saved;
  const journal::Replayed whole = replay_exactly(file, saved);
  check(whole.good_bytes <= file.size());
  check((whole.end == journal::Replayed::End::kClean) ==
        (whole.good_bytes == file.size() && whole.text.empty()));

  const std::size_t cut = file.size() * data[1] / 256;
  SavedState part;
  const journal::Replayed beginning = replay_exactly(std::string_view(file).substr(0, cut), part);
  check(beginning.num_frames <= whole.num_frames);
  check(beginning.good_bytes <= std::max(cut, whole.good_bytes));

  std::string again = journal::file_header(8);
  journal::Encoder encoder;
  saved.store.describe(encoder);
  if (!encoder.empty()) again += encoder.seal(8, again.size());
  SavedState other;
  check(replay_exactly(again, other).end == journal::Replayed::End::kClean);
  check(other.store.keys() == saved.store.keys());
  go_on_with(saved);
  return 0;
}
