// SPDX-License-Identifier: Apache-2.0
// SharedLibrary: a library opened while the program runs, so that one binary starts on machines without it.
// Stays loaded until the process ends: CUDA's libraries keep threads and exit handlers that must not be
// unmapped. Failure: kNotFound naming every place that was tried and what to install; kUnsupported for a
// missing symbol. Source: dlopen(3).
#pragma once

#include <string>
#include <vector>

#include <muster/result.h>

namespace muster {

class SharedLibrary {
 public:
  struct Request {
    std::string name;                     ///< for messages: "cuDNN 9"
    std::vector<std::string> candidates;  ///< sonames or paths, tried in order
    std::string advice;                   ///< what to install: "install libcudnn9-cuda-13"
  };

  [[nodiscard]] static Result<SharedLibrary> open(const Request& request);

  /// Fills function pointers, each in front of its symbol; kUnsupported naming the symbol and the library's
  /// file.
  template <class Function, class... Rest>
  [[nodiscard]] Result<void> load(Function*& slot, const char* symbol, Rest&&... rest) const {
    MUSTER_TRY(void* address, find(symbol));
    slot = reinterpret_cast<Function*>(address);
    if constexpr (sizeof...(rest) != 0) return load(rest...);
    return {};
  }

  /// The same for a symbol that older versions lack: nullptr then.
  template <class Function>
  void load_optional(Function*& slot, const char* symbol) const {
    const auto address = find(symbol);
    slot = address ? reinterpret_cast<Function*>(*address) : nullptr;
  }

  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  SharedLibrary(void* handle, std::string name, std::string path)
      : handle_(handle), name_(std::move(name)), path_(std::move(path)) {}
  [[nodiscard]] Result<void*> find(const char* symbol) const;

  void* handle_ = nullptr;
  std::string name_;
  std::string path_;  // as it was opened
};

/// "9.19.0" of 91900: how CUDA's libraries write their versions.
[[nodiscard]] std::string version_text(std::size_t number);

/// `soname` as the loader finds it, then in $CUDA_HOME/lib64 and /usr/local/cuda/lib64, which installers of
/// the toolkit do not always tell the loader about.
[[nodiscard]] std::vector<std::string> cuda_candidates(const std::string& soname);

}  // namespace muster
