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

TEST_CASE("accumulated gradients and a momentum that starts anew are not replayed") {
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
        REQUIRE_OK(run.trainer().begin_epoch(std::vector<std::int32_t>{1, 2, 3, 4}));
        REQUIRE_OK(run.trainer().step());
      }
      if (number > 0) run.trainer().optimizer().write_state({});
    }
    return run.outcome();
  };
  const Outcome called = train_oddly(false), captured = train_oddly(true);
  REQUIRE(captured.same_results(called));
  REQUIRE(captured.num_replays > 0);
}
