// SPDX-License-Identifier: Apache-2.0
// ErrorWatch: recognises the first error in what a worker writes to stderr: the last line of a Python
// traceback with its place, an uncaught C++ exception with its what(), assertions, crashes, sanitizers, and
// the words of CUDA, NCCL, gloo and allocators. One per worker; keeps one finding and an unfinished line.
// Pure. A line that only warns (NCCL WARN, a refused connection) gives way to an error that comes later; of
// several Python tracebacks the last one counts, which ended the process. 100 MB cost 0.2 to 0.5 s, and 2 to
// 3 s where each line is coloured or nearly has one of the words, on a core that others use too.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "launcher/job/cause.h"
#include "launcher/text/line_splitter.h"

namespace muster::launcher {

/// Words by which an error is known in a program's output: Python's, C++'s, CUDA's, NCCL's, gloo's,
/// allocators' and sanitizers'. The one list of them: ErrorWatch looks for the cause of a failure with it,
/// and --view=rank0 for the line from which a rank is shown. No regular expressions: 100 MB/s of lines pass
/// here.
struct ErrorWords {
  std::string_view text;
  CauseClass kind;
};

/// The first that occurs decides: what is special comes before what is general.
inline constexpr std::array kErrorWords = {
    ErrorWords{"CUDA out of memory", CauseClass::kGpuMemory},
    ErrorWords{"OutOfMemoryError", CauseClass::kGpuMemory},
    ErrorWords{"CUDA_ERROR_OUT_OF_MEMORY", CauseClass::kGpuMemory},
    ErrorWords{"cudaErrorMemoryAllocation", CauseClass::kGpuMemory},
    ErrorWords{"CUDA error: out of memory", CauseClass::kGpuMemory},
    ErrorWords{"_STATUS_ALLOC_FAILED", CauseClass::kGpuMemory},
    ErrorWords{"HIP out of memory", CauseClass::kGpuMemory},
    ErrorWords{"_STATUS_NOT_INITIALIZED", CauseClass::kGpuUnavailable},
    ErrorWords{"busy or unavailable", CauseClass::kGpuUnavailable},
    ErrorWords{"cudaErrorDevicesUnavailable", CauseClass::kGpuUnavailable},
    ErrorWords{"CUDA_ERROR_DEVICE_UNAVAILABLE", CauseClass::kGpuUnavailable},
    ErrorWords{"cudaErrorNoDevice", CauseClass::kGpuUnavailable},
    ErrorWords{"cudaErrorInsufficientDriver", CauseClass::kGpuUnavailable},
    ErrorWords{"CUDA_ERROR_NO_DEVICE", CauseClass::kGpuUnavailable},
    ErrorWords{"no CUDA-capable device", CauseClass::kGpuUnavailable},
    ErrorWords{"No CUDA GPUs are available", CauseClass::kGpuUnavailable},
    ErrorWords{"CUDA error", CauseClass::kGpuFault},
    ErrorWords{"CUDA_ERROR_", CauseClass::kGpuFault},
    ErrorWords{"cudaError", CauseClass::kGpuFault},
    ErrorWords{"CUBLAS_STATUS_", CauseClass::kGpuFault},
    ErrorWords{"CUDNN_STATUS_", CauseClass::kGpuFault},
    ErrorWords{"HIP error", CauseClass::kGpuFault},
    ErrorWords{"ncclUnhandledCudaError", CauseClass::kGpuFault},
    ErrorWords{"illegal memory access", CauseClass::kGpuFault},
    ErrorWords{"device-side assert", CauseClass::kGpuFault},
    ErrorWords{"unspecified launch failure", CauseClass::kGpuFault},
    ErrorWords{"uncorrectable ECC", CauseClass::kGpuFault},
    ErrorWords{"ncclRemoteError", CauseClass::kPeerGone},
    ErrorWords{"remote process exited", CauseClass::kPeerGone},
    ErrorWords{"Connection closed by peer", CauseClass::kPeerGone},
    ErrorWords{"Connection reset by peer", CauseClass::kPeerGone},
    ErrorWords{"closed the connection", CauseClass::kPeerGone},
    ErrorWords{"died; see its own output", CauseClass::kPeerGone},
    ErrorWords{"Broken pipe", CauseClass::kPeerGone},
    ErrorWords{"Watchdog caught collective", CauseClass::kNetwork},
    ErrorWords{"ncclSystemError", CauseClass::kNetwork},
    ErrorWords{"ncclInternalError", CauseClass::kNetwork},
    ErrorWords{"NCCL error", CauseClass::kNetwork},
    ErrorWords{"NCCL communicator", CauseClass::kNetwork},
    ErrorWords{"DistNetworkError", CauseClass::kNetwork},
    ErrorWords{"DistStoreError", CauseClass::kNetwork},
    ErrorWords{"DistBackendError", CauseClass::kNetwork},
    ErrorWords{"Connection refused", CauseClass::kNetwork},
    ErrorWords{"Connection timed out", CauseClass::kNetwork},
    ErrorWords{"gloo::", CauseClass::kNetwork},
    ErrorWords{"std::bad_alloc", CauseClass::kHostMemory},
    ErrorWords{"MemoryError", CauseClass::kHostMemory},
    ErrorWords{"Cannot allocate memory", CauseClass::kHostMemory},
    ErrorWords{"can't allocate memory", CauseClass::kHostMemory},
};

/// Lines that say by themselves that the process is ending.
inline constexpr std::array kErrorSigns = {
    ErrorWords{"==ERROR: ", CauseClass::kSanitizer},
    ErrorWords{"WARNING: ThreadSanitizer", CauseClass::kSanitizer},
    ErrorWords{": runtime error: ", CauseClass::kSanitizer},
    ErrorWords{"Segmentation fault", CauseClass::kCrash},
    ErrorWords{"Fatal Python error: ", CauseClass::kCrash},
    ErrorWords{"Bus error", CauseClass::kCrash},
    ErrorWords{"Illegal instruction", CauseClass::kCrash},
    ErrorWords{"Floating point exception", CauseClass::kCrash},
    ErrorWords{"stack smashing detected", CauseClass::kCrash},
    ErrorWords{"double free or corruption", CauseClass::kCrash},
    ErrorWords{"free(): invalid", CauseClass::kCrash},
    ErrorWords{"malloc(): ", CauseClass::kCrash},
    ErrorWords{"corrupted size vs. prev_size", CauseClass::kCrash},
    ErrorWords{"Check failed: ", CauseClass::kAssertion},
    ErrorWords{"error while loading shared libraries: ", CauseClass::kException},
    ErrorWords{": No module named ", CauseClass::kException},
    ErrorWords{": can't open file ", CauseClass::kException},
};

namespace words {
inline constexpr std::string_view kTraceback = "Traceback (most recent call last)";
inline constexpr std::string_view kFrame = "  File \"";
inline constexpr std::string_view kThrown = "terminate called after throwing an instance of '";
inline constexpr std::string_view kTerminate = "terminate called ";
inline constexpr std::string_view kTerminating = "libc++abi: terminating";
inline constexpr std::string_view kAssertion = "Assertion `";
inline constexpr std::string_view kWatchdog = "Watchdog caught collective";
inline constexpr std::string_view kNcclWarning = "NCCL WARN";
}  // namespace words

/// What kind of error the words speak of; `otherwise` where they say nothing of it.
[[nodiscard]] CauseClass class_of_words(std::string_view text, CauseClass otherwise);

/// Whether a line of output begins the report of an error, of whatever kind. A connection that was refused or
/// closed does not: programs say so, try again and go on.
[[nodiscard]] bool looks_like_error(std::string_view line);

class ErrorWatch {
 public:
  void feed(std::string_view bytes);
  /// The stream has ended, perhaps within a line.
  void finish();

  [[nodiscard]] const std::optional<Cause>& found() const { return found_; }

 private:
  enum class Weight { kNone, kWarning, kError, kTraceback };

  void line(std::string_view raw);
  bool python(std::string_view text);
  bool cpp(std::string_view text);
  void plain(std::string_view text);
  void keep(Weight weight, Cause cause);

  static constexpr std::size_t kMaxLineBytes = 4096;

  LineSplitter splitter_{kMaxLineBytes};
  std::optional<Cause> found_;
  Weight weight_ = Weight::kNone;
  bool in_traceback_ = false;
  std::string where_;             // of the innermost frame so far
  bool what_may_follow_ = false;  // "terminate called" was the line before
};

}  // namespace muster::launcher
