// SPDX-License-Identifier: Apache-2.0
// OneThread: while it lives, the calling thread's OpenMP regions run on one thread; afterwards as before.
// Around every oneDNN call, because a rank has one core whatever OMP_NUM_THREADS says. The OpenMP runtime is
// looked up in the process, since oneDNN brings its own: linking another compiler's would make two. A oneDNN
// without OpenMP has nothing to set.
#pragma once

#include <dlfcn.h>

namespace muster::nn {

class OneThread {
 public:
  OneThread() {
    const auto get = reinterpret_cast<int (*)()>(::dlsym(RTLD_DEFAULT, "omp_get_max_threads"));
    set_ = reinterpret_cast<void (*)(int)>(::dlsym(RTLD_DEFAULT, "omp_set_num_threads"));
    if (get == nullptr || set_ == nullptr) return;
    before_ = get();
    set_(1);
  }
  ~OneThread() {
    if (before_ != 0) set_(before_);
  }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  void (*set_)(int) = nullptr;
  int before_ = 0;  // 0: no OpenMP
};

}  // namespace muster::nn
