// SPDX-License-Identifier: Apache-2.0
// JobSecrets: which secret an agent has to know for which job, where jobs have secrets of their own. Who
// knows one job's joins no other: the proof covers the job's name (auth.h), and a Join has none of its own.
// Owned by musterd's main, shared with its ControlServer; one thread. Failure: text with the file and what to
// do; what was known before still holds.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include <muster/result.h>

#include "rendezvous/protocol/auth.h"

namespace muster {

class JobSecrets {
 public:
  struct Sources {
    std::vector<std::string> files;  ///< "JOB=FILE"; the first = separates them
    std::string directory;  ///< a file for each job, of its name; those that begin with a dot are no job's
    [[nodiscard]] bool empty() const { return files.empty() && directory.empty(); }
  };
  /// kInvalidArgument: a name that no job can have, two secrets for a job, a file that others may read.
  [[nodiscard]] static Result<JobSecrets> read(const Sources& sources);

  /// nullptr: the job has none of its own.
  [[nodiscard]] const auth::Secret* find(std::string_view job) const;
  [[nodiscard]] std::size_t size() const { return secrets_.size(); }

 private:
  [[nodiscard]] Result<void> add(const std::string& job, const std::string& file);

  std::map<std::string, auth::Secret, std::less<>> secrets_;
};

}  // namespace muster
