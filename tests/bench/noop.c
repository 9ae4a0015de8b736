// SPDX-License-Identifier: Apache-2.0
// A program that does nothing: what a launcher's own cost is measured with.
int main(void) {
  return 0;
}
