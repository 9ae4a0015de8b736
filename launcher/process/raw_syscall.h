// SPDX-License-Identifier: Apache-2.0
// System calls that touch nothing but registers: for a child that shares its parent's memory, where libc's
// errno is the parent's too. Returns the result, or minus the error number. x86-64 and AArch64. Source:
// syscall(2).
#pragma once

namespace muster::launcher {

__attribute__((always_inline)) inline long raw_syscall(long number, long a = 0, long b = 0, long c = 0,
                                                       long d = 0, long e = 0) {
#if defined(__x86_64__)
  register long r10 __asm__("r10") = d;
  register long r8 __asm__("r8") = e;
  long result;
  __asm__ volatile("syscall"
                   : "=a"(result)
                   : "0"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8)
                   : "rcx", "r11", "memory");
  return result;
#elif defined(__aarch64__)
  register long x8 __asm__("x8") = number;
  register long x0 __asm__("x0") = a;
  register long x1 __asm__("x1") = b;
  register long x2 __asm__("x2") = c;
  register long x3 __asm__("x3") = d;
  register long x4 __asm__("x4") = e;
  __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4) : "memory");
  return x0;
#else
#error "raw_syscall.h knows x86-64 and AArch64 only"
#endif
}

}  // namespace muster::launcher
