// SPDX-License-Identifier: Apache-2.0
#include "worker_runtime/device/cuda/cuda_device.h"

#include <array>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <utility>

#include "worker_runtime/device/cuda/cuda_blas.h"
#include "worker_runtime/device/cuda/cuda_error.h"
#ifdef MUSTER_HAS_CUDNN
#include "worker_runtime/device/cuda/cuda_dnn.h"
#endif

namespace muster::cuda {
namespace {

/// What a library opened, or nullptr and a line about it, once per process.
template <class Library>
std::shared_ptr<const Library> opened(Result<std::unique_ptr<Library>> library, const char* name,
                                      const char* work, std::once_flag& told) {
  if (library) return *std::move(library);
  std::call_once(told, [&] {
    std::fprintf(stderr, "muster: %s is not used: %s; muster's own kernels compute %s, more slowly\n", name,
                 library.error().message.c_str(), work);
  });
  return nullptr;
}

/// What is done with a device's stream.
class OnStream {
 protected:
  OnStream(int device, cudaStream_t stream) : device_(device), stream_(stream) {}
  Result<void> check(cudaError_t result, std::string_view call) const {
    return muster::cuda::check(result, call, device_);
  }

  int device_;
  cudaStream_t stream_;
};

/// A stream beside the device's, and events for each slot.
class CudaCopyStream final : public CopyStream, OnStream {
 public:
  CudaCopyStream(int device, cudaStream_t stream) : OnStream(device, stream) {}
  ~CudaCopyStream() override {
    (void)cudaSetDevice(device_);
    if (beside_ != nullptr) (void)cudaStreamSynchronize(beside_);
    for (const auto& events : {copied_, released_})
      for (cudaEvent_t event : events)
        if (event != nullptr) (void)cudaEventDestroy(event);
    if (beside_ != nullptr) (void)cudaStreamDestroy(beside_);
  }

  Result<void> start() {
    MUSTER_OK(select(device_));
    MUSTER_OK(check(cudaStreamCreateWithFlags(&beside_, cudaStreamNonBlocking), "cudaStreamCreate"));
    for (auto* const events : {&copied_, &released_})
      for (cudaEvent_t& event : *events)
        MUSTER_OK(check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming | cudaEventBlockingSync),
                        "cudaEventCreate"));
    return {};
  }

  Result<void> copy(std::size_t slot, void* device, const void* host, std::size_t size_bytes) override {
    MUSTER_OK(select(device_));
    MUSTER_OK(check(cudaStreamWaitEvent(beside_, released_[slot], 0), "cudaStreamWaitEvent"));
    MUSTER_OK(check(cudaMemcpyAsync(device, host, size_bytes, cudaMemcpyHostToDevice, beside_),
                    "copy of a batch to the GPU"));
    MUSTER_OK(check(cudaEventRecord(copied_[slot], beside_), "cudaEventRecord"));
    return check(cudaStreamWaitEvent(stream_, copied_[slot], 0), "cudaStreamWaitEvent");
  }
  Result<void> release(std::size_t slot) override {
    return check(cudaEventRecord(released_[slot], stream_), "cudaEventRecord");
  }
  Result<void> wait(std::size_t slot) override {
    return check(cudaEventSynchronize(copied_[slot]), "cudaEventSynchronize");
  }

 private:
  cudaStream_t beside_ = nullptr;
  std::array<cudaEvent_t, kSlots> copied_{}, released_{};
};

/// Each slot is an instantiated graph. `noted`: where the kernels, whose calls return nothing, keep their
/// first error; one made while recording is the recording's and is taken from there, for the step can still
/// be called.
class CudaStepRecorder final : public StepRecorder, OnStream {
 public:
  CudaStepRecorder(int device, cudaStream_t stream, Result<void>& noted)
      : OnStream(device, stream), noted_(noted) {}
  ~CudaStepRecorder() override {
    for (std::size_t slot = 0; slot < graphs_.size(); ++slot) drop(slot);
    for (cudaEvent_t mark : marks_)
      if (mark != nullptr) (void)cudaEventDestroy(mark);
  }

  Result<void> record(std::size_t slot, const Step& step) override {
    if (!noted_) return noted_;  // of an earlier call: not the recording's to forget
    drop(slot);
    MUSTER_OK(select(device_));
    Result<void> result = capture(slot, step);
    if (!result) {
      drop(slot);
      (void)cudaGetLastError();
    }
    return result;
  }

  Result<void> replay(std::size_t slot) override {
    MUSTER_OK(select(device_));
    return check(cudaGraphLaunch(graphs_[slot], stream_), "cudaGraphLaunch");
  }

  Result<void> mark(std::size_t which) override {
    MUSTER_OK(select(device_));
    // The waiting thread sleeps: the communication thread needs the core.
    if (marks_[which] == nullptr)
      MUSTER_OK(
          check(cudaEventCreateWithFlags(&marks_[which], cudaEventDisableTiming | cudaEventBlockingSync),
                "cudaEventCreate"));
    return check(cudaEventRecord(marks_[which], stream_), "cudaEventRecord");
  }

  Result<void> wait(std::size_t which) override {
    return check(cudaEventSynchronize(marks_[which]), "cudaEventSynchronize");
  }

  void drop(std::size_t slot) override {
    // The driver keeps a graph that still runs until it has finished.
    if (graphs_[slot] != nullptr) (void)cudaGraphExecDestroy(graphs_[slot]);
    graphs_[slot] = nullptr;
  }

 private:
  Result<void> capture(std::size_t slot, const Step& step) {
    // Thread-local: what other threads do meanwhile (the comm thread asks for events) neither fails nor
    // disturbs.
    MUSTER_OK(
        check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture"));
    Result<void> stepped = step();
    cudaGraph_t graph = nullptr;
    // Always ended, also after an error: a stream left capturing takes no more work.
    const cudaError_t ended = cudaStreamEndCapture(stream_, &graph);
    // A kernel that cannot be captured makes the calls after it fail: its error says most.
    Result<void> result = std::exchange(noted_, Result<void>{});
    if (result) result = !stepped ? std::move(stepped) : check(ended, "cudaStreamEndCapture");
    // With the priorities of the streams that were captured: NCCL's is high (nccl_cuda_device.cc).
    if (result)
      result = check(cudaGraphInstantiate(&graphs_[slot], graph, cudaGraphInstantiateFlagUseNodePriority),
                     "cudaGraphInstantiate");
    if (graph != nullptr) (void)cudaGraphDestroy(graph);
    MUSTER_OK(std::move(result));
    // The first launch would do this; here it does not delay a step that is timed.
    return check(cudaGraphUpload(graphs_[slot], stream_), "cudaGraphUpload");
  }

  Result<void>& noted_;
  std::array<cudaGraphExec_t, kSlots> graphs_{};
  std::array<cudaEvent_t, 2> marks_{};
};

/// Events in the stream. How a GPU's clock stands to the host's is found by events put into the idle stream:
/// each was reached between two looks at the host's clock, and of several the closest two hold.
class CudaStreamTimer final : public StreamTimer, OnStream {
 public:
  CudaStreamTimer(int device, cudaStream_t stream) : OnStream(device, stream) {
    status_ = select(device_);
    if (status_)
      status_ =
          check(cudaStreamCreateWithFlags(&beside_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  }
  ~CudaStreamTimer() override {
    (void)cudaSetDevice(device_);
    for (cudaEvent_t event : events_)
      if (event != nullptr) (void)cudaEventDestroy(event);
    if (beside_ != nullptr) (void)cudaStreamDestroy(beside_);
  }

  std::optional<std::size_t> mark() override {
    return noted([this] { return put_mark(stream_); });
  }

  std::optional<std::size_t> mark_after(const std::function<Result<void>(void*)>& make_wait) override {
    return noted([&]() -> Result<std::optional<std::size_t>> {
      MUSTER_TRY(const bool captures, is_capturing());
      if (captures) return std::nullopt;
      MUSTER_OK(make_wait(beside_));
      return put_mark(beside_);
    });
  }

  void clear() override { marks_ = 0; }

  Result<Times> read() override {
    MUSTER_OK(status_);
    Times out;
    if (marks_ == 0) return out;
    constexpr int kRounds = 20;
    const std::size_t marks = marks_;
    const auto milliseconds_to = [&](std::size_t mark, float& value) {
      return check(cudaEventElapsedTime(&value, events_[0], events_[mark]), "cudaEventElapsedTime");
    };
    MUSTER_OK(select(device_));
    for (cudaStream_t stream : {stream_, beside_})
      MUSTER_OK(check(cudaStreamSynchronize(stream), "cudaStreamSynchronize"));
    std::chrono::steady_clock::time_point first;  // when the stream came to mark 0
    for (int round = 0; round < kRounds; ++round) {
      marks_ = marks;
      const auto before = std::chrono::steady_clock::now();
      MUSTER_OK(put_mark(stream_));
      MUSTER_OK(check(cudaEventSynchronize(events_[marks]), "cudaEventSynchronize"));
      const auto error = (std::chrono::steady_clock::now() - before) / 2;
      float since = 0;
      MUSTER_OK(milliseconds_to(marks, since));
      if (round > 0 && error >= out.error) continue;
      out.error = error;
      first = before + error - nanoseconds(since);
    }
    marks_ = marks;
    for (std::size_t mark = 0; mark < marks; ++mark) {
      float since = 0;
      MUSTER_OK(milliseconds_to(mark, since));
      out.marks.push_back(first + nanoseconds(since));
    }
    return out;
  }

 private:
  static std::chrono::nanoseconds nanoseconds(float milliseconds) {
    return std::chrono::nanoseconds(std::llround(1e6 * milliseconds));
  }

  template <class Put>
  std::optional<std::size_t> noted(const Put& put) {
    if (!status_) return std::nullopt;
    auto mark = put();
    if (!mark) status_ = fail(std::move(mark).error());
    return mark ? *mark : std::nullopt;
  }

  Result<bool> is_capturing() {
    MUSTER_OK(select(device_));
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    MUSTER_OK(check(cudaStreamIsCapturing(stream_, &status), "cudaStreamIsCapturing"));
    return status != cudaStreamCaptureStatusNone;
  }

  Result<std::optional<std::size_t>> put_mark(cudaStream_t stream) {
    MUSTER_TRY(const bool captures, is_capturing());
    if (captures) return std::nullopt;
    if (marks_ == events_.size()) {
      cudaEvent_t made = nullptr;
      MUSTER_OK(check(cudaEventCreate(&made), "cudaEventCreate"));
      events_.push_back(made);
    }
    MUSTER_OK(check(cudaEventRecord(events_[marks_], stream), "cudaEventRecord"));
    return marks_++;
  }

  cudaStream_t beside_ = nullptr;
  std::vector<cudaEvent_t> events_;  // of marks, and made ahead
  std::size_t marks_ = 0;
  Result<void> status_;
};

}  // namespace

Result<Compute> CudaDevice::make(int index, const ComputeOptions& options) {
  MUSTER_TRY(const int count, device_count());
  if (index < 0 || index >= count)
    return fail(ErrorCode::kNotFound, "GPU " + std::to_string(index) + ": there are " +
                                          std::to_string(count) +
                                          " GPUs here; check LOCAL_RANK and CUDA_VISIBLE_DEVICES");
  std::shared_ptr<CudaDevice> made(new CudaDevice(index, options));
  MUSTER_OK(made->start());
  return made;
}

Result<void> CudaDevice::start() {
  MUSTER_OK(select(index_));
  cudaDeviceProp properties{};
  MUSTER_OK(check(cudaGetDeviceProperties(&properties, index_), "cudaGetDeviceProperties", index_));
  name_ = std::string("cuda (") + properties.name + ")";
  std::size_t free = 0, total = 0;
  MUSTER_OK(check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo", index_));
  set_total_memory(total);
  // Not the legacy stream, whose implicit waiting would tie this rank to everything else in the process.
  return check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate", index_);
}

CudaDevice::~CudaDevice() {
  (void)cudaSetDevice(index_);
  if (stream_ != nullptr) (void)cudaStreamSynchronize(stream_);
  dnn_.reset();
  blas_.reset();
  for (void* block : allocations_) (void)cudaFree(block);
  if (stream_ != nullptr) (void)cudaStreamDestroy(stream_);
}

Result<void*> CudaDevice::allocate(std::size_t size_bytes) {
  MUSTER_OK(select(index_));
  const std::size_t bytes = size_bytes == 0 ? 256 : size_bytes;  // cudaMalloc aligns to 256 bytes at least
  MUSTER_OK(claim(bytes));
  void* block = nullptr;
  if (auto made =
          check(cudaMalloc(&block, bytes), "cudaMalloc of " + std::to_string(bytes) + " bytes", index_);
      !made) {
    unclaim(bytes);
    return fail(std::move(made).error());
  }
  allocations_.push_back(block);
  MUSTER_OK(check(cudaMemsetAsync(block, 0, bytes, stream_), "cudaMemset", index_));
  return block;
}

Result<std::shared_ptr<void>> CudaDevice::allocate_host(std::size_t size_bytes) {
  MUSTER_OK(select(index_));
  void* block = nullptr;
  MUSTER_OK(check(cudaHostAlloc(&block, size_bytes, cudaHostAllocPortable),
                  "cudaHostAlloc of " + std::to_string(size_bytes) + " bytes", index_));
  std::memset(block, 0, size_bytes);
  return std::shared_ptr<void>(block, [](void* memory) { (void)cudaFreeHost(memory); });
}

void CudaDevice::copy_to_device(void* device, const void* host, std::size_t size_bytes) {
  if (size_bytes == 0) return;
  note(cudaMemcpyAsync(device, host, size_bytes, cudaMemcpyHostToDevice, selected()), "copy to the GPU");
  note(cudaStreamSynchronize(stream_), "copy to the GPU");  // the caller may reuse its memory, pinned or not
}

void CudaDevice::copy_to_host(void* host, const void* device, std::size_t size_bytes) {
  if (size_bytes == 0) return;
  note(cudaMemcpyAsync(host, device, size_bytes, cudaMemcpyDeviceToHost, selected()), "copy from the GPU");
  note(cudaStreamSynchronize(stream_), "copy from the GPU");
}

void CudaDevice::copy_on_device(void* to, const void* from, std::size_t size_bytes) {
  if (size_bytes != 0)
    note(cudaMemcpyAsync(to, from, size_bytes, cudaMemcpyDeviceToDevice, selected()), "copy on the GPU");
}

void CudaDevice::zero(void* device, std::size_t size_bytes) {
  if (size_bytes != 0) note(cudaMemsetAsync(device, 0, size_bytes, selected()), "cudaMemset");
}

Result<void> CudaDevice::synchronize() {
  note(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
  return first_error_;
}

std::unique_ptr<StepRecorder> CudaDevice::make_step_recorder() {
  return std::make_unique<CudaStepRecorder>(index_, stream_, first_error_);
}

Result<std::unique_ptr<CopyStream>> CudaDevice::make_copy_stream() {
  auto made = std::make_unique<CudaCopyStream>(index_, stream_);
  MUSTER_OK(made->start());
  return made;
}

std::unique_ptr<StreamTimer> CudaDevice::make_stream_timer() {
  return std::make_unique<CudaStreamTimer>(index_, stream_);
}

cudaStream_t CudaDevice::selected() {
  note(select(index_));
  return stream_;
}

void CudaDevice::note(cudaError_t result, std::string_view call) {
  if (result != cudaSuccess && first_error_) first_error_ = fail(error_of(result, call, index_));
}

void CudaDevice::note(Result<void> result) {
  if (!result && first_error_) first_error_ = std::move(result);
}

const CudaBlas* CudaDevice::blas() {
  static std::once_flag told;
  (void)selected();  // what is planned is the current GPU's
  if (!std::exchange(tried_blas_, true))
    blas_ = opened(CudaBlas::open(), "cuBLASLt", "linear layers of large batches", told);
  return blas_.get();
}

PlanCache& CudaDevice::plan_cache() {
  if (!plan_cache_) plan_cache_.emplace(PlanCache::default_path());
  return *plan_cache_;
}

const CudaDnn* CudaDevice::dnn() {
  static std::once_flag told;
  (void)selected();
#ifdef MUSTER_HAS_CUDNN
  if (!std::exchange(tried_dnn_, true))
    dnn_ = opened(CudaDnn::open(stream_), "cuDNN", "convolutions of many channels", told);
#else
  const Error none{ErrorCode::kUnsupported,
                   "this was built without cuDNN; build where cudnn_graph.h is found"};
  if (!std::exchange(tried_dnn_, true))
    (void)opened<int>(fail(none), "cuDNN", "convolutions of many channels", told);
#endif
  return dnn_.get();
}

}  // namespace muster::cuda
