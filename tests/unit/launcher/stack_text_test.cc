// SPDX-License-Identifier: Apache-2.0
// What tools and /proc say of a process that waits.
#include "launcher/hang/stack_text.h"

#include <csignal>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

#include "launcher/hang/process_state.h"
#include "tests/support/catch.h"

using namespace muster::launcher;
using Functions = std::vector<std::string>;
using Lines = std::vector<std::string>;

TEST_CASE("functions are read from gdb's backtraces, the main thread's first") {
  const Lines lines{
      "[New LWP 12]",
      "Thread 2 (Thread 0x7f1 (LWP 12) \"worker\"):",
      "#0  0x00007fa0b3c74df2 in __libc_pause () at ../sysdeps/unix/sysv/linux/pause.c:29",
      "#1  0x00005627 in std::vector<int, std::allocator<int> >::push_back(int&&) (this=...) at v.h:3",
      "",
      "Thread 1 (Thread 0x7f0 (LWP 11) \"train\"):",
      "#0  __GI___libc_read (nbytes=1, buf=0x7ffd, fd=3) at ../sysdeps/unix/sysv/linux/read.c:26",
      "#1  0x000056271547c19d in load_batch (fd=...) at /src/train.c:4",
      "#2  operator() (this=...) at a.cc:1",
      "#3  0x0000 in main () at /src/train.c:5",
      "[Inferior 1 (process 11) detached]",
  };
  const auto stacks = parse_stacks(StackTool::kGdb, lines);
  REQUIRE(stacks.size() == 2);
  REQUIRE(stacks[0].functions == Functions{"read", "load_batch", "operator()", "main"});
  REQUIRE(stacks[1].functions == Functions{"pause", "std::vector<int, std::allocator<int> >::push_back"});
  REQUIRE(stacks[0].title.find("LWP 11") != std::string::npos);
}

TEST_CASE("functions are read from what py-spy writes") {
  const Lines spy{"Process 7: python3 train.py",
                  "Python v3.11.2 (/usr/bin/python3.11)",
                  "",
                  "Thread 9 (idle): \"pin\"",
                  "    get (queue.py:171)",
                  "Thread 7 (idle): \"MainThread\"",
                  "    read_batch (train.py:4)",
                  "    <module> (train.py:9)"};
  const auto stacks = parse_stacks(StackTool::kPySpy, spy);
  REQUIRE(stacks.size() == 2);
  REQUIRE(stacks[0].functions == Functions{"read_batch (train.py:4)", "<module> (train.py:9)"});
}

TEST_CASE("a tool that may not trace says so") {
  const Lines lines{"Could not attach to process.  If your uid matches the uid of the target",
                    "ptrace: Operation not permitted."};
  REQUIRE(parse_stacks(StackTool::kGdb, lines).empty());
  REQUIRE(problem_in(lines, "shows no stack") == "ptrace: Operation not permitted.");
  REQUIRE(problem_in(Lines{"x"}, "shows no stack") == "shows no stack");
}

TEST_CASE("what is below main tells nothing") {
  REQUIRE(relevant_frames(Functions{"read", "read", "load", "main", "__libc_start_main", "_start"}, 9) ==
          Functions{"read", "load", "main"});
  REQUIRE(relevant_frames(Functions{"a", "b", "c"}, 2) == Functions{"a", "b"});
}

TEST_CASE("the system call of a process is read from its file") {
  REQUIRE(parse_current_call("0 0x5 0x7ffd 0x1 0x0 0x0 0x0 0x7ffd 0x7fa0\n") == CurrentCall{0, 5});
  REQUIRE(parse_current_call("7 0xffffffffffffffff 0x0\n") == CurrentCall{7, -1});
  for (const char* text : {"running\n", "", "-1 0x7ffd 0x7f\n", "0", "0 5"}) {
    INFO(text);
    REQUIRE(parse_current_call(text) == std::nullopt);
  }
  REQUIRE(call_name(SYS_read) == "read");
  REQUIRE(call_name(100'000) == "system call 100000");
}

TEST_CASE("a process that waits for a pipe is found in read(2), with the pipe") {
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  const pid_t child = ::fork();
  if (child == 0) {
    char byte;
    ::_exit(::read(ends[0], &byte, 1) == 1 ? 0 : 1);
  }
  std::vector<ThreadState> threads;
  const auto waits = [&] {
    threads = read_threads(child, 8);
    return !threads.empty() && threads[0].call.starts_with("read(");
  };
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!waits() && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
  const bool found = waits();
  ::close(ends[1]);
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  ::close(ends[0]);
  REQUIRE(found);
  REQUIRE(threads[0].id == child);
  REQUIRE(threads[0].state == 'S');
  REQUIRE(threads[0].call.find("-> pipe:[") != std::string::npos);
  REQUIRE(read_threads(child, 8).empty());
}
