// SPDX-License-Identifier: Apache-2.0
// A worker that says on CLOCK_MONOTONIC what happens to it: `stamps FIFO` writes lines "what rank attempt pid ns" there.
// SIGTERM: "term", and it ends at once. SIGUSR1: "dies", then SIGKILL to itself. SIGUSR2: it ends with 0.
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static int fifo = -1;
static const char *rank, *attempt;

static void say(const char* what) {
  struct timespec now;
  char line[160];
  clock_gettime(CLOCK_MONOTONIC, &now);
  const int n = snprintf(line, sizeof line, "%s %s %s %d %lld\n", what, rank, attempt, (int)getpid(),
                         (long long)now.tv_sec * 1000000000 + now.tv_nsec);
  if (write(fifo, line, (size_t)n) != n) _exit(3);  // in one piece: less than PIPE_BUF
}

int main(int argc, char** argv) {
  rank = getenv("RANK");
  attempt = getenv("TORCHELASTIC_RESTART_COUNT");
  fifo = argc > 1 ? open(argv[1], O_WRONLY | O_CLOEXEC) : -1;
  if (fifo < 0 || rank == NULL || attempt == NULL) return 2;
  sigset_t wanted;
  sigemptyset(&wanted);
  sigaddset(&wanted, SIGTERM);
  sigaddset(&wanted, SIGUSR1);
  sigaddset(&wanted, SIGUSR2);
  sigprocmask(SIG_BLOCK, &wanted, NULL);
  say("start");
  int signal = 0;
  sigwait(&wanted, &signal);
  if (signal == SIGUSR2) return 0;
  say(signal == SIGTERM ? "term" : "dies");
  if (signal == SIGUSR1) kill(getpid(), SIGKILL);
  _exit(128 + SIGTERM);
}
