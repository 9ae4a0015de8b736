// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/protocol/job_secrets.h"

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "rendezvous/base/fail.h"
#include "rendezvous/base/text.h"
#include "rendezvous/protocol/control.h"

namespace muster {

namespace fs = std::filesystem;

Result<void> JobSecrets::add(const std::string& job, const std::string& file) {
  if (std::string defect = control::defect_of_job(job); !defect.empty())
    return invalid("secret file {}: {}", printable(file, 256), std::move(defect));
  MUSTER_TRY(auth::Secret secret, auth::Secret::from_file(file));
  if (!secrets_.emplace(job, std::move(secret)).second)
    return invalid("job {} has two secrets, one of them in {}; leave one", job, file);
  return {};
}

Result<JobSecrets> JobSecrets::read(const Sources& sources) {
  JobSecrets out;
  for (const std::string& source : sources.files) {
    const std::size_t at = source.find('=');
    // Without the argument: somebody may have put the secret itself there, and error lines end up in logs.
    if (at == std::string::npos || at + 1 == source.size())
      return fail(ErrorCode::kInvalidArgument,
                  "--job-secret needs a job and a file with its secret: JOB=FILE");
    MUSTER_OK(out.add(source.substr(0, at), source.substr(at + 1)));
  }
  if (sources.directory.empty()) return out;
  std::error_code error;
  std::vector<fs::path> files;
  for (fs::directory_iterator at(sources.directory, error), end; !error && at != end; at.increment(error)) {
    std::error_code ignored;
    if (!at->path().filename().string().starts_with('.') && fs::is_regular_file(at->path(), ignored))
      files.push_back(at->path());
  }
  if (error) return fail(ErrorCode::kIo, "--secrets-dir {}: {}", sources.directory, error.message());
  std::ranges::sort(files);  // so that of several defects the same is told each time
  for (const fs::path& file : files) MUSTER_OK(out.add(file.filename().string(), file.string()));
  return out;
}

const auth::Secret* JobSecrets::find(std::string_view job) const {
  const auto found = secrets_.find(job);
  return found == secrets_.end() ? nullptr : &found->second;
}

}  // namespace muster
