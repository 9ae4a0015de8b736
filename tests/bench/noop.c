// SPDX-License-Identifier: Apache-2.0
// A program that does nothing: what a launcher's own cost is measured with. `noop MS` stays for so many milliseconds.
#include <stdlib.h>
#include <time.h>

int main(int argc, char** argv) {
  if (argc > 1) {
    const long ms = atol(argv[1]);
    const struct timespec pause = {ms / 1000, ms % 1000 * 1000000};
    nanosleep(&pause, NULL);
  }
  return 0;
}
