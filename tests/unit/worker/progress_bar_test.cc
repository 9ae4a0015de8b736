// SPDX-License-Identifier: Apache-2.0
// What rank 0 shows while it trains; programs with it are tested from outside in tests/system.
#include <chrono>
#include <cstdlib>

#include <muster/progress_bar.h>

#include "tests/support/catch.h"

using namespace muster;
using Catch::Matchers::Contains;
using std::chrono::milliseconds;
using std::chrono::seconds;

namespace {

ProgressView view_at(std::int64_t step) {
  ProgressView view{.epoch = 1, .epochs = 2, .step = step, .steps = 15000};
  view.loss = 0.73125;
  view.lr = 0.001F;
  view.step_seconds = 250e-6;
  view.images_per_second = 16084;
  return view;
}

}  // namespace

TEST_CASE("a line of progress names epoch, step, loss, learning rate, times, images and what is left") {
  ProgressView view = view_at(3000);
  REQUIRE(progress_line(view) ==
          "epoch 1/2  step  3000/15000  loss 0.7312  lr 0.001  step 0.250 ms  16084 images/s  ETA 0:03");
  view.step_seconds = 1.5;
  view.data_seconds = 0.0123;
  REQUIRE_THAT(progress_line(view), Contains("data 12.3 ms  step 1500 ms") && Contains("ETA 5:00:00"));
}

TEST_CASE("a bar fills the terminal's width and never more, and shows first what matters most") {
  for (int columns = 1; columns < 200; ++columns)
    for (const std::int64_t step : {0, 1, 7500, 14999, 15000}) {
      const std::string bar = progress_bar(view_at(step), columns);
      REQUIRE(static_cast<int>(bar.size()) <= columns - 1);
      if (columns > 40) REQUIRE(static_cast<int>(bar.size()) == columns - 1);
    }
  REQUIRE(progress_bar(view_at(7500), 60) == "epoch 1/2 [======>       ]  50%  loss 0.7312  ETA 0:02");
  REQUIRE_THAT(progress_bar(view_at(7500), 120),
               Contains("ETA 0:02  16084 images/s  step 0.250 ms  lr 0.001"));
}

TEST_CASE("before the first interval the loss is a dash and no speed is known") {
  ProgressView view = view_at(16);
  view.loss = ProgressView{}.loss;
  view.step_seconds = 0;
  REQUIRE_THAT(progress_bar(view, 80), Contains("loss      -") && !Contains("ETA") && !Contains("images/s"));
}

TEST_CASE("off a terminal there is a line per interval with its own speed, on other ranks nothing") {
  char* text = nullptr;
  std::size_t size = 0;
  // A stream in memory has no descriptor: it is not a terminal.
  std::FILE* out = ::open_memstream(&text, &size);
  REQUIRE(out != nullptr);
  {
    ProgressBar rank_0(out, true);
    ProgressBar rank_1(out, false);
    const ProgressBar::Clock::time_point start{seconds(100)};
    for (ProgressBar* bar : {&rank_0, &rank_1}) {
      bar->begin_epoch(2, 3, 100, 10, start);
      bar->update(20, start + seconds(1));
      bar->interval({.loss = 1.5, .images = 80, .lr = 0.1F, .data_time = milliseconds(500)},
                    start + seconds(2));
      bar->update(30, start + seconds(3));
      bar->interval({.loss = 1.25, .images = 80, .lr = 0.1F, .data_time = milliseconds(600)},
                    start + seconds(3));
      bar->print("%s in %d", "done", 3);
    }
  }
  std::fclose(out);
  const std::string written(text, size);
  std::free(text);
  REQUIRE(written ==
          "epoch 2/3  step  20/100  loss 1.5000  lr 0.1  data 50.0 ms  step 200 ms  40 images/s  ETA 0:16\n"
          "epoch 2/3  step  30/100  loss 1.2500  lr 0.1  data 10.0 ms  step 100 ms  80 images/s  ETA 0:07\n"
          "done in 3\n");
}
