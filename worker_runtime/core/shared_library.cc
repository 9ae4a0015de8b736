// SPDX-License-Identifier: Apache-2.0
#include "worker_runtime/core/shared_library.h"

#include <cstdlib>
#include <dlfcn.h>

namespace muster {

SharedLibrary::SharedLibrary(void* handle, std::string name, std::string path)
    : handle_(handle), name_(std::move(name)), path_(std::move(path)) {}

Result<SharedLibrary> SharedLibrary::open(const Request& request) {
  std::string tried;
  for (const std::string& candidate : request.candidates) {
    void* handle = ::dlopen(candidate.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (handle != nullptr) return SharedLibrary(handle, request.name, candidate);
    const char* cause = ::dlerror();
    if (!tried.empty()) tried += "; ";
    tried += cause != nullptr ? cause : candidate;
  }
  return fail(ErrorCode::kNotFound, "load " + request.name + ": " + tried + "; " + request.advice);
}

Result<void*> SharedLibrary::find(const char* symbol) const {
  void* address = ::dlsym(handle_, symbol);
  if (address == nullptr)
    return fail(ErrorCode::kUnsupported,
                "load " + name_ + ": " + path_ + " has no " + symbol + "; install a newer version of it");
  return address;
}

std::string version_text(std::size_t number) {
  return std::to_string(number / 10000) + "." + std::to_string(number / 100 % 100) + "." +
         std::to_string(number % 100);
}

std::vector<std::string> cuda_candidates(const std::string& soname) {
  std::vector<std::string> candidates{soname};
  if (const char* home = std::getenv("CUDA_HOME"); home != nullptr && *home != '\0')
    candidates.push_back(std::string(home) + "/lib64/" + soname);
  candidates.push_back("/usr/local/cuda/lib64/" + soname);
  return candidates;
}

}  // namespace muster
