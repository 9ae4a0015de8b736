// SPDX-License-Identifier: Apache-2.0
// The main job's command line and the text it shows; the job itself is tested from outside in tests/system.
#include <cmath>
#include <limits>

#include "tests/support/catch.h"
#include "worker_runtime/examples/fashion_options.h"
#include "worker_runtime/examples/progress.h"

using namespace fashion;
using Catch::Matchers::Contains;

namespace {

muster::Result<ParsedOptions> parse(std::vector<const char*> arguments) {
  arguments.insert(arguments.begin(), "fashion_mnist");
  return parse_options(static_cast<int>(arguments.size()), arguments.data());
}

std::string error_of(const std::vector<const char*>& arguments) {
  const auto parsed = parse(arguments);
  REQUIRE_FALSE(parsed);
  REQUIRE(parsed.error().message.find('\n') == std::string::npos);
  REQUIRE_THAT(parsed.error().message, Contains("see fashion_mnist --help"));
  return parsed.error().message;
}

ProgressView view_at(std::int64_t step) {
  return {.epoch = 1,
          .epochs = 2,
          .step = step,
          .steps = 15000,
          .loss = 0.73125,
          .steps_per_second = 4021,
          .images_per_step = 4};
}

}  // namespace

TEST_CASE("without flags the seed benchmark's settings are used") {
  const auto parsed = parse({});
  REQUIRE_OK(parsed);
  const Options& o = parsed->options;
  REQUIRE(o.batch_size == 4);
  REQUIRE(o.lr == 0.001F);
  REQUIRE(o.momentum == 0.9F);
  REQUIRE(o.log_every == 1000);
  REQUIRE(o.model == "garment");
  REQUIRE(o.device == DeviceChoice::kAuto);
  REQUIRE_FALSE(o.seed_given);
}

TEST_CASE("every flag is read") {
  const auto parsed =
      parse({"--epochs=3", "--batch-size", "64", "--lr=0.1", "--momentum=0", "--seed=18446744073709551615",
             "--data=/d", "--model=mlp", "--device=cpu", "--checkpoint=c", "--resume=r", "--log-every=10",
             "--optimizer=adamw", "--label-smoothing=0.1", "--amp=bf16", "--logical-shards=8", "--checkpoint-every=7",
             "--scale-lr"});
  REQUIRE_OK(parsed);
  const Options& o = parsed->options;
  REQUIRE(o.epochs == 3);
  REQUIRE(o.batch_size == 64);
  REQUIRE(o.lr == 0.1F);
  REQUIRE(o.momentum == 0.0F);
  REQUIRE(o.seed == std::numeric_limits<std::uint64_t>::max());
  REQUIRE(o.seed_given);
  REQUIRE(o.data == "/d");
  REQUIRE(o.model == "mlp");
  REQUIRE(o.device == DeviceChoice::kCpu);
  REQUIRE(o.checkpoint == "c");
  REQUIRE(o.checkpoint_every == 7);
  REQUIRE(o.scale_lr);
  REQUIRE(o.resume == "r");
  REQUIRE(o.log_every == 10);
  REQUIRE(o.optimizer == "adamw");
  REQUIRE(o.logical_shards == 8);
  REQUIRE(o.label_smoothing == 0.1F);
  REQUIRE(o.amp == muster::DType::kBFloat16);
}

TEST_CASE("a wrong flag is refused in one line that names it") {
  REQUIRE_THAT(error_of({"--epoch=1", "--nonsense"}), Contains("--nonsense"));
  REQUIRE_THAT(error_of({"--batch-size=0"}), Contains("--batch-size"));
  REQUIRE_THAT(error_of({"--lr=-1"}), Contains("--lr"));
  REQUIRE_THAT(error_of({"--lr=nan"}), Contains("--lr"));
  REQUIRE_THAT(error_of({"--momentum=2"}), Contains("--momentum"));
  REQUIRE_THAT(error_of({"--model=resnet"}), Contains("--model"));
  REQUIRE_THAT(error_of({"--device=tpu"}), Contains("--device"));
  REQUIRE_THAT(error_of({"--optimizer=adam"}), Contains("--optimizer"));
  REQUIRE_THAT(error_of({"--amp=tf32"}), Contains("--amp"));
  REQUIRE_THAT(error_of({"--label-smoothing=nan"}), Contains("--label-smoothing"));
  REQUIRE_THAT(error_of({"--log-every=0"}), Contains("--log-every"));
  REQUIRE_THAT(error_of({"--seed=-1"}), Contains("--seed"));
  for (const char* const flag :
       {"--gpu-memory-fraction=0", "--gpu-memory-fraction=1.5", "--gpu-memory-fraction=nan"})
    REQUIRE_THAT(error_of({flag}), Contains("--gpu-memory-fraction"));
  REQUIRE_THAT(error_of({"--epochs"}), Contains("--epochs"));
  REQUIRE_THAT(error_of({"extra"}), Contains("extra"));
}

TEST_CASE("help shows every flag with its default") {
  const auto parsed = parse({"--help"});
  REQUIRE_OK(parsed);
  for (const char* flag : {"--epochs", "--batch-size", "--lr", "--momentum", "--seed", "--data", "--model",
                           "--device", "--checkpoint", "--checkpoint-every", "--scale-lr", "--resume", "--log-every", "--optimizer",
                           "--label-smoothing", "--amp", "--logical-shards"})
    REQUIRE_THAT(parsed->help, Contains(flag));
  REQUIRE_THAT(parsed->help, Contains("/usr/share/datasets/fashion-mnist"));
}

TEST_CASE("a line of progress names epoch, step, loss and rates") {
  REQUIRE(progress_line(view_at(3000)) ==
          "epoch 1/2  step  3000/15000  loss 0.7312    4021 it/s    16084 images/s");
}

TEST_CASE("a bar fills the terminal's width and never more") {
  for (int columns = 1; columns < 200; ++columns)
    for (const std::int64_t step : {0, 1, 7500, 14999, 15000}) {
      const std::string bar = progress_bar(view_at(step), columns);
      REQUIRE(static_cast<int>(bar.size()) <= columns - 1);
      if (columns > 80) REQUIRE(static_cast<int>(bar.size()) == columns - 1);
    }
  REQUIRE(progress_bar(view_at(7500), 70) ==
          "epoch 1/2 [===========>          ]  50%  loss 0.7312  4021 it/s  0:02");
}

TEST_CASE("before the first window the loss is a dash") {
  ProgressView view = view_at(16);
  view.loss = std::numeric_limits<double>::quiet_NaN();
  view.steps_per_second = 0;
  REQUIRE_THAT(progress_bar(view, 80), Contains("loss      -"));
  REQUIRE_THAT(progress_bar(view, 80), !Contains("it/s"));
}

TEST_CASE("off a terminal there are lines, on other ranks nothing") {
  char* text = nullptr;
  std::size_t size = 0;
  // A stream in memory has no descriptor: it is not a terminal.
  std::FILE* out = ::open_memstream(&text, &size);
  REQUIRE(out != nullptr);
  {
    Progress rank_0(out, true);
    Progress rank_1(out, false);
    REQUIRE_FALSE(rank_0.draws_bar());
    for (Progress* progress : {&rank_0, &rank_1}) {
      progress->tick(view_at(1), Progress::Clock::now());
      progress->interval(view_at(3000));
      progress->say("done");
    }
  }
  std::fclose(out);
  const std::string written(text, size);
  std::free(text);
  REQUIRE(written == progress_line(view_at(3000)) + "\ndone\n");
}

TEST_CASE("auto takes a GPU where the rank's own number is there, however many ranks the node has") {
  REQUIRE_FALSE(obstacle({.rank = 5, .world_size = 8, .gpu = 0, .gpus = 1}));
  REQUIRE_FALSE(obstacle({.rank = 5, .world_size = 8, .gpu = 5, .gpus = 8}));
  REQUIRE_THAT(*obstacle({.rank = 5, .world_size = 8, .gpu = 1, .gpus = 1}),
               Contains("rank 5 would take GPU 1 and sees 1"));
  REQUIRE_THAT(*obstacle({.rank = 0, .world_size = 1}), Contains("rank 0 sees no GPU"));
}

TEST_CASE("auto needs NCCL for several ranks and not for one") {
  REQUIRE_FALSE(obstacle({.world_size = 1, .gpus = 1, .nccl_problem = "no NCCL"}));
  REQUIRE_THAT(*obstacle({.world_size = 2, .gpus = 1, .nccl_problem = "no NCCL"}), Contains("no NCCL"));
}

TEST_CASE("a rank's number on its node is LOCAL_RANK's, else srun's") {
  REQUIRE(local_number("2", "3", 4) == 2);
  REQUIRE(local_number(nullptr, "3", 4) == 3);
  REQUIRE(local_number("", "3", 4) == 3);
  REQUIRE(local_number(nullptr, nullptr, 4) == 4);
}
