// SPDX-License-Identifier: Apache-2.0
// For `scripts/bench dp_vs_ddp` and `scaling_rule`: the tutorial's network on FashionMNIST with one global
// batch on one CPU replica (single), on replicas that are threads of one process (dp) or on ranks that are
// processes (ddp). The three do the same sums: part i of each batch belongs to replica i. Prints one line of
// JSON.
#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <muster/data_parallel.h>
#include <muster/datasets.h>
#include <muster/ddp.h>
#include <muster/init.h>
#include <muster/optim.h>
#include <muster/sampler.h>
#include <muster/schedule.h>
#include <muster/spawn.h>

namespace {

using muster::Result;
using Clock = std::chrono::steady_clock;

struct Settings {
  std::string mode;
  std::map<std::string, double, std::less<>> numbers = {{"replicas", 2}, {"batch", 64},  {"steps", 1000},
                                                        {"lr", 0.001},   {"warm-up", 0}, {"until", 0},
                                                        {"every", 50},   {"seed", 0}};
  [[nodiscard]] double number(std::string_view name) const { return numbers.find(name)->second; }
  [[nodiscard]] int integer(std::string_view name) const { return static_cast<int>(number(name)); }
};

/// Batches in the order of a seeded shuffle, as floats.
class Batches {
 public:
  static Result<Batches> load(muster::Split split, std::uint64_t seed) {
    Batches out;
    MUSTER_TRY(out.images_, muster::load_fashion_mnist(muster::kFashionMnistDirectory, split));
    muster::Generator generator(seed);
    out.order_ = muster::random_sampler_epoch(generator, out.images_.size());
    return out;
  }

  /// `count` samples from `first` on.
  void fill(std::size_t first, std::size_t count, float* input, std::int32_t* labels) const {
    for (std::size_t i = 0; i < count; ++i) {
      const auto index = static_cast<std::size_t>(order_[(first + i) % order_.size()]);
      const std::uint8_t* pixels = images_.images.data() + index * kPixels;
      for (std::size_t p = 0; p < kPixels; ++p)
        input[i * kPixels + p] = static_cast<float>(pixels[p]) / 127.5F - 1.0F;
      labels[i] = images_.labels[index];
    }
  }
  static constexpr std::size_t kPixels = 784;

 private:
  muster::ImageDataset images_;
  std::vector<std::int32_t> order_;
};

muster::nn::Model seeded_model(const Settings& settings) {
  muster::nn::Model model = muster::nn::garment_classifier();
  muster::Generator generator(static_cast<std::uint64_t>(settings.integer("seed")));
  model.initialize(generator);
  return model;
}

struct Outcome {
  int steps = 0;
  double seconds = 0;
  double loss = 0;  // of the last tenth of the steps, or of the test set
  bool reached = false;
  double alone = 0;                 // seconds in which one replica worked and the others waited
  std::vector<std::size_t> memory;  // bytes of each replica
};

void print(const Settings& settings, const Outcome& outcome) {
  std::string memory;
  for (const std::size_t bytes : outcome.memory)
    memory += (memory.empty() ? "" : ", ") + std::to_string(bytes);
  std::printf(
      "{\"mode\": \"%s\", \"replicas\": %zu, \"steps\": %d, \"seconds\": %.6f, \"loss\": %.9f, \"reached\": "
      "%s, \"alone\": %.6f, \"memory\": [%s]}\n",
      settings.mode.c_str(), outcome.memory.size(), outcome.steps, outcome.seconds, outcome.loss,
      outcome.reached ? "true" : "false", outcome.alone, memory.c_str());
}

Result<Outcome> run_data_parallel(const Settings& settings) {
  const auto replicas = static_cast<std::size_t>(settings.integer("replicas"));
  std::vector<muster::nn::Model> models;
  std::vector<muster::Compute> devices;
  for (std::size_t i = 0; i < replicas; ++i) {
    models.push_back(seeded_model(settings));
    MUSTER_TRY(devices.emplace_back(), muster::make_compute(muster::DeviceType::kCpu));
  }
  MUSTER_TRY(const auto parallel, muster::DataParallel::create(models, devices));
  MUSTER_TRY(const auto sgd,
             muster::Sgd::create(models[0], {.lr = static_cast<float>(settings.number("lr"))}));
  MUSTER_TRY(const Batches batches, Batches::load(muster::Split::kTrain, 0));
  const auto batch = static_cast<std::size_t>(settings.integer("batch"));
  std::vector<float> input(batch * Batches::kPixels);
  std::vector<std::int32_t> labels(batch);
  Outcome outcome;
  outcome.steps = settings.integer("steps");
  const int tail = std::max(outcome.steps / 10, 1);
  auto begin = Clock::now();
  Clock::duration together{};
  for (int step = -10; step < outcome.steps; ++step) {  // ten to warm up
    if (step == 0) begin = Clock::now(), together = {};
    batches.fill(static_cast<std::size_t>(step + 10) * batch, batch, input.data(), labels.data());
    const auto dealt_out = Clock::now();
    MUSTER_TRY(const auto totals, parallel->forward_backward(input, labels));
    together += Clock::now() - dealt_out;
    sgd->step();
    if (step >= outcome.steps - tail) outcome.loss += totals.loss_sum / static_cast<double>(batch) / tail;
  }
  outcome.seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  outcome.alone = outcome.seconds - std::chrono::duration<double>(together).count();
  for (const auto& device : devices) outcome.memory.push_back(muster::memory_allocated(device));
  return outcome;
}

/// One rank of a job.
class Rank {
 public:
  explicit Rank(const Settings& settings) : settings_(settings), model_(seeded_model(settings)) {}

  Result<Outcome> run() {
    MUSTER_TRY(context_, muster::init());
    MUSTER_TRY(device_, muster::make_compute(muster::DeviceType::kCpu));
    MUSTER_TRY(ddp_, muster::DistributedDataParallel::create(model_, device_, *context_.group));
    MUSTER_TRY(const auto sgd,
               muster::Sgd::create(model_, {.lr = static_cast<float>(settings_.number("lr"))}));
    const auto seed = static_cast<std::uint64_t>(settings_.integer("seed"));
    MUSTER_TRY(const Batches batches, Batches::load(muster::Split::kTrain, seed));
    MUSTER_TRY(const Batches test, Batches::load(muster::Split::kTest, 0));
    const auto part = static_cast<std::size_t>(settings_.integer("batch") / context_.world_size);
    MUSTER_TRY(muster::nn::Plan* const plan,
               model_.plan(static_cast<int>(part), muster::nn::Mode::kTraining));
    Outcome outcome;
    outcome.steps = settings_.integer("steps");
    const double until = settings_.number("until");
    const int warm = until > 0 ? 0 : 10, tail = std::max(outcome.steps / 10, 1);
    Clock::duration spent{};
    for (int step = -warm; step < outcome.steps; ++step) {
      if (step == 0) {
        spent = {};
        MUSTER_OK(context_.group->barrier());
      }
      const auto begin = Clock::now();
      const auto first =
          static_cast<std::size_t>(step + warm) * part * static_cast<std::size_t>(context_.world_size) +
          static_cast<std::size_t>(context_.rank) * part;
      batches.fill(first, part, plan->input(), plan->labels());
      MUSTER_TRY(const double loss, forward(*plan));
      MUSTER_OK(ddp_->backward(*plan));
      sgd->set_lr(static_cast<float>(settings_.number("lr")) *
                  muster::warm_up_factor(std::max(step, 0), settings_.integer("warm-up"), 0.1));
      sgd->step();
      spent += Clock::now() - begin;
      if (step >= outcome.steps - tail) outcome.loss += loss / static_cast<double>(part) / tail;
      if (until > 0 && (step + 1) % settings_.integer("every") == 0) {
        MUSTER_TRY(outcome.loss, test_loss(test));
        outcome.reached = outcome.loss <= until;
        if (outcome.reached || step + 1 == outcome.steps) outcome.steps = step + 1;
      }
    }
    outcome.seconds = std::chrono::duration<double>(spent).count();
    if (until == 0) {
      MUSTER_TRY(outcome.loss, mean(outcome.loss));
    }
    std::vector<std::int64_t> memory(static_cast<std::size_t>(context_.world_size));
    const auto own = static_cast<std::int64_t>(muster::memory_allocated(device_));
    const bool is_first = context_.rank == 0;
    MUSTER_OK(context_.group->gather(
        {&own, 1, muster::DType::kInt64},
        is_first ? muster::Buffer{memory.data(), memory.size(), muster::DType::kInt64} : muster::Buffer{},
        0));
    outcome.memory.assign(memory.begin(), memory.end());
    return outcome;
  }

  [[nodiscard]] bool is_first() const { return context_.rank == 0; }

 private:
  /// The sum over the plan's samples.
  Result<double> forward(const muster::nn::Plan& plan) {
    plan.forward();
    muster::LossTotals totals;
    muster::LossFrame frame = muster::loss_frame(model_, plan);
    frame.totals = &totals;
    muster::CrossEntropy().compute(frame);
    return totals.loss_sum;
  }

  Result<double> mean(double value) {
    MUSTER_OK(context_.group->all_reduce({&value, 1, muster::DType::kFloat64}, muster::ReduceOp::kAvg));
    return value;
  }

  /// Over 4,000 samples that the ranks share.
  Result<double> test_loss(const Batches& test) {
    constexpr std::size_t kRows = 100, kSamples = 4000;
    MUSTER_TRY(muster::nn::Plan* const plan, model_.plan(kRows, muster::nn::Mode::kInference));
    double sum = 0;
    const auto world = static_cast<std::size_t>(context_.world_size);
    for (std::size_t at = static_cast<std::size_t>(context_.rank) * kRows; at < kSamples;
         at += world * kRows) {
      test.fill(at, kRows, plan->input(), plan->labels());
      MUSTER_TRY(const double part, forward(*plan));
      sum += part;
    }
    MUSTER_TRY(const double average, mean(sum));
    return average * static_cast<double>(world) / kSamples;
  }

  const Settings& settings_;
  muster::nn::Model model_;
  muster::Context context_;
  muster::Compute device_;
  std::unique_ptr<muster::DistributedDataParallel> ddp_;
};

Result<Settings> parse(std::span<char*> arguments) {
  Settings settings;
  for (const std::string_view argument : arguments) {
    const std::size_t equals = argument.find('=');
    const auto number = argument.starts_with("--") && equals != std::string_view::npos
                            ? settings.numbers.find(argument.substr(2, equals - 2))
                            : settings.numbers.end();
    const std::string_view value = argument.substr(std::min(equals, argument.size() - 1) + 1);
    if (number != settings.numbers.end() &&
        std::from_chars(value.data(), value.data() + value.size(), number->second).ec == std::errc() &&
        number->second >= 0)
      continue;
    if (argument != "single" && argument != "dp" && argument != "ddp")
      return muster::fail(muster::ErrorCode::kInvalidArgument,
                          std::string(argument) +
                              ": expected single, dp or ddp, and --replicas=N, --batch=N (global), "
                              "--steps=N, --lr=X, --warm-up=N, --until=LOSS, --every=N, --seed=N");
    settings.mode = argument;
  }
  if (settings.mode.empty() || settings.integer("replicas") < 1 ||
      settings.integer("batch") < settings.integer("replicas"))
    return muster::fail(muster::ErrorCode::kInvalidArgument,
                        "single, dp or ddp, and a sample for each replica");
  if (settings.mode == "single") settings.numbers["replicas"] = 1;
  return settings;
}

Result<void> measure(const Settings& settings) {
  if (settings.mode != "ddp") {
    MUSTER_TRY(const Outcome outcome, run_data_parallel(settings));
    print(settings, outcome);
    return {};
  }
  return muster::spawn(settings.integer("replicas"), [&](int) -> Result<void> {
    Rank rank(settings);
    MUSTER_TRY(const Outcome outcome, rank.run());
    if (rank.is_first()) print(settings, outcome);
    return {};
  });
}

}  // namespace

int main(int argc, char** argv) {
  const auto settings = parse(std::span(argv + 1, static_cast<std::size_t>(argc - 1)));
  const auto done = settings ? measure(*settings) : muster::fail(settings.error());
  if (!done) {
    std::fprintf(stderr, "parallel_training: %s\n", done.error().message.c_str());
    return settings ? 1 : 2;
  }
}
