// SPDX-License-Identifier: Apache-2.0
// For LD_PRELOAD: pread() of a file named stderr.log waits until the file that MUSTER_TEST_GATE names is there, as
// on a file system that does not answer. It says so by making <gate>.waits. A minute at most.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void wait_at_gate(int fd) {
  const char* const gate = getenv("MUSTER_TEST_GATE");
  char link[64], path[4096], waits[4096];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  const ssize_t size = readlink(link, path, sizeof path - 1);
  if (gate == NULL || size < 0) return;
  path[size] = '\0';
  if (size < 10 || strcmp(path + size - 10, "stderr.log") != 0) return;
  snprintf(waits, sizeof waits, "%s.waits", gate);
  const int told = open(waits, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
  if (told >= 0) close(told);
  for (int i = 0; i < 6000 && access(gate, F_OK) != 0; ++i) usleep(10000);
}

ssize_t pread(int fd, void* into, size_t bytes, off_t at) {
  static ssize_t (*next)(int, void*, size_t, off_t);
  if (next == NULL) *(void**)&next = dlsym(RTLD_NEXT, "pread");
  wait_at_gate(fd);
  return next(fd, into, bytes, at);
}

ssize_t pread64(int fd, void* into, size_t bytes, off64_t at) {
  return pread(fd, into, bytes, at);
}
