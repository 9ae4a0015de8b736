// SPDX-License-Identifier: Apache-2.0
#include "launcher/error_line.h"

#include <algorithm>
#include <array>

namespace muster::launcher {
namespace {

constexpr std::array<std::string_view, 8> kBeginnings = {
    "Traceback (most recent call last)",
    "terminate called",
    "Fatal Python error",
    "Segmentation fault",
    "python: can't open file",
    "fatal error:",
    "panic:",
    "*** ",
};
constexpr std::array<std::string_view, 10> kParts = {
    "Error: ", "ERROR: ",     "CUDA error",    "NCCL WARN",      "Assertion ",
    "[FATAL]", "Exception: ", "CUDNN_STATUS_", "CUBLAS_STATUS_", "out of memory",
};

}  // namespace

bool looks_like_error(std::string_view line) {
  return std::any_of(kBeginnings.begin(), kBeginnings.end(),
                     [&](std::string_view text) { return line.substr(0, text.size()) == text; }) ||
         std::any_of(kParts.begin(), kParts.end(),
                     [&](std::string_view text) { return line.find(text) != std::string_view::npos; });
}

}  // namespace muster::launcher
