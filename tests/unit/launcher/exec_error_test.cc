// SPDX-License-Identifier: Apache-2.0
#include <cerrno>
#include <fstream>
#include <string>

#include "launcher/process/spawn.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_directory.h"

using namespace muster;
using namespace muster::launcher;

TEST_CASE("where it is the interpreter that is not there, that is said") {
  const Error missing = exec_error("/nonexistent/program", ENOENT);
  REQUIRE(missing.code == ErrorCode::kNotFound);
  REQUIRE(missing.message == "execute /nonexistent/program: No such file or directory (ENOENT)");

  const test::TemporaryDirectory directory;
  const std::string path = directory.path() + "/program";
  std::ofstream(path) << "#!/no/such/python -u\nprint()\n";
  const Error interpreter = exec_error(path, ENOENT);
  REQUIRE(interpreter.code == ErrorCode::kNotFound);
  REQUIRE_THAT(interpreter.message, Catch::Contains("the interpreter that its first line names, does not"));
}

TEST_CASE("a file of a format that the kernel does not know says what may be wrong with it") {
  const Error unknown = exec_error("/bin/true", ENOEXEC);
  REQUIRE(unknown.code == ErrorCode::kUnsupported);
  REQUIRE_THAT(unknown.message, Catch::EndsWith("a script without a first line such as #!/bin/sh"));
}

TEST_CASE("what the kernel refuses for want of memory or processes is no fault of the program's") {
  REQUIRE(exec_error("/bin/true", ENOMEM).code == ErrorCode::kExhausted);
  REQUIRE(exec_error("/bin/true", EAGAIN).code == ErrorCode::kIo);
  REQUIRE(exec_error("/bin/true", E2BIG).code == ErrorCode::kUnsupported);
  REQUIRE(exec_error("/bin/true", EACCES).code == ErrorCode::kUnsupported);
}
