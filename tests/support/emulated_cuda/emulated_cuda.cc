// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include <boost/context/fiber.hpp>
#include <boost/context/pooled_fixedsize_stack.hpp>

#include "tests/support/emulated_cuda/cuda_runtime.h"
#include "tests/support/host_device.h"

using muster::testing::HostDevice;
using muster::testing::HostGraph;
using muster::testing::HostStream;

thread_local uint3 threadIdx, blockIdx;
thread_local dim3 blockDim, gridDim;

namespace emulated_cuda {
namespace {

namespace context = boost::context;

constexpr unsigned kLanes = 32;

/// The threads of one block. A fiber runs threads to their ends, one after another, until one of them has to
/// wait; the rest is then another fiber's.
class Block {
 public:
  Block(unsigned threads, bool backwards, const std::function<void()>& thread)
      : thread_(thread), backwards_(backwards), threads_(threads) {}

  void run() {
    const auto runner = [this](context::fiber&& scheduler) {
      scheduler_ = std::move(scheduler);
      while (begun_ < threads_.size()) {
        start(backwards_ ? threads_.size() - 1 - begun_ : begun_);
        ++begun_;
        thread_();
        threads_[current_].state = State::kDone;
      }
      return std::move(scheduler_);
    };
    while (begun_ < threads_.size()) {
      context::fiber fiber(std::allocator_arg, stacks(), runner);
      resume(std::move(fiber));
    }
    while (release()) {
      for (std::size_t i = 0; i < threads_.size(); ++i) {
        const std::size_t at = backwards_ ? threads_.size() - 1 - i : i;
        if (threads_[at].state != State::kReleased) continue;
        start(at);
        resume(std::move(threads_[at].fiber));
      }
    }
  }

  void wait_for_block() { wait(State::kAtBarrier); }

  std::uint64_t exchange(unsigned mask, std::uint64_t value, unsigned from) {
    if (mask != 0xffffffffU) die("a shuffle that leaves lanes out is not emulated");
    const std::size_t mine = current_, warp = mine / kLanes * kLanes;
    const unsigned turn = threads_[mine].turn++ % 2;  // the words of the last exchange may not be read yet
    threads_[mine].word[turn] = value;
    wait(State::kAtShuffle);
    if (warp + from >= threads_.size()) die("a shuffle from a lane that is not there");
    return threads_[warp + from].word[turn];
  }

 private:
  enum class State { kReady, kReleased, kAtBarrier, kAtShuffle, kDone };
  struct Thread {
    State state = State::kReady;
    context::fiber fiber;
    unsigned turn = 0;
    std::array<std::uint64_t, 2> word{};
  };

  static context::pooled_fixedsize_stack& stacks() {
    // No multiple of a page: the tops of a warp's stacks would share a few lines of the cache.
    static auto& made = *new context::pooled_fixedsize_stack((32 << 10) + 320);
    return made;
  }

  void start(std::size_t thread) {
    current_ = thread;
    threads_[thread].state = State::kReady;
    threadIdx = {static_cast<unsigned>(thread), 0, 0};
  }

  void resume(context::fiber fiber) {
    fiber = std::move(fiber).resume();
    if (fiber) threads_[current_].fiber = std::move(fiber);
  }

  void wait(State state) {
    threads_[current_].state = state;
    scheduler_ = std::move(scheduler_).resume();
  }

  /// Lets go on what has met; false when all have ended.
  bool release() {
    bool any = false, all_done = true, all_at_barrier = true;
    for (std::size_t warp = 0; warp < threads_.size(); warp += kLanes) {
      const auto begin = threads_.begin() + static_cast<std::ptrdiff_t>(warp);
      const auto end = warp + kLanes < threads_.size() ? begin + kLanes : threads_.end();
      const auto count = [&](State state) {
        return std::count_if(begin, end, [&](const Thread& t) { return t.state == state; });
      };
      const auto done = count(State::kDone), at_shuffle = count(State::kAtShuffle);
      all_done = all_done && done == end - begin;
      all_at_barrier = all_at_barrier && done + count(State::kAtBarrier) == end - begin;
      if (at_shuffle == 0) continue;
      if (done != 0) die("lanes have ended that a shuffle of their warp names");
      if (at_shuffle != end - begin) continue;
      for (auto each = begin; each != end; ++each) each->state = State::kReleased;
      any = true;
    }
    if (all_done) return false;
    if (all_at_barrier) {
      for (Thread& each : threads_)
        if (each.state == State::kAtBarrier) each.state = State::kReleased;
      any = true;
    }
    if (!any) die("threads of a block wait for each other: some at __syncthreads(), others at a shuffle");
    return true;
  }

  [[noreturn]] static void die(const char* what) {
    std::fprintf(stderr, "emulated CUDA: block (%u, %u), thread %u: %s\n", blockIdx.x, blockIdx.y,
                 threadIdx.x, what);
    std::abort();
  }

  const std::function<void()>& thread_;
  bool backwards_;
  std::vector<Thread> threads_;
  std::size_t begun_ = 0, current_ = 0;
  context::fiber scheduler_;
};

thread_local Block* running = nullptr;

}  // namespace

void wait_for_block() {
  running->wait_for_block();
}
std::uint64_t exchange(unsigned mask, std::uint64_t value, unsigned from) {
  return running->exchange(mask, value, from);
}

namespace {

HostDevice& device() {
  static auto& made = *new HostDevice;
  return made;
}

struct State {
  std::mutex mutex;
  std::map<HostStream*, int> streams;  // and their devices
  std::map<void*, std::size_t> memory;
  std::size_t used = 0;
  HostStream* captured = nullptr;  // the stream whose capture has begun
  bool is_invalid = false;         // what it has met cannot be captured
  std::unique_ptr<HostGraph> graph;
  std::mutex kernels;  // __shared__ memory is there once
  unsigned launches = 0;
};
State& state() {
  static auto& made = *new State;
  return made;
}

thread_local cudaError_t last_error = cudaSuccess;
thread_local int selected = 0;

cudaError_t returned(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}
cudaError_t returned(const muster::Result<void>& done) {
  return returned(done ? cudaSuccess : cudaErrorLaunchFailure);
}

std::size_t number_from_environment(const char* name, std::size_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}
int devices() {
  return static_cast<int>(number_from_environment("MUSTER_EMULATED_GPUS", 2));
}
std::size_t total_memory() {
  return number_from_environment("MUSTER_EMULATED_GPU_MEMORY", std::size_t{4} << 30);
}

HostStream* of(cudaStream_t stream) {
  return reinterpret_cast<HostStream*>(stream);
}

/// Whether this call, which waits for the device, may be made now; it spoils a capture of the stream.
bool may_wait(HostStream* stream) {
  const std::lock_guard lock(state().mutex);
  if (state().captured == nullptr || (stream != nullptr && !stream->is_capturing())) return true;
  state().is_invalid = true;
  return false;
}

}  // namespace

cudaError_t launch(const cudaLaunchConfig_t& config, std::function<void()> thread) {
  const dim3 grid = config.gridDim, block = config.blockDim;
  if (grid.x == 0 || grid.y == 0 || grid.y > 65535 || grid.z == 0 || grid.z > 65535 || block.x == 0 ||
      block.x > 1024 || block.y != 1 || block.z != 1)
    return returned(cudaErrorInvalidConfiguration);
  {
    const std::lock_guard lock(state().mutex);
    if (state().streams.at(of(config.stream)) != selected) return returned(cudaErrorInvalidResourceHandle);
  }
  of(config.stream)->enqueue([grid, block, thread = std::move(thread)] {
    const std::lock_guard lock(state().kernels);
    const bool backwards = ++state().launches % 2 == 0;
    blockDim = block;
    gridDim = grid;
    for (unsigned z = 0; z < grid.z; ++z)
      for (unsigned y = 0; y < grid.y; ++y)
        for (unsigned x = 0; x < grid.x; ++x) {
          blockIdx = {x, y, z};
          Block one(block.x, backwards, thread);
          running = &one;
          one.run();
        }
    running = nullptr;
  });
  return cudaSuccess;
}

}  // namespace emulated_cuda

using namespace emulated_cuda;

cudaError_t cudaGetLastError() {
  return std::exchange(last_error, cudaSuccess);
}
const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaErrorMemoryAllocation:
      return "out of memory";
    case cudaErrorInvalidDevice:
      return "invalid device ordinal";
    case cudaErrorInvalidConfiguration:
      return "invalid configuration argument";
    default:
      return "an error of the emulated CUDA";
  }
}
const char* cudaGetErrorName(cudaError_t error) {
  return error == cudaErrorMemoryAllocation ? "cudaErrorMemoryAllocation" : "cudaError";
}
cudaError_t cudaGetDeviceCount(int* count) {
  *count = devices();
  return returned(*count == 0 ? cudaErrorNoDevice : cudaSuccess);
}
cudaError_t cudaGetDevice(int* device) {
  *device = selected;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= devices()) return returned(cudaErrorInvalidDevice);
  selected = device;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  if (device < 0 || device >= devices()) return returned(cudaErrorInvalidDevice);
  *properties = {"emulated", total_memory(), 9, 0, 2};
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr /*attribute*/, int /*device*/) {
  *value = 9;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() {
  if (!may_wait(nullptr)) return returned(cudaErrorStreamCaptureUnsupported);
  std::map<HostStream*, int> streams;
  {
    const std::lock_guard lock(state().mutex);
    streams = state().streams;
  }
  for (const auto& [stream, device] : streams) stream->synchronize();
  return cudaSuccess;
}

cudaError_t cudaMalloc(void** memory, std::size_t size_bytes) {
  const std::lock_guard lock(state().mutex);
  if (size_bytes > total_memory() - std::min(total_memory(), state().used))
    return returned(cudaErrorMemoryAllocation);
  // Exactly as large as was asked for: the address sanitizer then sees what reads or writes beyond.
  void* made = nullptr;
  if (::posix_memalign(&made, 256, size_bytes) != 0) return returned(cudaErrorMemoryAllocation);
  std::memset(made, 0xa5, size_bytes);
  state().memory[made] = size_bytes;
  state().used += size_bytes;
  *memory = made;
  return cudaSuccess;
}
cudaError_t cudaFree(void* memory) {
  if (memory == nullptr) return cudaSuccess;
  if (const cudaError_t waited = cudaDeviceSynchronize(); waited != cudaSuccess) return waited;
  const std::lock_guard lock(state().mutex);
  const auto found = state().memory.find(memory);
  if (found == state().memory.end()) return returned(cudaErrorInvalidValue);
  state().used -= found->second;
  state().memory.erase(found);
  std::free(memory);
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(std::size_t* free_bytes, std::size_t* total_bytes) {
  const std::lock_guard lock(state().mutex);
  *total_bytes = total_memory();
  *free_bytes = total_memory() - std::min(total_memory(), state().used);
  return cudaSuccess;
}
cudaError_t cudaHostAlloc(void** memory, std::size_t size_bytes, unsigned /*flags*/) {
  *memory = std::malloc(size_bytes);
  return cudaSuccess;
}
cudaError_t cudaFreeHost(void* memory) {
  std::free(memory);
  return cudaSuccess;
}
cudaError_t cudaMemset(void* memory, int value, std::size_t size_bytes) {
  std::memset(memory, value, size_bytes);
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* memory, int value, std::size_t size_bytes, cudaStream_t stream) {
  of(stream)->enqueue([=] { std::memset(memory, value, size_bytes); });
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t size_bytes, cudaMemcpyKind /*kind*/,
                            cudaStream_t stream) {
  of(stream)->enqueue([=] { std::memcpy(to, from, size_bytes); });
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned /*flags*/) {
  auto* const made = static_cast<HostStream*>(*device().create_stream());
  const std::lock_guard lock(state().mutex);
  state().streams[made] = selected;
  *stream = reinterpret_cast<cudaStream_t>(made);
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int /*priority*/) {
  return cudaStreamCreateWithFlags(stream, flags);
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  {
    const std::lock_guard lock(state().mutex);
    state().streams.erase(of(stream));
  }
  device().destroy_stream(of(stream));
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  if (stream == nullptr) return cudaSuccess;  // nothing is put on the legacy stream
  if (!may_wait(of(stream))) return returned(cudaErrorStreamCaptureUnsupported);
  of(stream)->synchronize();
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned /*flags*/) {
  return returned(device().make_wait(of(stream), event));
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  *status = of(stream)->is_capturing() ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode /*mode*/) {
  const std::lock_guard lock(state().mutex);
  if (state().captured != nullptr) return returned(cudaErrorStreamCaptureUnsupported);
  state().captured = of(stream);
  state().is_invalid = false;
  state().graph = std::make_unique<HostGraph>();
  device().begin_capture(*of(stream), *state().graph);
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  const std::lock_guard lock(state().mutex);
  *graph = nullptr;
  if (state().captured != of(stream)) return returned(cudaErrorInvalidValue);
  device().end_capture();
  state().captured = nullptr;
  auto captured = std::move(state().graph);
  if (state().is_invalid) return returned(cudaErrorStreamCaptureInvalidated);
  *graph = reinterpret_cast<cudaGraph_t>(captured.release());
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* made, cudaGraph_t graph, unsigned long long /*flags*/) {
  *made = reinterpret_cast<cudaGraphExec_t>(new HostGraph(*reinterpret_cast<HostGraph*>(graph)));
  return cudaSuccess;
}
cudaError_t cudaGraphUpload(cudaGraphExec_t /*graph*/, cudaStream_t /*stream*/) {
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream) {
  reinterpret_cast<HostGraph*>(graph)->launch(*of(stream));
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete reinterpret_cast<HostGraph*>(graph);
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) {
  delete reinterpret_cast<HostGraph*>(graph);
  return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned /*flags*/) {
  *event = static_cast<cudaEvent_t>(*device().create_event());
  return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t* event) {
  return cudaEventCreateWithFlags(event, 0);
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t from, cudaEvent_t to) {
  const auto elapsed = device().elapsed(from, to);
  if (!elapsed)
    return returned(elapsed.error().code == muster::ErrorCode::kTimeout ? cudaErrorNotReady
                                                                        : cudaErrorInvalidValue);
  *milliseconds = std::chrono::duration<float, std::milli>(*elapsed).count();
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  device().destroy_event(event);
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return returned(device().record(event, of(stream)));
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  const auto done = device().is_done(event);
  if (!done) return returned(cudaErrorStreamCaptureUnsupported);
  return returned(*done ? cudaSuccess : cudaErrorNotReady);
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  return returned(device().wait(event) ? cudaSuccess : cudaErrorStreamCaptureUnsupported);
}
