// SPDX-License-Identifier: Apache-2.0
// For LD_PRELOAD: fdatasync() fails with EIO from its n-th call on, n in FAIL_SYNC_FROM, as a disk does that dies.
#include <errno.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

int fdatasync(int fd) {
  static long num_calls = 0;
  const char* from = getenv("FAIL_SYNC_FROM");
  if (from != NULL && ++num_calls >= atol(from)) {
    errno = EIO;
    return -1;
  }
  return (int)syscall(SYS_fdatasync, fd);
}
