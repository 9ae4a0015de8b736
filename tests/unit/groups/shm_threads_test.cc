// SPDX-License-Identifier: Apache-2.0
// The shm group with threads as members and one mapping for all, so that ThreadSanitizer sees every access.
#include <mutex>
#include <sys/mman.h>
#include <thread>

#include <muster/file_store.h>

#include "tests/support/catch.h"
#include "tests/support/group_ops.h"
#include "tests/support/seed.h"
#include "worker_runtime/groups/shm/shm_group.h"

using namespace muster;
using namespace muster::groups;
using namespace muster::testing;

namespace {

/// Hands the n-th segment to every member's n-th request.
class OneMapping {
 public:
  explicit OneMapping(std::size_t members) : requests_(members, 0) {}

  Result<ShmSegment> make(const SegmentRequest& request) {
    const std::lock_guard lock(mutex_);
    const std::size_t index = requests_[static_cast<std::size_t>(request.member)]++;
    if (index == segments_.size()) {
      void* base = ::mmap(nullptr, request.size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
      if (base == MAP_FAILED) return fail(ErrorCode::kExhausted, "mmap");
      segments_.emplace_back(static_cast<std::byte*>(base),
                             [size = request.size](std::byte* memory) { ::munmap(memory, size); });
    }
    return segments_[index];
  }

 private:
  std::mutex mutex_;
  std::vector<std::size_t> requests_;
  std::vector<ShmSegment> segments_;
};

/// Runs body(group) in a thread per member and returns what each said.
std::vector<std::string> run_threads(int members, Millis timeout,
                                     const std::function<std::string(ProcessGroup&)>& body) {
  OneMapping mapping(static_cast<std::size_t>(members));
  const auto store = make_hash_store();
  std::vector<std::string> texts(static_cast<std::size_t>(members));
  std::vector<std::thread> threads;
  for (int me = 0; me < members; ++me)
    threads.emplace_back([&, me] {
      ShmGroupOptions options{.me = me, .timeout = timeout, .slot_bytes = 64 << 10};
      for (int rank = 0; rank < members; ++rank) options.ranks.push_back(rank);
      options.make_segment = [&](const SegmentRequest& request, const TextExchange&) {
        return mapping.make(request);
      };
      const auto exchange =
          exchange_through_store(*store, "threads", options.ranks, me, SteadyClock::now() + timeout);
      auto group = make_shm_group(options, exchange);
      texts[static_cast<std::size_t>(me)] = group ? body(**group) : group.error().message;
    });
  for (std::thread& thread : threads) thread.join();
  return texts;
}

}  // namespace

TEST_CASE("threads of one process run random sequences of operations without a race") {
  for (const int members : {2, 3, 4}) {
    const unsigned seed = muster::test::seed();
    const auto texts =
        run_threads(members, std::chrono::seconds(50), [&](ProcessGroup& group) -> std::string {
          std::mt19937 random(seed);
          OpRunner runner(group, 256 << 10);
          for (int i = 0; i < 60; ++i)
            if (auto wrong = runner.run(random_spec(random, members, 256 << 10))) return *wrong;
          return "";
        });
    INFO("seed " << seed);
    for (const std::string& text : texts) REQUIRE(text == "");
  }
}

TEST_CASE("threads keep started operations in order with direct ones") {
  const auto texts = run_threads(3, std::chrono::seconds(50), [&](ProcessGroup& group) -> std::string {
    OpRunner runner(group, 1 << 20);
    for (int round = 0; round < 10; ++round)
      for (const Where where : {Where::kPrivate, Where::kRegistered})
        if (auto wrong =
                runner.run_overlapping({{.call = Call::kStartAllReduce, .count = 10, .where = where},
                                        {.call = Call::kStartAllReduce, .count = 70000, .where = where},
                                        {.call = Call::kStartAllReduce, .count = 3, .where = where}}))
          return *wrong;
    return "";
  });
  for (const std::string& text : texts) REQUIRE(text == "");
}

TEST_CASE("a failure of one thread reaches the others while they sleep") {
  const auto texts = run_threads(3, std::chrono::seconds(50), [&](ProcessGroup& group) -> std::string {
    if (group.rank() == 2) return "left";
    const auto done = group.barrier();
    return done ? "no failure" : std::string(to_string(done.error().code));
  });
  REQUIRE(texts == std::vector<std::string>{"PeerGone", "PeerGone", "left"});
}
