// SPDX-License-Identifier: Apache-2.0
// exec_error: why a program could not be executed, from execve's number and the file's first line, with what
// to try. The kernel says "No such file or directory" also where the file is there and its interpreter is
// not. Reads the file's beginning; called by the agent and --exec after a failed execve. kNotFound (exit 127,
// for an interpreter too, as in shells), kUnsupported (126), else errno_error's code: the system refused it.
#pragma once

#include <string>

#include <muster/result.h>

namespace muster::launcher {

[[nodiscard]] Error exec_error(const std::string& path, int error_number);

}  // namespace muster::launcher
