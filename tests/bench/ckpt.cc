// SPDX-License-Identifier: Apache-2.0
// What a checkpoint costs, for `scripts/bench ckpt`: a model and its optimizer of about so many megabytes.
// Reads a word per line and answers each with a line of JSON.
//   copy   one memory copy of the state, to memory that was written before
//   plain  what the disk takes: as many bytes to one file, four blocks at a time past the page cache, or
//          through it where the file system has no other way; then fsync. The blocks are the same few again
//          and again, so that they are in the processor's cache, as those of a checkpoint are.
//   save   CheckpointManager::save() (what the step waits), then until the write is done; the one before is
//          removed afterwards, as the files of the others are
// Usage: ckpt_bench <directory> <megabytes>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <functional>
#include <future>
#include <iostream>
#include <memory>
#include <span>
#include <unistd.h>

#include <fmt/format.h>

#include <muster/checkpoint.h>

#include "rendezvous/base/syscall.h"
#include "rendezvous/base/unique_fd.h"

using namespace muster;

namespace {

double seconds_of(const std::function<void()>& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

/// Linear layers of 1024 to 1024, 4 MiB each and as much momentum.
Result<nn::Model> model_of(int megabytes) {
  nn::Graph graph({1024});
  nn::Value value = graph.input();
  for (int layer = 0; layer < std::max(1, megabytes / 8); ++layer)
    value = nn::linear("layer" + std::to_string(layer), value, 1024);
  return nn::Model::create(graph, value);
}

/// `bytes` begin and end at pages.
Result<void> plain_write(const std::string& path, std::span<const char> bytes) {
  const UniqueFd file(::open(path.c_str(), O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0666));
  if (!file) return fail(errno_error("create " + path, errno));
  constexpr std::size_t kBlock = std::size_t{2} << 20;
  (void)::fallocate(file.get(), 0, 0, static_cast<off_t>(bytes.size()));
  (void)::fcntl(file.get(), F_SETFL, O_DIRECT);
  std::array<std::future<bool>, 4> writing;
  const std::size_t ring = writing.size() * kBlock;
  bool written = true;
  for (std::size_t at = 0, i = 0; at < bytes.size(); at += kBlock, ++i) {
    auto& turn = writing[i % writing.size()];
    if (turn.valid()) written = turn.get() && written;
    turn = std::async(std::launch::async, [&, at, size = std::min(kBlock, bytes.size() - at)] {
      return ::pwrite(file.get(), bytes.data() + at % ring, size, static_cast<off_t>(at)) ==
             static_cast<ssize_t>(size);
    });
  }
  for (auto& each : writing)
    if (each.valid()) written = each.get() && written;
  if (!written) return fail(errno_error("write " + path, EIO));
  if (::fsync(file.get()) != 0) return fail(errno_error("fsync " + path, errno));
  return {};
}

Result<void> serve(const std::string& directory, int megabytes) {
  MUSTER_TRY(const Compute compute, make_compute(DeviceType::kCpu));
  MUSTER_TRY(nn::Model model, model_of(megabytes));
  Generator generator(0);
  model.initialize(generator);
  MUSTER_OK(model.allocate(compute));
  MUSTER_TRY(const auto sgd, Sgd::create(model, {}));
  const auto group = make_single_group();
  MUSTER_TRY(const auto manager, CheckpointManager::create(directory + "/run", model, *sgd, *group,
                                                           {.model = "bench", .keep = 1000}));
  MUSTER_OK(manager->wait());
  const std::size_t half = model.arena_bytes();
  const std::unique_ptr<char, decltype(&std::free)> memory(
      static_cast<char*>(std::aligned_alloc(4096, 2 * half)), &std::free);
  const std::span<char> copy(memory.get(), 2 * half);
  std::memset(copy.data(), 'x', copy.size());
  TrainingState state;
  std::printf("{\"bytes\": %zu}\n", copy.size());
  std::fflush(stdout);
  for (std::string word; std::getline(std::cin, word);) {
    Result<void> done;
    if (word == "copy") {
      double seconds = 0;
      for (int i = 0; i < 2; ++i)  // what was not used for a while is slow to come back
        seconds = seconds_of([&] {
          std::memcpy(copy.data(), model.params(), half);
          std::memcpy(copy.data() + half, sgd->arenas()[0], half);
        });
      std::printf("{\"seconds\": %.6f}\n", seconds);
    } else if (word == "plain") {
      const double seconds = seconds_of([&] { done = plain_write(directory + "/plain", copy); });
      MUSTER_OK(done);
      std::printf("{\"seconds\": %.6f}\n", seconds);
      ::unlink((directory + "/plain").c_str());
    } else {
      ++state.step;
      const double stop = seconds_of([&] { done = manager->save(state); });
      MUSTER_OK(done);
      const double rest = seconds_of([&] { done = manager->wait(); });
      MUSTER_OK(done);
      std::printf("{\"seconds\": %.6f, \"stop\": %.6f}\n", stop + rest, stop);
      std::filesystem::remove_all(fmt::format("{}/run/step-{:08}", directory, state.step - 1));
    }
    std::fflush(stdout);
  }
  return {};
}

}  // namespace

int main(int argc, char** argv) {
  const auto done =
      argc == 3
          ? serve(argv[1], std::atoi(argv[2]))
          : Result<void>(fail(ErrorCode::kInvalidArgument, "usage: ckpt_bench <directory> <megabytes>"));
  if (!done) std::fprintf(stderr, "ckpt_bench: %s\n", done.error().message.c_str());
  return done ? 0 : 1;
}
