// SPDX-License-Identifier: Apache-2.0
// GPU software: which driver, CUDA runtime, NCCL and cuDNN the workers of this node get, and whether they fit
// each other. Reading and judging are apart. Judging is pure. Reading may block, and it calls functions of
// libraries that may be broken: it belongs into preflight's helper process. No interpreter is started: pip
// packages tell their version by their name, PyTorch by torch/version.py, others are asked. What cannot be
// read is unknown, never an error. Sources: ld.so(8), Python's module site, CUDA Compatibility guide.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "rendezvous/base/env.h"

namespace muster::launcher {

struct GpuLibrary {
  std::string path;     // that is loaded; empty: not found
  std::string version;  // "2.30.7"; empty: unknown
  int cuda = 0;         // major version of CUDA that it is (the runtime) or was built for; 0: unknown
};

struct GpuSoftware {
  std::string driver;   // "580.65.06"; empty: unknown
  int driver_cuda = 0;  // the newest CUDA that it runs, as CUDA writes it: 13000 for 13.0; 0: unknown
  GpuLibrary runtime, nccl, cudnn;
  std::string torch, torch_cuda;  // "2.9.0+cu130" and "13.0"; empty: none
};

/// One line, what was not found included.
[[nodiscard]] std::string software_text(const GpuSoftware& software);
/// A line each: what does not fit, and what to do.
[[nodiscard]] std::vector<std::string> judge_software(const GpuSoftware& software);

/// All but the driver, as the loader of a worker that executes `program` finds it: with a Python program in
/// its packages, since PyTorch's wheels have an RPATH to them, or in its prefix, as conda has it; else as
/// this process' own loader does, LD_LIBRARY_PATH included. The RPATH of another program is not known.
void find_libraries(const std::string& program, const Environment& environment, GpuSoftware& out);

/// "13.0" of torch/version.py for "cuda"; empty: None, or not there.
[[nodiscard]] std::string python_text(std::string_view source, std::string_view variable);

}  // namespace muster::launcher
