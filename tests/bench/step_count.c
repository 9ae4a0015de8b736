// SPDX-License-Identifier: Apache-2.0
// step_count: how many instructions one thread of another process executes in user space, by single steps
// (ptrace(2)), for servers that no valgrind runs in reasonable time. Usage: step_count TID: prints
// "counting", and at SIGINT the number. A system call is one instruction; the thread runs some thousand times
// slower.
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/wait.h>

static volatile sig_atomic_t over;

static void stop(int number) {
  (void)number;
  over = 1;
}

static int fail(const char* call) {
  fprintf(stderr, "step_count: %s: %s\n", call, strerror(errno));
  return 1;
}

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  const pid_t tid = (pid_t)atoi(argv[1]);
  struct sigaction action;
  memset(&action, 0, sizeof action);
  action.sa_handler = stop;  // without SA_RESTART: it ends a wait
  sigaction(SIGINT, &action, NULL);
  if (ptrace(PTRACE_SEIZE, tid, NULL, NULL) != 0) return fail("PTRACE_SEIZE");
  if (ptrace(PTRACE_INTERRUPT, tid, NULL, NULL) != 0) return fail("PTRACE_INTERRUPT");
  int status = 0;
  if (waitpid(tid, &status, __WALL) != tid) return fail("waitpid");
  puts("counting");
  fflush(stdout);
  unsigned long long steps = 0;
  while (1) {
    // A signal of its own is delivered; a trap is a step.
    const int number = WIFSTOPPED(status) && WSTOPSIG(status) != SIGTRAP ? WSTOPSIG(status) : 0;
    if (ptrace(PTRACE_SINGLESTEP, tid, NULL, (void*)(long)number) != 0) return fail("PTRACE_SINGLESTEP");
    pid_t waited;
    while ((waited = waitpid(tid, &status, __WALL)) < 0 && errno == EINTR && !over) {
    }
    if (over) {
      // In a system call, or by chance between two steps.
      if (waited < 0) {
        ptrace(PTRACE_INTERRUPT, tid, NULL, NULL);
        waitpid(tid, &status, __WALL);
      }
      break;
    }
    if (waited < 0) return fail("waitpid");
    if (WIFEXITED(status) || WIFSIGNALED(status)) break;
    ++steps;
  }
  ptrace(PTRACE_DETACH, tid, NULL, NULL);
  printf("%llu\n", steps);
  return 0;
}
