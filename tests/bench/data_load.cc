// SPDX-License-Identifier: Apache-2.0
// Loads an image folder for scripts/bench data and for the comparison with torchvision
// (tests/interop/test_torchvision.py).
//   data_load serve ROOT WORKERS BATCH exact|scaled   an epoch for each line on stdin: a line of JSON
//   data_load dump ROOT FILE exact|scaled train|evaluate   an epoch in order: the tensors into FILE, a line
//   each data_load list ROOT        the time to list it data_load empty WORKERS BATCHES   batches of 64
//   samples that cost nothing
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <string>

#include <muster/datasets.h>

#include "rendezvous/base/syscall.h"
#include "worker_runtime/data/image_decoder.h"

using namespace muster;

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

const transforms::Normalize kNormalize{{0.485F, 0.456F, 0.406F}, {0.229F, 0.224F, 0.225F}};

ImageFolderOptions options_of(const std::string& decode, bool trains) {
  using namespace transforms;
  return {.transform = trains
                           ? Compose{RandomResizedCrop(224), RandomHorizontalFlip(), ToTensor(), kNormalize}
                           : Compose{Resize(256), CenterCrop(224), ToTensor(), kNormalize},
          .scaled_decode = decode == "scaled"};
}

Result<void> serve(const std::string& root, int workers, int batch, const std::string& decode) {
  MUSTER_TRY(const ImageFolder folder, ImageFolder::create(root, options_of(decode, true)));
  MUSTER_TRY(const auto loader, DataLoader::create(folder, RandomSampler(folder.size()),
                                                   {.batch_size = batch, .num_workers = workers}));
  for (std::string line; std::getline(std::cin, line);) {
    const Clock::time_point begin = Clock::now();
    const auto waited = loader->wait_time();
    std::int64_t images = 0;
    while (true) {
      MUSTER_TRY(const Batch* const made, loader->next());
      if (made == nullptr) break;
      images += made->size();
    }
    std::printf("{\"images\": %lld, \"seconds\": %.6f, \"waited\": %.6f}\n", static_cast<long long>(images),
                seconds_since(begin), std::chrono::duration<double>(loader->wait_time() - waited).count());
    std::fflush(stdout);
  }
  return {};
}

Result<void> dump(const std::string& root, const char* path, const std::string& decode, bool trains) {
  const ImageFolderOptions options = options_of(decode, trains);
  MUSTER_TRY(const ImageFolder folder, ImageFolder::create(root, options));
  MUSTER_TRY(const auto loader,
             DataLoader::create(folder, SequentialSampler(folder.size()), {.num_workers = 2, .seed = 5}));
  std::FILE* const out = std::fopen(path, "wb");
  if (out == nullptr) return fail(errno_error(path, errno));
  while (true) {
    MUSTER_TRY(const Batch* const batch, loader->next());
    if (batch == nullptr) break;
    std::fwrite(batch->inputs.data, 1, batch->inputs.size_bytes(), out);
    const std::int32_t index = batch->indices[0];
    MUSTER_TRY(const std::string bytes, read_file(folder.path(index)));
    MUSTER_TRY(const ImageSize size,
               image_size({reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()}));
    SampleGenerator random(5, 0, static_cast<std::uint64_t>(index));
    std::vector<transforms::Step> steps;
    options.transform.plan(size.width, size.height, random, steps);
    std::printf("{\"path\": \"%s\", \"label\": %d, \"steps\": [", folder.path(index).c_str(),
                batch->labels[0]);
    for (const transforms::Step& step : steps)
      std::printf("%s[%d, %d, %d, %d, %d]", &step == steps.data() ? "" : ", ", static_cast<int>(step.kind),
                  step.left, step.top, step.width, step.height);
    std::printf("]}\n");
  }
  if (std::fclose(out) != 0) return fail(errno_error(path, errno));
  return {};
}

Result<void> list(const std::string& root) {
  const Clock::time_point begin = Clock::now();
  MUSTER_TRY(const ImageFolder folder, ImageFolder::create(root, options_of("exact", true)));
  std::printf("{\"images\": %d, \"seconds\": %.6f}\n", folder.size(), seconds_since(begin));
  return {};
}

struct Nothing {
  std::int32_t count;
  std::int32_t size() const { return count; }
  SampleLayout layout() const { return {.shape = {1}}; }
  Result<void> get(std::int32_t /*index*/, SampleSlot& slot) const {
    *slot.label = 0;
    return {};
  }
};

Result<void> empty(int workers, int batches) {
  const Nothing nothing{64 * batches};
  MUSTER_TRY(const auto loader, DataLoader::create(nothing, SequentialSampler(nothing.count),
                                                   {.batch_size = 64, .num_workers = workers}));
  MUSTER_OK(loader->next());
  const Clock::time_point begin = Clock::now();
  while (true) {
    MUSTER_TRY(const Batch* const batch, loader->next());
    if (batch == nullptr) break;
  }
  std::printf("{\"batches\": %d, \"seconds\": %.6f}\n", batches - 1, seconds_since(begin));
  return {};
}

Result<void> run(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "";
  if (what == "serve" && argc == 6) return serve(argv[2], std::atoi(argv[3]), std::atoi(argv[4]), argv[5]);
  if (what == "dump" && argc == 6) return dump(argv[2], argv[3], argv[4], std::strcmp(argv[5], "train") == 0);
  if (what == "list" && argc == 3) return list(argv[2]);
  if (what == "empty" && argc == 4) return empty(std::atoi(argv[2]), std::atoi(argv[3]));
  return fail(ErrorCode::kInvalidArgument, "usage: see the head of data_load.cc");
}

}  // namespace

int main(int argc, char** argv) {
  const auto done = run(argc, argv);
  if (!done) std::fprintf(stderr, "data_load: %s\n", done.error().message.c_str());
  return done ? 0 : 1;
}
