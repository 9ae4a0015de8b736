// SPDX-License-Identifier: Apache-2.0
// Arbitrary bytes as a state log, and as the records of a frame whose checksums fit: replay ends with a
// verdict; a log cut at any point tells a beginning of what the whole one tells; what was told, written again
// and told again, is the same; and a coordinator goes on with whatever jobs and hosted stores that gave.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "rendezvous/coordinator/jobs.h"
#include "rendezvous/proxy/hosted_stores.h"
#include "rendezvous/wal/journal.h"

namespace {

using namespace muster;

// Memory of exactly this size, so that a read beyond it is noticed.
journal::Replayed replay_exactly(std::string_view bytes, const journal::LogSink& to) {
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

void go_on_with(RecoveredState& saved) {
  const Instant now{std::chrono::hours(1)};
  Jobs jobs{JobsOptions{}};
  for (const auto& [name, record] : saved.jobs) jobs.restore(name, record, now, Millis(1000));
  jobs.advance(now);
  check(jobs.next_deadline() > now);
  RecoveredState again;
  jobs.describe(again.sink(), now);
  for (const auto& [name, record] : again.jobs)
    check(record.world.generation == saved.jobs.at(name).world.generation);
  jobs.connected(1, "a", "10.0.0.1");
  control::Join join;
  join.request.id = {1, 2};
  join.resume = 0;
  jobs.receive(1, join, now);
  jobs.advance(now + std::chrono::hours(2));
}

// A coordinator with these stores, and an agent that comes back to the first of them.
void go_on_with_hosted(RecoveredState& saved) {
  RecoveredState kept;
  HostedStores stores(HostedStoresOptions{}, 9);
  stores.record_to(kept.sink());
  const std::uint64_t instance = saved.hosted.begin()->first;
  const std::string job = saved.hosted.begin()->second.job;
  const std::int64_t generation = saved.hosted.begin()->second.generation;
  std::optional<ConnectionName> back;
  if (const auto& marks = saved.hosted.begin()->second.connections; !marks.empty())
    back = marks.begin()->first;
  for (auto& [number, store] : saved.hosted) stores.restore(number, std::move(store));
  RecoveredState again;
  stores.describe(again.sink());
  check(again.hosted.size() == stores.num_stores());
  for (const auto& [number, store] : again.hosted) check(store.core.keys() == stores.find(store.job)->keys());
  const NodeAssignment member{job, back ? back->node : membership::NodeId{1, 2}, generation};
  const auto say = [&](const control::Message& message) { return stores.receive(1, member, message); };
  (void)say(control::StoreAttach{generation, instance, 2});
  const std::uint32_t number = back ? back->number : 1;
  (void)say(control::StoreOpen{number, 0});
  (void)say(control::StoreOpen{number + 1, 5});
  std::string ask;
  wire::encode({.op = wire::Op::kAdd, .key = "/n", .number = 1}, ask, wire::Generation::kRelayed);
  (void)say(control::StoreRequest{number, 1, 0, false, ask});
  control::Message message;
  while (stores.next(1, message)) {
  }
  (void)say(control::StoreClose{number, {}});
  stores.over(job);
  check(stores.num_connections() == 0 || stores.num_stores() > 0);
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
  RecoveredState saved;
  const journal::Replayed whole = replay_exactly(file, saved.sink());
  check(whole.good_bytes <= file.size());
  check((whole.end == journal::Replayed::End::kClean) ==
        (whole.good_bytes == file.size() && whole.text.empty()));

  const std::size_t cut = file.size() * data[1] / 256;
  RecoveredState part;
  const journal::Replayed beginning = replay_exactly(std::string_view(file).substr(0, cut), part.sink());
  check(beginning.num_frames <= whole.num_frames);
  check(beginning.good_bytes <= std::max(cut, whole.good_bytes));

  std::string again = journal::file_header(8);
  journal::Encoder encoder;
  const journal::LogSink sink = [&](const journal::LogRecord& record) { encoder.add(record); };
  saved.store.describe(sink);
  for (const auto& [number, store] : saved.hosted) {
    const std::uint64_t instance = number;  // clang 14 captures no structured binding
    sink(HostedChange(HostedBegan{instance, store.job, store.generation}));
    store.core.describe([&](const StoreChange& change) {
      sink(HostedChange(HostedChanged{instance, change}));
    });
    for (const auto& [name, last] : store.connections) sink(HostedChange(HostedDone{instance, name, last}));
  }
  if (!encoder.empty()) again += encoder.seal(8, again.size());
  RecoveredState other;
  check(replay_exactly(again, other.sink()).end == journal::Replayed::End::kClean);
  check(other.store.keys() == saved.store.keys());
  check(other.hosted.size() == saved.hosted.size());
  for (const auto& [instance, store] : saved.hosted) {
    const SavedStore& same = other.hosted.at(instance);
    check(same.job == store.job && same.generation == store.generation &&
          same.connections == store.connections);
    check(same.core.keys() == store.core.keys() && same.core.num_bytes() == store.core.num_bytes());
  }
  go_on_with(saved);
  if (!saved.hosted.empty()) go_on_with_hosted(saved);
  return 0;
}
