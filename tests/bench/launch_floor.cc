// SPDX-License-Identifier: Apache-2.0
// The floor of a launch: start N processes with posix_spawn and wait for them, nothing else.
// usage: launch_floor N program [args...]; prints the seconds from the first spawn to the last exit.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <spawn.h>
#include <sys/wait.h>

extern char** environ;

int main(int argc, char** argv) {
  const int count = argc > 2 ? std::atoi(argv[1]) : 0;
  if (count < 1) {
    std::fprintf(stderr, "usage: launch_floor N program [args...]\n");
    return 2;
  }
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < count; ++i) {
    pid_t pid = 0;
    if (const int error = ::posix_spawn(&pid, argv[2], nullptr, nullptr, argv + 2, environ); error != 0) {
      std::fprintf(stderr, "posix_spawn %s: %s\n", argv[2], std::strerror(error));
      return 1;
    }
  }
  for (int i = 0; i < count; ++i) {
    int status = 0;
    if (::wait(&status) < 0 || status != 0) {
      std::fprintf(stderr, "a child failed\n");
      return 1;
    }
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  std::printf("%.6f\n", took.count());
  return 0;
}
