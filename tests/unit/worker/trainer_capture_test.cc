// SPDX-License-Identifier: Apache-2.0
// The trainer's captured steps on a recording device made of the CPU's kernels: what a GPU would replay.
#include "tests/support/catch.h"
#include "tests/support/recording_device.h"
#include "tests/support/thread_group.h"
#include "tests/support/trainer_run.h"
#include "worker_runtime/training/host_collectives.h"

using namespace muster;
using namespace muster::testing;
using test::ThreadGroup;
using Outcome = TrainerRun::Outcome;

namespace {

std::string text_of(const Error& error) {
  return std::string(to_string(error.code)) + ": " + error.message;
}

#define STEP(expression)                                                  \
  do {                                                                    \
    if (auto step_ = (expression); !step_) return text_of(step_.error()); \
  } while (false)

Compute recording(const std::shared_ptr<Tape>& tape) {
  return std::make_shared<RecordingDevice>(*make_compute(DeviceType::kCpu), tape);
}

std::string train(ProcessGroup& inner, const std::shared_ptr<Tape>& tape, bool capture, Outcome& out) {
  RecordingGroup group(inner, tape);
  TrainerRun run;
  STEP(run.start(recording(tape), group, capture));
  auto outcome = run.run();
  if (!outcome) return text_of(outcome.error());
  out = *outcome;
  return {};
}

/// Two ranks, called and captured; `prepare` sets up a rank's tape for the captured run.
struct TwoRanks {
  std::vector<Outcome> called{2}, captured{2};
  std::vector<std::shared_ptr<Tape>> tapes{std::make_shared<Tape>(), std::make_shared<Tape>()};

  void run() {
    const auto errors = test::run_ranks(2, [&](ThreadGroup& group) {
      const auto rank = static_cast<std::size_t>(group.rank());
      if (auto text = train(group, std::make_shared<Tape>(), false, called[rank]); !text.empty()) return text;
      return train(group, tapes[rank], true, captured[rank]);
    });
    REQUIRE(errors == std::vector<std::string>(2));
    for (std::size_t rank = 0; rank < 2; ++rank) {
      REQUIRE(called[rank].num_replays == 0);
      REQUIRE(captured[rank].same_results(called[rank]));
    }
    REQUIRE(captured[0].params == captured[1].params);
  }
};

}  // namespace

TEST_CASE("captured steps train to the same bits as called ones, tail batch and learning rate included") {
  const auto single = make_single_group();
  Outcome cpu, called, captured;
  {
    TrainerRun run;
    REQUIRE_OK(run.start(*make_compute(DeviceType::kCpu), *single, true));
    auto outcome = run.run();
    REQUIRE_OK(outcome);
    cpu = *outcome;
  }
  const auto tape = std::make_shared<Tape>();
  REQUIRE(train(*single, std::make_shared<Tape>(), false, called).empty());
  REQUIRE(train(*single, tape, true, captured).empty());
  REQUIRE(cpu.num_replays == 0);
  REQUIRE(called.num_replays == 0);
  REQUIRE(called.same_results(cpu));
  REQUIRE(captured.same_results(cpu));
  REQUIRE(captured.num_replays == TrainerRun::replays(1));
  REQUIRE(captured.losses.back() < captured.losses.front());
  REQUIRE(tape->records == 2);  // one of each batch size, though each step has a learning rate of its own
}

TEST_CASE("batches of a loader, called or captured, train to the same bits as the resident data set") {
  const auto single = make_single_group();
  std::vector<Outcome> outcomes;
  for (const Feed feed : {Feed::kResident, Feed::kBytes, Feed::kFloats})
    for (const bool capture : {false, true}) {
      const auto tape = std::make_shared<Tape>();
      RecordingGroup group(*single, tape);
      TrainerRun run;
      REQUIRE_OK(run.start(recording(tape), group, capture, 8, feed));
      const auto outcome = run.run();
      REQUIRE_OK(outcome);
      REQUIRE(outcome->num_replays == (capture ? TrainerRun::replays(1) : 0));
      REQUIRE(tape->records == (capture ? 2 : 0));
      outcomes.push_back(*outcome);
    }
  for (const Outcome& outcome : outcomes) REQUIRE(outcome.same_results(outcomes.front()));
}

TEST_CASE("captured steps of two ranks reduce their gradients as called ones do") {
  TwoRanks ranks;
  ranks.run();
  REQUIRE(ranks.captured[0].num_replays == TrainerRun::replays(2));
  REQUIRE(ranks.captured[1].num_replays == TrainerRun::replays(2));
}

TEST_CASE("a capture that fails on one rank is given up by both, who go on calling") {
  TwoRanks ranks;
  ranks.tapes[1]->failing_record = 1;
  ranks.run();
  for (std::size_t rank = 0; rank < 2; ++rank) {
    REQUIRE(ranks.captured[rank].num_replays == 0);
    REQUIRE(ranks.tapes[rank]->records == 1);
    REQUIRE(ranks.tapes[rank]->replays == 0);
  }
}

TEST_CASE("a capture that fails after others have been replayed is given up as well") {
  TwoRanks ranks;
  ranks.tapes[0]->failing_record = 2;  // the shorter batch
  ranks.run();
  REQUIRE(ranks.captured[0].num_replays == ranks.captured[1].num_replays);
  REQUIRE(ranks.captured[0].num_replays > 0);
  REQUIRE(ranks.tapes[0]->records == 2);
  REQUIRE(ranks.tapes[1]->records == 2);
}

TEST_CASE("a group that refuses a captured reduction trains with called steps") {
  TwoRanks ranks;
  ranks.tapes[0]->reductions_until_refusal = 1;  // the first bucket is under way when the second is refused
  ranks.run();
  REQUIRE(ranks.captured[0].num_replays == 0);
  REQUIRE(ranks.captured[1].num_replays == 0);
}

TEST_CASE("a group that is lost during a capture is an error of the step on every rank") {
  std::vector<std::string> texts(2);
  static_cast<void>(test::run_ranks(2, [&](ThreadGroup& inner) -> std::string {
    const auto tape = std::make_shared<Tape>();
    RecordingGroup group(inner, tape);
    TrainerRun run;
    STEP(run.start(recording(tape), group, true));
    STEP(run.trainer().begin_epoch(std::vector<std::int32_t>(16, 0)));
    STEP(run.trainer().step());
    if (inner.rank() == 0) inner.reductions_until_failure = 0;  // the agreement's
    const auto done = run.trainer().step();
    texts[static_cast<std::size_t>(inner.rank())] = done ? "no error" : done.error().message;
    return {};
  }));
  REQUIRE(texts[0] == "capture of the training step: all_reduce: told to fail");
  REQUIRE(texts[1].starts_with("capture of the training step: all_reduce 1: a rank is gone"));
}

TEST_CASE("a group that is lost while steps are replayed is an error of the next step") {
  const auto single = make_single_group();
  const auto tape = std::make_shared<Tape>();
  RecordingGroup group(*single, tape);
  TrainerRun run;
  REQUIRE_OK(run.start(recording(tape), group, true));
  REQUIRE_OK(run.trainer().begin_epoch(std::vector<std::int32_t>(40, 0)));
  for (int i = 0; i < 6; ++i) REQUIRE_OK(run.trainer().step());
  REQUIRE(run.trainer().num_replays() == 4);
  tape->lost = true;
  const auto failed = run.trainer().step();
  REQUIRE_FALSE(failed);
  REQUIRE(failed.error() == Error{ErrorCode::kPeerGone, "rank 1 is gone"});
  REQUIRE(run.trainer().num_replays() == 4);
}

TEST_CASE("a launch that fails is an error of its step, called, captured or replayed") {
  const auto single = make_single_group();
  for (const int step : {0, 1, 5}) {
    const auto tape = std::make_shared<Tape>();
    RecordingGroup group(*single, tape);
    TrainerRun run;
    REQUIRE_OK(run.start(recording(tape), group, true));
    REQUIRE_OK(run.trainer().begin_epoch(std::vector<std::int32_t>(40, 0)));
    for (int i = 0; i < step; ++i) REQUIRE_OK(run.trainer().step());
    tape->calls_until_error = 0;
    auto failed = run.trainer().step();
    if (step == 1) {  // the recording's own; the step was called instead
      REQUIRE_OK(failed);
      tape->calls_until_error = 0;
      failed = run.trainer().step();
    }
    INFO("step " << step);
    REQUIRE_FALSE(failed);
    REQUIRE(failed.error().message == "launch: told to fail");
    REQUIRE(run.trainer().step().error() == failed.error());  // it stays
  }
}

TEST_CASE("a copy that fails is an error of the reduction of values on the host") {
  const auto single = make_single_group();
  for (const int copies : {0, 1}) {
    const auto tape = std::make_shared<Tape>();
    RecordingGroup group(*single, tape);
    HostCollectives host(group, recording(tape));
    double value = 1;
    REQUIRE_OK(host.all_reduce({&value, 1, DType::kFloat64}, ReduceOp::kSum));
    tape->calls_until_error = copies;
    const auto failed = host.all_reduce({&value, 1, DType::kFloat64}, ReduceOp::kSum);
    REQUIRE_FALSE(failed);
    REQUIRE(failed.error().message ==
            (copies == 0 ? "copy_to_device: told to fail" : "copy_to_host: told to fail"));
  }
}

TEST_CASE(
    "gradients that add up change no parameter and are not replayed, nor is a momentum that starts anew") {
  const auto single = make_single_group();
  const auto train_oddly = [&](bool capture) {
    const auto tape = std::make_shared<Tape>();
    RecordingGroup group(*single, tape);
    TrainerRun run;
    REQUIRE_OK(run.start(recording(tape), group, capture));
    for (int number = 0; number < 4; ++number) {
      REQUIRE_OK(run.epoch(number));
      {
        const auto no_sync = run.ddp().no_sync();
        const std::string before = nn::parameters_sha256(run.trainer().model());
        REQUIRE_OK(run.trainer().begin_epoch(std::vector<std::int32_t>{1, 2, 3, 4}));
        REQUIRE_OK(run.trainer().step());
        REQUIRE(nn::parameters_sha256(run.trainer().model()) == before);
      }
      if (number > 0) run.trainer().optimizer().write_state({});
    }
    return run.outcome();
  };
  const Outcome called = train_oddly(false), captured = train_oddly(true);
  REQUIRE(captured.same_results(called));
  REQUIRE(captured.num_replays > 0);
}

namespace {

/// `counts`: what steps() returned. The learning rate changes before the steps of `changes`.
Outcome run_in_replays(int steps_per_replay, bool capture, const std::shared_ptr<Tape>& tape, int samples,
                       const std::vector<int>& changes, std::vector<std::int64_t>& counts) {
  const auto single = make_single_group();
  RecordingGroup group(*single, tape);
  TrainerRun run;
  REQUIRE_OK(run.start(recording(tape), group, capture, steps_per_replay));
  for (int epoch = 0; epoch < 4; ++epoch) {
    std::vector<std::int32_t> indices;
    for (int i = 0; i < samples; ++i) indices.push_back((i * 5 + epoch * 3) % TrainerRun::kImages);
    REQUIRE_OK(run.trainer().begin_epoch(indices));
    std::int64_t left = run.trainer().steps_in_epoch();
    for (std::int64_t step = 0; left > 0;) {
      // Up to the next change of the learning rate.
      std::int64_t most = left;
      for (const int change : changes) {
        if (change == step) run.trainer().optimizer().set_lr(0.01F / static_cast<float>(change + epoch + 1));
        if (change > step) most = std::min(most, change - step);
      }
      const auto done = run.trainer().steps(most);
      REQUIRE_OK(done);
      counts.push_back(*done);
      step += *done;
      left -= *done;
    }
    REQUIRE_OK(run.trainer().take_metrics());
  }
  return run.outcome();
}

}  // namespace

TEST_CASE("several steps in one replay train to the same bits, the epoch's shorter end step by step") {
  // 11 whole batches and one of 2 samples.
  constexpr int kSamples = 46;
  std::vector<std::int64_t> called, captured, one;
  const auto tape = std::make_shared<Tape>();
  const Outcome expected = run_in_replays(4, false, std::make_shared<Tape>(), kSamples, {}, called);
  const Outcome in_fours = run_in_replays(4, true, tape, kSamples, {}, captured);
  const Outcome in_ones = run_in_replays(1, true, std::make_shared<Tape>(), kSamples, {}, one);
  REQUIRE(called == std::vector<std::int64_t>(48, 1));
  REQUIRE(one == called);
  std::vector<std::int64_t> wanted;
  for (int epoch = 0; epoch < 4; ++epoch) wanted.insert(wanted.end(), {4, 4, 1, 1, 1, 1});
  REQUIRE(captured == wanted);
  REQUIRE(in_fours.same_results(expected));
  REQUIRE(in_ones.same_results(expected));
  // Of 8 times four, 12 whole batches and 4 ends all but one call and one capture each: 6 and 10 and 2
  // launches.
  REQUIRE(tape->records == 3);
  REQUIRE(in_fours.num_replays == 6 * 4 + 10 + 2);
  REQUIRE(tape->replays == 6 + 10 + 2 + 3);
}

TEST_CASE("a learning rate that changes cuts the replays, and each step has its own") {
  for (const std::vector<int>& changes :
       {std::vector<int>{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, std::vector<int>{3, 7, 8}}) {
    std::vector<std::int64_t> called, captured;
    const Outcome expected = run_in_replays(2, false, std::make_shared<Tape>(), 44, changes, called);
    const Outcome replayed = run_in_replays(2, true, std::make_shared<Tape>(), 44, changes, captured);
    REQUIRE(replayed.same_results(expected));
    REQUIRE(captured.front() == (changes.front() == 1 ? 1 : 2));
    REQUIRE(std::accumulate(captured.begin(), captured.end(), std::int64_t{0}) == 44);
  }
}

TEST_CASE("several steps in one replay reduce the gradients of two ranks") {
  std::vector<Outcome> called(2), captured(2);
  const auto errors = test::run_ranks(2, [&](ThreadGroup& inner) -> std::string {
    const auto rank = static_cast<std::size_t>(inner.rank());
    for (const bool capture : {false, true}) {
      const auto tape = std::make_shared<Tape>();
      RecordingGroup group(inner, tape);
      TrainerRun run;
      STEP(run.start(recording(tape), group, capture, 3));
      for (int epoch = 0; epoch < 4; ++epoch) {
        STEP(run.trainer().begin_epoch(std::vector<std::int32_t>(24, inner.rank() + epoch)));
        for (std::int64_t left = 6; left > 0;) {
          const auto done = run.trainer().steps(left);
          STEP(done);
          left -= *done;
        }
      }
      (capture ? captured : called)[rank] = run.outcome();
    }
    return {};
  });
  REQUIRE(errors == std::vector<std::string>(2));
  for (std::size_t rank = 0; rank < 2; ++rank) {
    REQUIRE(captured[rank].same_results(called[rank]));
    REQUIRE(captured[rank].num_replays == 6 * 3);
  }
  REQUIRE(captured[0].params == captured[1].params);
}
