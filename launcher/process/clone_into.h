// SPDX-License-Identifier: Apache-2.0
// clone3 for a child that shares its parent's memory and runs `body` on a stack of its own: glibc has no
// wrapper for it, and only clone3 can start a child within a control group. Returns the child's pid, or minus
// the error number. x86-64 and AArch64. `body` must not return. Source: clone(2), glibc's clone3.S.
#pragma once

#include <linux/sched.h>
#include <sys/syscall.h>

namespace muster::launcher {

inline long clone_into(clone_args* arguments, int (*body)(void*), void* argument) {
#if defined(__x86_64__)
  register int (*r12)(void*) __asm__("r12") = body;
  register void* r13 __asm__("r13") = argument;
  long result;
  __asm__ volatile(
      "syscall\n\t"
      "testq %%rax, %%rax\n\t"
      "jnz 1f\n\t"
      "xorl %%ebp, %%ebp\n\t"
      "movq %%r13, %%rdi\n\t"
      "callq *%%r12\n\t"
      "hlt\n"
      "1:"
      : "=a"(result)
      : "0"(static_cast<long>(SYS_clone3)), "D"(arguments), "S"(sizeof *arguments), "r"(r12), "r"(r13)
      : "rcx", "r11", "memory", "cc");
  return result;
#elif defined(__aarch64__)
  register long x8 __asm__("x8") = SYS_clone3;
  register long x0 __asm__("x0") = reinterpret_cast<long>(arguments);
  register long x1 __asm__("x1") = sizeof *arguments;
  register int (*x19)(void*) __asm__("x19") = body;
  register void* x20 __asm__("x20") = argument;
  __asm__ volatile(
      "svc 0\n\t"
      "cbnz x0, 1f\n\t"
      "mov x29, xzr\n\t"
      "mov x0, x20\n\t"
      "blr x19\n\t"
      "brk 1\n"
      "1:"
      : "+r"(x0)
      : "r"(x8), "r"(x1), "r"(x19), "r"(x20)
      : "memory", "cc");
  return x0;
#else
#error "clone_into.h knows x86-64 and AArch64 only"
#endif
}

}  // namespace muster::launcher
