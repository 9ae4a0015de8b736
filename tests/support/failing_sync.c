// SPDX-License-Identifier: Apache-2.0
// For LD_PRELOAD, a disk that dies or is slow. fdatasync() fails with EIO from its n-th call on, n in FAIL_SYNC_FROM;
// it waits while the file named by HOLD_FDATASYNC exists, as does fsync() for HOLD_FSYNC.
#include <errno.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

static void hold(const char* variable) {
  const char* path = getenv(variable);
  while (path != NULL && access(path, F_OK) == 0) usleep(1000);
}

int fdatasync(int fd) {
  static long num_calls = 0;
  const char* from = getenv("FAIL_SYNC_FROM");
  if (from != NULL && ++num_calls >= atol(from)) {
    errno = EIO;
    return -1;
  }
  hold("HOLD_FDATASYNC");
  return (int)syscall(SYS_fdatasync, fd);
}

int fsync(int fd) {
  hold("HOLD_FSYNC");
  return (int)syscall(SYS_fsync, fd);
}
