// SPDX-License-Identifier: Apache-2.0
// hang_worker FOLDER RANK: trains, so to speak, and tells of it. In step 5 the given rank waits for a batch
// that does not come, the others in a collective for it; all begin at once. A byte in FOLDER/go.<rank> lets a
// rank go on to its end; after a restart nobody waits.
#include <chrono>
#include <cstdlib>
#include <fcntl.h>
#include <string>
#include <sys/stat.h>
#include <thread>
#include <unistd.h>

#include <muster/progress.h>

namespace {

int number(const char* name) {
  const char* text = std::getenv(name);
  return text == nullptr ? 0 : std::atoi(text);
}

}  // namespace

// Found in the stack by their names.
extern "C" __attribute__((noinline)) bool load_batch(int fd) {
  char byte = 0;
  const bool got = ::read(fd, &byte, 1) == 1;
  return got && byte != 0;
}

extern "C" __attribute__((noinline)) bool all_reduce_of_peers(int fd) {
  char byte = 0;
  const bool got = ::read(fd, &byte, 1) == 1;
  return got && byte != 0;
}

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const int rank = number("RANK");
  const bool waits = number("TORCHELASTIC_RESTART_COUNT") == 0;
  const auto gate_of = [&](int who) { return std::string(argv[1]) + "/go." + std::to_string(who); };
  const std::string gate = gate_of(rank);
  if (::mkfifo(gate.c_str(), 0600) != 0 && waits) return 3;
  // Who was started late would still be in its first steps while the others are silent.
  for (int other = 0; waits && other < number("WORLD_SIZE"); ++other)
    while (::access(gate_of(other).c_str(), F_OK) != 0)
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
  const int fd = ::open(gate.c_str(), O_RDWR);  // both ends: who waits is not told that nobody writes
  muster::Progress progress;
  progress.begin_epoch(1, 8);
  for (int step = 1; step <= 8; ++step) {
    progress.begin_step(step);
    progress.enter("forward");
    if (step != 5 || !waits) continue;
    const bool stuck = rank == std::atoi(argv[2]);
    stuck ? progress.enter("data") : progress.enter("all_reduce");
    if (!(stuck ? load_batch(fd) : all_reduce_of_peers(fd))) return 4;
  }
  return 0;
}
