// SPDX-License-Identifier: Apache-2.0
// FilteredLog: the file of --duplicate-stdout-filters or --duplicate-stderr-filters. Of the lines that -t
// shows, those that contain one of the texts go there too, with their prefix. Owned by the log router, per
// attempt; one loop. A write that fails ends the duplication and is said once: the worker's own file has
// every line. Source: torch/distributed/elastic/multiprocessing/tail_log.py.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <muster/result.h>

#include "rendezvous/base/unique_fd.h"

namespace muster::launcher {

class FilteredLog {
 public:
  /// Creates the file, empty. `texts` outlives this object.
  [[nodiscard]] static Result<FilteredLog> create(std::string path, const std::vector<std::string>& texts);

  /// `line` without its end.
  void offer(std::string_view prefix, std::string_view line);
  /// Writes what was taken since the last time. Fails once at most.
  [[nodiscard]] Result<void> flush();

 private:
  FilteredLog(std::string path, UniqueFd file, const std::vector<std::string>& texts)
      : path_(std::move(path)), file_(std::move(file)), texts_(&texts) {}

  std::string path_;
  UniqueFd file_;
  const std::vector<std::string>* texts_;
  std::string taken_;
  bool broken_ = false;
};

}  // namespace muster::launcher
