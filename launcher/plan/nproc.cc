// SPDX-License-Identifier: Apache-2.0
#include "launcher/plan/nproc.h"

#include <algorithm>
#include <charconv>

#include <fmt/format.h>

namespace muster::launcher {
Result<int> resolve_nproc(std::optional<std::string_view> text, const std::function<int()>& gpu_count,
                          const std::function<int()>& cpu_count) {
  if (!text) return std::max(1, gpu_count());
  if (*text == "cpu") return cpu_count();
  if (*text == "auto") {
    const int gpus = gpu_count();
    return gpus > 0 ? gpus : cpu_count();
  }
  if (*text == "gpu") {
    const int gpus = gpu_count();
    if (gpus > 0) return gpus;
    return fail(ErrorCode::kInvalidArgument,
                "--nproc-per-node=gpu: this node has no GPU that the NVIDIA driver or CUDA_VISIBLE_DEVICES "
                "shows; use "
                "auto, cpu or a number");
  }
  int workers = 0;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), workers);
  if (error != std::errc{} || end != text->data() + text->size() || workers < 1 || workers > 65536)
    return fail(
        ErrorCode::kInvalidArgument,
        fmt::format("--nproc-per-node={} is neither a number from 1 to 65536 nor auto, gpu or cpu", *text));
  return workers;
}

}  // namespace muster::launcher
