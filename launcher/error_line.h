// SPDX-License-Identifier: Apache-2.0
// Whether a line of a program's output begins an error report: Python's traceback, a C++ abort, CUDA, NCCL, a
// sanitizer, a failed assertion. Pure; no regular expressions: 100 MB/s of lines pass here.
#pragma once

#include <string_view>

namespace muster::launcher {

[[nodiscard]] bool looks_like_error(std::string_view line);

}  // namespace muster::launcher
