// SPDX-License-Identifier: Apache-2.0
// A program with a model of its own: its gradients, in one array, are averaged over the ranks while its
// backward pass still runs. Fits y = a x + b, each rank on its own points.
#include <cstdio>

#include <muster/gradient_reducer.h>
#include <muster/init.h>

using namespace muster;

namespace {

Result<void> fit() {
  MUSTER_TRY(const Context context, init());
  float parameters[2] = {0, 0};  // a, b
  float gradients[2];
  MUSTER_TRY(const auto reducer,
             GradientReducer::create(*context.group, gradients, 2, std::vector<std::size_t>{0, 1},
                                     {.first_bucket_bytes = 1, .bucket_bytes = 1}));
  for (int step = 0; step < 500; ++step) {
    const float x = static_cast<float>((step * context.world_size + context.rank) % 7) - 3;
    const float error = parameters[0] * x + parameters[1] - (2 * x - 1);
    gradients[1] = error;
    MUSTER_OK(reducer->ready(1));  // b's reduction starts; a's gradient is still to come
    gradients[0] = error * x;
    MUSTER_OK(reducer->wait());
    for (int i = 0; i < 2; ++i) parameters[i] -= 0.05F * gradients[i];
  }
  std::printf("rank %d of %d: y = %.3f x %+.3f\n", context.rank, context.world_size,
              static_cast<double>(parameters[0]), static_cast<double>(parameters[1]));
  return {};
}

}  // namespace

int main() {
  const auto done = fit();
  if (!done) std::fprintf(stderr, "gradients: %s\n", done.error().message.c_str());
  return done ? 0 : 1;
}
