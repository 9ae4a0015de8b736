// SPDX-License-Identifier: Apache-2.0
// For LD_PRELOAD: SIGKILL does nothing, as to a process in uninterruptible sleep, until the file that
// MUSTER_TEST_KILLABLE names is there.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

static int is_held_back(long signal) {
  const char* const gate = getenv("MUSTER_TEST_KILLABLE");
  return signal == SIGKILL && gate != NULL && access(gate, F_OK) != 0;
}

long syscall(long number, ...) {
  static long (*next)(long, ...);
  if (next == NULL) *(void**)&next = dlsym(RTLD_NEXT, "syscall");
  va_list arguments;
  long a[6];
  va_start(arguments, number);
  for (int i = 0; i < 6; ++i) a[i] = va_arg(arguments, long);
  va_end(arguments);
  if (number == SYS_pidfd_send_signal && is_held_back((int)a[1])) return 0;
  return next(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}

int kill(pid_t pid, int signal) {
  static int (*next)(pid_t, int);
  if (next == NULL) *(void**)&next = dlsym(RTLD_NEXT, "kill");
  return is_held_back(signal) ? 0 : next(pid, signal);
}
