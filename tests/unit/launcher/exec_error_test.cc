// SPDX-License-Identifier: Apache-2.0
#include <cerrno>
#include <fstream>
#include <string>
#include <string_view>

#include "launcher/process/spawn.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_directory.h"

using namespace muster;
using namespace muster::launcher;

namespace {

struct Program {
  test::TemporaryDirectory directory;
  std::string path = directory.path() + "/program";

  explicit Program(std::string_view text) { std::ofstream(path, std::ios::binary) << text; }
};

Error judged(std::string_view text, int error_number) {
  const Program program(text);
  return exec_error(program.path, error_number);
}

}  // namespace

TEST_CASE("where it is the interpreter that is not there, that is said") {
  const Error missing = exec_error("/nonexistent/program", ENOENT);
  REQUIRE(missing.code == ErrorCode::kNotFound);
  REQUIRE(missing.message == "execute /nonexistent/program: No such file or directory (ENOENT)");

  const Error interpreter = judged("#!/no/such/python -u\nprint()\n", ENOENT);
  REQUIRE(interpreter.code == ErrorCode::kNotFound);
  REQUIRE_THAT(interpreter.message,
               Catch::EndsWith("the interpreter that its first line names does not: #!/no/such/python -u"));
  REQUIRE_THAT(judged("#!/bin/sh\r\necho\r\n", ENOENT).message, Catch::Contains("its lines end with CR LF"));
  REQUIRE_THAT(judged("\x7f"
                      "ELF...",
                      ENOENT)
                   .message,
               Catch::Contains("its loader does not"));
}

TEST_CASE("a file of a format that the kernel does not know says what may be wrong with it") {
  for (const std::string_view text : {"echo hi\n", "",
                                      "\x7f"
                                      "ELF"})
    REQUIRE(judged(text, ENOEXEC).code == ErrorCode::kUnsupported);
  REQUIRE_THAT(judged("echo hi\n", ENOEXEC).message,
               Catch::EndsWith("a script begins with a line such as #!/bin/sh"));
  REQUIRE_THAT(judged("", ENOEXEC).message, Catch::EndsWith("is it empty?"));
  REQUIRE_THAT(judged("\x7f"
                      "ELF",
                      ENOEXEC)
                   .message,
               Catch::EndsWith("for another architecture?"));
}

TEST_CASE("what the kernel refuses for want of memory or processes is no fault of the program's") {
  REQUIRE(exec_error("/bin/true", ENOMEM).code == ErrorCode::kExhausted);
  REQUIRE(exec_error("/bin/true", EAGAIN).code == ErrorCode::kIo);
  REQUIRE(exec_error("/bin/true", E2BIG).code == ErrorCode::kUnsupported);
  REQUIRE(exec_error("/bin/true", EACCES).code == ErrorCode::kUnsupported);
}
