// SPDX-License-Identifier: Apache-2.0
#include "launcher/output/error_watch.h"

#include "tests/support/catch.h"
#include "tests/support/fieldwise.h"

using namespace muster::launcher;

namespace {

std::optional<Cause> found_in(std::string_view text) {
  ErrorWatch watch;
  watch.feed(text);
  watch.finish();
  return watch.found();
}

Cause cause(CauseClass kind, std::string text, std::string where = {}) {
  return {kind, std::move(text), std::move(where)};
}

constexpr std::string_view kTraceback =
    "some output\n"
    "Traceback (most recent call last):\n"
    "  File \"/job/train.py\", line 30, in <module>\n"
    "    main()\n"
    "  File \"/job/loss.py\", line 12, in main\n"
    "    raise ValueError(\"boom\")\n"
    "           ^^^^^^^^^^^^^^^^^\n"
    "ValueError: boom\n";

}  // namespace

TEST_CASE("a Python traceback is known by its last line and its innermost place") {
  REQUIRE(found_in(kTraceback) == cause(CauseClass::kException, "ValueError: boom", "/job/loss.py:12"));
}

TEST_CASE("it does not matter in which pieces the bytes come") {
  for (std::size_t size = 1; size < 40; ++size) {
    ErrorWatch watch;
    for (std::string_view rest = kTraceback; !rest.empty(); rest.remove_prefix(std::min(size, rest.size())))
      watch.feed(rest.substr(0, size));
    REQUIRE(watch.found() == found_in(kTraceback));
  }
}

TEST_CASE("an error in the midst of other output is found, in whatever pieces they come") {
  std::string chatter;
  for (int i = 0; i < 40; ++i)
    chatter += "step " + std::to_string(i) + (i % 3 == 0 ? " loss 2.5\r" : " lr 0.1\r\n");
  for (const std::string_view error :
       {std::string_view("gloo::EnforceNotMet\n"),
        std::string_view("\x1b[31mBus error\x1b[0m (core dumped)\n"), std::string_view("NCCL WARN no way\n"),
        std::string_view("RuntimeError: CUDA error: no\n"), kTraceback}) {
    const std::string text = chatter + std::string(error) + chatter;
    const std::optional<Cause> expected = found_in(error);
    REQUIRE(expected.has_value());
    for (std::size_t size = 1; size < text.size(); size += 1 + size / 8) {
      ErrorWatch watch;
      for (std::string_view rest = text; !rest.empty(); rest.remove_prefix(std::min(size, rest.size())))
        watch.feed(rest.substr(0, size));
      INFO(error << " in pieces of " << size);
      REQUIRE(watch.found() == expected);
    }
  }
}

TEST_CASE("each of the words is found between other lines, wherever in its line it is") {
  for (const std::string_view word : {"CUDA out of memory",
                                      "OutOfMemoryError",
                                      "cudaErrorMemoryAllocation",
                                      "_STATUS_ALLOC_FAILED",
                                      "CUDA error",
                                      "CUDNN_STATUS_",
                                      "illegal memory access",
                                      "uncorrectable ECC",
                                      "ncclRemoteError",
                                      "Broken pipe",
                                      "Connection reset by peer",
                                      "NCCL error",
                                      "DistNetworkError",
                                      "gloo::",
                                      "std::bad_alloc",
                                      "MemoryError",
                                      "==ERROR: ",
                                      ": runtime error: ",
                                      "Segmentation fault",
                                      "malloc(): ",
                                      "Check failed: ",
                                      "NCCL WARN",
                                      ": No module named ",
                                      "terminate called ",
                                      "libc++abi: terminating",
                                      "Watchdog caught collective"})
    for (std::size_t before = 0; before < 7; ++before) {
      INFO(word << " after " << before);
      REQUIRE(found_in("quiet\n" + std::string(before, 'x') + std::string(word) + "y\nquiet\n").has_value());
    }
}

TEST_CASE("of several tracebacks the last one counts") {
  const std::string text = std::string(kTraceback) +
                           "\nDuring handling of the above exception, another exception occurred:\n\n"
                           "Traceback (most recent call last):\n"
                           "  File \"a.py\", line 3, in f\n"
                           "    g()\n"
                           "KeyError: 'x'\n";
  REQUIRE(found_in(text) == cause(CauseClass::kException, "KeyError: 'x'", "a.py:3"));
}

TEST_CASE("PyTorch's prefix and a terminal's colours are no part of a traceback") {
  REQUIRE(found_in("[rank3]: Traceback (most recent call last):\n"
                   "[rank3]:   File \"a.py\", line 3, in <module>\n"
                   "[rank3]:     f()\n"
                   "[rank3]: RuntimeError: no\n") ==
          cause(CauseClass::kException, "RuntimeError: no", "a.py:3"));
  REQUIRE(found_in("Traceback (most recent call last):\n"
                   "  File \x1b[35m\"a.py\"\x1b[0m, line \x1b[35m3\x1b[0m, in \x1b[35m<module>\x1b[0m\n"
                   "\x1b[1;35mValueError\x1b[0m: \x1b[35mboom\x1b[0m\n") ==
          cause(CauseClass::kException, "ValueError: boom", "a.py:3"));
}

TEST_CASE("an exception group is known by its own line, and so is a class whose name is not ASCII") {
  const std::string group =
      "  + Exception Group Traceback (most recent call last):\n"
      "  |   File \"a.py\", line 3, in <module>\n"
      "  |     raise ExceptionGroup(\"eg\", [ValueError(\"inner\")])\n"
      "  | ExceptionGroup: eg (1 sub-exception)\n"
      "  +-+---------------- 1 ----------------\n"
      "    | ValueError: inner\n"
      "    +------------------------------------\n";
  REQUIRE(found_in(group) == cause(CauseClass::kException, "ExceptionGroup: eg (1 sub-exception)", "a.py:3"));
  REQUIRE(found_in("Traceback (most recent call last):\n  File \"a.py\", line 3, in b\n\xc3\x9c"
                   "Error: no\n") == cause(CauseClass::kException,
                                           "\xc3\x9c"
                                           "Error: no",
                                           "a.py:3"));
}

TEST_CASE("a syntax error has a place without a traceback") {
  REQUIRE(found_in("  File \"/job/a.py\", line 1\n    foo(\n       ^\nSyntaxError: '(' was never closed\n") ==
          cause(CauseClass::kException, "SyntaxError: '(' was never closed", "/job/a.py:1"));
  REQUIRE(found_in("/usr/bin/python3: No module named nosuch\n") ==
          cause(CauseClass::kException, "/usr/bin/python3: No module named nosuch"));
}

TEST_CASE("the words of an exception tell its class") {
  const auto kind = [](const std::string& line) {
    const auto found =
        found_in("Traceback (most recent call last):\n  File \"a\", line 1, in b\n" + line + "\n");
    REQUIRE(found);
    REQUIRE(found->text == line);
    return found->kind;
  };
  REQUIRE(kind("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.") ==
          CauseClass::kGpuMemory);
  REQUIRE(kind("torch.cuda.OutOfMemoryError: CUDA out of memory.") == CauseClass::kGpuMemory);
  REQUIRE(kind("RuntimeError: CUDA error: an illegal memory access was encountered") ==
          CauseClass::kGpuFault);
  REQUIRE(kind("RuntimeError: CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling") ==
          CauseClass::kGpuFault);
  REQUIRE(kind("RuntimeError: cuDNN error: CUDNN_STATUS_NOT_INITIALIZED") == CauseClass::kGpuUnavailable);
  REQUIRE(
      kind("RuntimeError: CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`") ==
      CauseClass::kGpuUnavailable);
  for (const char* none :
       {"RuntimeError: CUDA error: all CUDA-capable devices are busy or unavailable",
        "RuntimeError: CUDA error: no CUDA-capable device is detected",
        "RuntimeError: No CUDA GPUs are available", "what():  cudaErrorInsufficientDriver"})
    REQUIRE(kind(none) == CauseClass::kGpuUnavailable);
  REQUIRE(kind("torch.distributed.DistBackendError: NCCL error in: x.cpp:1, ncclSystemError: y") ==
          CauseClass::kNetwork);
  REQUIRE(kind("torch.distributed.DistBackendError: NCCL error in: x.cpp:1, ncclRemoteError: y") ==
          CauseClass::kPeerGone);
  REQUIRE(kind("RuntimeError: [pair.cc:598] Connection closed by peer [127.0.0.1]:12") ==
          CauseClass::kPeerGone);
  REQUIRE(kind("MemoryError") == CauseClass::kHostMemory);
  REQUIRE(kind("ImportError: libcudart.so.12: cannot open shared object file") == CauseClass::kException);
  REQUIRE(kind("KeyboardInterrupt") == CauseClass::kException);
}

TEST_CASE("an uncaught C++ exception comes with what it says") {
  REQUIRE(
      found_in("terminate called after throwing an instance of 'std::runtime_error'\n  what():  no disk\n") ==
      cause(CauseClass::kException, "std::runtime_error: no disk"));
  REQUIRE(found_in("terminate called after throwing an instance of 'c10::DistBackendError'\n"
                   "  what():  [PG ID 0 Rank 1] Watchdog caught collective operation timeout: x\n") ==
          cause(CauseClass::kNetwork,
                "c10::DistBackendError: [PG ID 0 Rank 1] Watchdog caught collective operation timeout: x"));
  REQUIRE(
      found_in("terminate called after throwing an instance of 'std::bad_alloc'\n  what():  std::bad_alloc\n")
          ->kind == CauseClass::kHostMemory);
  REQUIRE(found_in("terminate called after throwing an instance of 'int'\nother\n  what():  else\n") ==
          cause(CauseClass::kException, "int"));
  REQUIRE(found_in("terminate called without an active exception\n")->kind == CauseClass::kException);
}

TEST_CASE("assertions tell their place, and those of a kernel are the GPU's") {
  REQUIRE(found_in("prog: src/loss.cc:12: int f(int): Assertion `x > 0' failed.\n") ==
          cause(CauseClass::kAssertion, "prog: src/loss.cc:12: int f(int): Assertion `x > 0' failed.",
                "src/loss.cc:12"));
  REQUIRE(found_in("Indexing.cu:1093: f: block: [0,0,0], thread: [1,0,0] Assertion `i < n` failed.\n") ==
          cause(CauseClass::kGpuFault,
                "Indexing.cu:1093: f: block: [0,0,0], thread: [1,0,0] Assertion `i < n` failed.",
                "Indexing.cu:1093"));
}

TEST_CASE("crashes and findings of sanitizers are known by their words") {
  for (const char* line : {"Segmentation fault (core dumped)", "Fatal Python error: Segmentation fault",
                           "*** stack smashing detected ***: terminated", "free(): invalid pointer"})
    REQUIRE(found_in(std::string(line) + "\n") == cause(CauseClass::kCrash, line));
  REQUIRE(found_in("==77==ERROR: AddressSanitizer: heap-use-after-free on address 0x1\n")->kind ==
          CauseClass::kSanitizer);
  REQUIRE(found_in("a.cc:3:5: runtime error: signed integer overflow\n") ==
          cause(CauseClass::kSanitizer, "a.cc:3:5: runtime error: signed integer overflow", "a.cc:3"));
}

TEST_CASE("a warning gives way to an error, and an error to nothing but a later traceback of its kind") {
  REQUIRE(found_in("host:1:2 [0] NCCL WARN NET/IB : no device\n")->kind == CauseClass::kNetwork);
  REQUIRE(found_in("x: Connection refused, trying again\n" + std::string(kTraceback)) ==
          found_in(kTraceback));
  REQUIRE(found_in(std::string(kTraceback) + "terminate called without an active exception\n") ==
          found_in(kTraceback));
  REQUIRE(found_in("terminate called without an active exception\nSegmentation fault\n")->text ==
          "terminate called without an active exception");
}

TEST_CASE("a warning about a module that a program does without is no error") {
  REQUIRE_FALSE(found_in("t.py:3: UserWarning: Failed to initialize NumPy: No module named 'numpy'\n"));
}

TEST_CASE("ordinary output is no error") {
  for (const char* text : {"", "epoch 1 loss 0.5\n", "  File not found, using defaults\n", "0 errors\n",
                           "Traceback (most recent call last):\n", "warning: x\n"}) {
    INFO(text);
    REQUIRE_FALSE(found_in(text));
  }
}

TEST_CASE("what is kept is one printable line of bounded length") {
  const auto found =
      found_in("Traceback (most recent call last):\n  File \"a\", line 1, in b\nValueError: \x1b]0;x\x07" +
               std::string(1000, 'a') + "\n");
  REQUIRE(found);
  REQUIRE(found->text.size() == 300);
  for (const char c : found->text) REQUIRE(static_cast<unsigned char>(c) >= 0x20);
  // Cut between characters.
  REQUIRE(one_clean_line(std::string(299, 'a') + "\xc3\xa9") == std::string(299, 'a'));
  REQUIRE(one_clean_line("  \xc3\xa9\nsecond") == "\xc3\xa9");
  REQUIRE(one_clean_line(" \n").empty());
}

TEST_CASE("what names a cause also opens a rank for --view=rank0, except what programs recover from") {
  for (const ErrorWords& sign : kErrorSigns) {
    INFO(sign.text);
    const std::string line = "12:30:01 w3 | " + std::string(sign.text) + "...";
    REQUIRE(looks_like_error(line));
    REQUIRE(found_in(line)->kind == sign.kind);
  }
  for (const ErrorWords& one : kErrorWords) {
    INFO(one.text);
    const std::string line = "12:30:01 w3 | " + std::string(one.text) + "...";
    REQUIRE(found_in(line));
    const bool passing =
        found_in(line)->kind == CauseClass::kPeerGone || found_in(line)->kind == CauseClass::kNetwork;
    REQUIRE(looks_like_error(line) == (!passing || line.find("Watchdog caught") != std::string::npos));
  }
}

TEST_CASE("a line from which a rank is shown") {
  for (const char* line :
       {"Traceback (most recent call last):", "[rank3]: Traceback (most recent call last):",
        "ValueError: loss is nan", "\x1b[31mRuntimeError: x\x1b[0m", "ERROR: no data",
        "[2026-01-01][FATAL] gone", "panic: nil", "x.c:3:1: fatal error: y",
        "terminate called after throwing an instance of 'std::bad_alloc'",
        "n1:3:4 [0] init.cc:12 NCCL WARN Call failed",
        "train: loss.cc:12: void f(): Assertion `x > 0' failed."})
    REQUIRE(looks_like_error(line));
  for (const char* line : {"", "epoch 3 loss 0.25", "0 errors, 3 warnings", "Error rate 0.25",
                           "*** epoch 3 ***", "[W socket.cpp:663] Connection refused, trying again"})
    REQUIRE(!looks_like_error(line));
}
