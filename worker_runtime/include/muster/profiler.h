// SPDX-License-Identifier: Apache-2.0
// Profiler: where the time of a step goes, on all ranks, as one timeline for chrome://tracing or
// ui.perfetto.dev: data, forward and backward operation by operation, each bucket's reduction, optimizer. The
// ranks' clocks are joined through the group to within the time of one small collective (written into the
// file). Without a Profiler, and outside its window, a step costs what it costs without. Each rank makes its
// own, used by the model's thread; every rank calls step() equally often.
// On a GPU each range is there twice: on the host, which launches kernels and goes on, and in the row "GPU",
// by CUDA events around what it launched. There "wait for all_reduce" is the communication that backward does
// not hide; each bucket on NCCL's stream is in the row "communication". The events cost about a microsecond
// each, and the steps are NVTX ranges, too, for single kernels in Nsight Systems (nsys profile muster ...). A
// step that is replayed as a CUDA graph is one range: make the trainer with TrainerOptions{.capture = false}
// to see its parts. Source: torch.profiler, the Trace Event Format.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include <muster/compute.h>
#include <muster/process_group.h>
#include <muster/result.h>

namespace muster {

/// torch.profiler.schedule's, once: after `wait` and `warmup` steps, `active` steps are recorded.
struct ProfilerSchedule {
  int wait = 0;
  int warmup = 1;
  int active = 3;
};

struct ProfilerOptions {
  ProfilerSchedule schedule;
  std::string path = "trace.json";  ///< written by rank 0, whole or not at all
};

class TraceRange;

class Profiler {
 public:
  /// `group` outlives the profiler. kInvalidArgument: a negative number of steps, or none active.
  [[nodiscard]] static Result<std::unique_ptr<Profiler>> create(const Compute& compute, ProcessGroup& group,
                                                                const ProfilerOptions& options = {});
  virtual ~Profiler() = default;
  Profiler& operator=(Profiler&&) = delete;  // nor copied

  /// A step has ended. After the last active one this is a collective, in which rank 0 writes the file: kIo
  /// on rank 0 if it cannot, the group's error on any. Afterwards it does nothing.
  [[nodiscard]] virtual Result<void> step() = 0;
  /// The file is written, or could not be.
  [[nodiscard]] virtual bool is_done() const = 0;
};

/// torch.profiler.record_function: a range of the program's own in the timeline, until the end of the scope;
/// for example "data". `name` lives as long. Nothing where no profiler records.
class RecordFunction {
 public:
  RecordFunction(const Compute& compute, std::string_view name);
  ~RecordFunction();
  RecordFunction& operator=(RecordFunction&&) = delete;  // nor copied

 private:
  std::unique_ptr<TraceRange> range_;
};

}  // namespace muster
