// SPDX-License-Identifier: Apache-2.0
// RuntimePageReader: the bytes of the page that a worker's runtime writes beside the file for its words about
// progress. Read, never mapped: a worker that cuts its file short must not end the agent by SIGBUS. Empty:
// there is none, as of any program without the runtime, or it is no plain file.
#pragma once

#include <string>
#include <string_view>

#include "rendezvous/base/unique_fd.h"

namespace muster::launcher {

class RuntimePageReader {
 public:
  /// Empty where words about progress go nowhere.
  explicit RuntimePageReader(std::string_view progress_file);
  /// As it is now.
  [[nodiscard]] std::string read() const;

 private:
  UniqueFd file_;
};

}  // namespace muster::launcher
