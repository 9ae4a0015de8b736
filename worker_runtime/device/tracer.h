// SPDX-License-Identifier: Apache-2.0
// Tracer: what one rank did when, while a Profiler records (muster/profiler.h, which owns it). Reached by
// Device::tracer(), which is nullptr else: then a range costs a load and a comparison. The model's thread's.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "worker_runtime/device/device.h"

namespace muster {

struct Tracer {
  using Time = std::chrono::steady_clock::time_point;
  struct Event {
    std::string name;
    std::string_view category;  // a literal: "data", "forward", "backward", "communication", "optimizer"
    Time begin, end;
    bool beside = false;  // on the group's thread; with a timer on the group's stream, from first to last
    std::optional<std::size_t> first = {}, last = {};  // marks of the timer, around what it enqueued
  };
  std::vector<Event> events;           // in the order of their ends
  std::unique_ptr<StreamTimer> timer;  // nullptr: work is done when its range ends

  std::optional<std::size_t> mark() { return timer == nullptr ? std::nullopt : timer->mark(); }
};

/// An event from here to the end of the scope, and an NVTX range on a GPU. `name` lives as long.
class TraceRange {
 public:
  TraceRange(const Device& device, std::string_view name, std::string_view category)
      : tracer_(device.tracer()) {
    if (tracer_ != nullptr) start(name, category);
  }
  ~TraceRange() {
    if (tracer_ != nullptr) finish();
  }
  TraceRange& operator=(TraceRange&&) = delete;  // nor copied

 private:
  void start(std::string_view name, std::string_view category);
  void finish();

  Tracer* const tracer_;
  std::string_view name_, category_;
  Tracer::Time begin_;
  std::optional<std::size_t> first_;
};

}  // namespace muster
