// SPDX-License-Identifier: Apache-2.0
// A rank that prints as fast as it can: `flood LINES` writes so many lines of 100 bytes to stdout, 200 with each write(2).
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { kLine = 100, kLines = 200 };

int main(int argc, char** argv) {
  const long count = argc > 1 ? atol(argv[1]) : 0;
  if (count < 1) {
    fprintf(stderr, "usage: flood LINES\n");
    return 2;
  }
  static char block[kLine * kLines];
  memset(block, 'x', sizeof block);
  for (long line = 0; line < count;) {
    long used = 0;
    for (; used < kLines && line < count; ++used, ++line) {
      char number[16];
      snprintf(number, sizeof number, "%09ld ", line);
      memcpy(block + used * kLine, number, 10);
      block[used * kLine + kLine - 1] = '\n';
    }
    for (const char* at = block; at < block + used * kLine;) {
      const ssize_t n = write(1, at, (size_t)(block + used * kLine - at));
      if (n < 0 && errno != EINTR) {
        perror("flood: write");
        return 1;
      }
      if (n > 0) at += n;
    }
  }
  return 0;
}
