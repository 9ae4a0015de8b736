// SPDX-License-Identifier: Apache-2.0
#include "worker_runtime/core/shared_library.h"

#include <dlfcn.h>

#include <fmt/format.h>

#include "rendezvous/base/env.h"
#include "rendezvous/base/fail.h"

namespace muster {

Result<SharedLibrary> SharedLibrary::open(const Request& request) {
  std::string tried;
  for (const std::string& candidate : request.candidates) {
    void* handle = ::dlopen(candidate.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (handle != nullptr) return SharedLibrary(handle, request.name, candidate);
    const char* cause = ::dlerror();
    if (!tried.empty()) tried += "; ";
    tried += cause != nullptr ? cause : candidate;
  }
  return fail(ErrorCode::kNotFound, "load {}: {}; {}", request.name, tried, request.advice);
}

Result<void*> SharedLibrary::find(const char* symbol) const {
  void* address = ::dlsym(handle_, symbol);
  if (address == nullptr)
    return fail(ErrorCode::kUnsupported, "load {}: {} has no {}; install a newer version of it", name_, path_,
                symbol);
  return address;
}

std::string version_text(std::size_t number) {
  return fmt::format("{}.{}.{}", number / 10000, number / 100 % 100, number % 100);
}

std::vector<std::string> cuda_candidates(const std::string& soname) {
  std::vector<std::string> candidates{soname};
  if (const auto home = current_value("CUDA_HOME")) candidates.push_back(*home + "/lib64/" + soname);
  candidates.push_back("/usr/local/cuda/lib64/" + soname);
  return candidates;
}

}  // namespace muster
