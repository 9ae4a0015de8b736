// SPDX-License-Identifier: Apache-2.0
// collective_worker FOLDER RANK: reduces, so to speak, and says nothing of it but by the runtime.
// WORKER_FAULT says what the given rank does in step 5 of 8: "late": it waits for a byte in FOLDER/go.<rank>
// before its all_reduce; "skip": it leaves one out; "other": it calls a broadcast instead; "none". Who has an
// error or comes to the end waits for its byte too. WORKER_BACKEND: shm or tcp. WORKER_TELLS=1: with words
// about progress. WORKER_STEPS: so many short steps before. After a restart nobody does anything wrong.
#include <array>
#include <cstdio>
#include <cstdlib>
#include <fcntl.h>
#include <optional>
#include <string>
#include <sys/stat.h>
#include <thread>
#include <unistd.h>

#include <muster/init.h>
#include <muster/progress.h>

namespace {

using namespace muster;

std::string text(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

int number(const char* name) {
  return std::atoi(text(name).c_str());
}

Result<void> train(ProcessGroup& group, const std::string& fault, bool odd, std::optional<Progress>& progress,
                   int gate) {
  std::array<float, 1024> data{};
  const Buffer buffer{data.data(), data.size(), DType::kFloat32};
  for (int step = number("WORKER_STEPS"); step > 0; --step) {
    MUSTER_OK(group.all_reduce(buffer));
    std::this_thread::sleep_for(std::chrono::milliseconds(2));  // a step
  }
  for (int step = 1; step <= 8; ++step) {
    if (progress) progress->begin_step(step);
    const bool wrong = odd && step == 5;
    if (wrong && fault == "skip") continue;
    if (char byte = 0; wrong && fault == "late" && ::read(gate, &byte, 1) != 1)
      return fail(ErrorCode::kIo, "the gate is gone");
    MUSTER_OK(wrong && fault == "other" ? group.broadcast(buffer, 0) : group.all_reduce(buffer));
  }
  return {};
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const bool again = number("TORCHELASTIC_RESTART_COUNT") != 0;
  const std::string fault = again ? "none" : text("WORKER_FAULT");
  const std::string path = std::string(argv[1]) + "/go." + text("RANK");
  if (::mkfifo(path.c_str(), 0600) != 0 && !again) return 3;
  const int gate = ::open(path.c_str(), O_RDWR | O_CLOEXEC);  // both ends: no reader is needed
  InitOptions options;
  options.backend = text("WORKER_BACKEND") == "tcp" ? Backend::kTcp : Backend::kShm;
  auto context = init(options);
  if (!context) return std::fprintf(stderr, "%s\n", context.error().message.c_str()), 4;
  std::optional<Progress> progress;
  if (number("WORKER_TELLS") == 1) progress.emplace();
  const auto result = train(*context->group, fault, context->rank == std::atoi(argv[2]), progress, gate);
  if (!result) std::fprintf(stderr, "%s\n", result.error().message.c_str());
  char byte = 0;
  if (fault != "late" && fault != "none" && ::read(gate, &byte, 1) != 1) return 5;
  return result ? 0 : 6;
}
