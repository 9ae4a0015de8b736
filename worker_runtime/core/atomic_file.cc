// SPDX-License-Identifier: Apache-2.0
#include "worker_runtime/core/atomic_file.h"

#include <cerrno>
#include <cstdio>
#include <fcntl.h>
#include <unistd.h>

#include "rendezvous/base/syscall.h"
#include "rendezvous/base/unique_fd.h"
#include "worker_runtime/core/crc32c.h"

namespace muster {
namespace {

constexpr std::size_t kBlockBytes = std::size_t{8} << 20;

std::string directory_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

Result<void> sync(const UniqueFd& file, const std::string& path) {
  if (retry_eintr([&] { return ::fsync(file.get()); }) != 0) return fail(errno_error("fsync " + path, errno));
  return {};
}

}  // namespace

Result<FileSum> write_new_file(const std::string& path, std::span<const std::string_view> pieces) {
  const UniqueFd file(
      retry_eintr([&] { return ::open(path.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0666); }));
  if (!file) return fail(errno_error("create " + path, errno));
  FileSum sum;
  for (std::string_view rest : pieces)
    while (!rest.empty()) {
      const std::string_view block = rest.substr(0, kBlockBytes);
      rest.remove_prefix(block.size());
      sum.crc32c = crc32c(block, sum.crc32c);
      if (auto written = write_all(file.get(), block); !written)
        return fail("write " + path, std::move(written).error());
      // The disk begins now; what it cannot do fsync will say.
      (void)::sync_file_range(file.get(), static_cast<off64_t>(sum.size_bytes),
                              static_cast<off64_t>(block.size()), SYNC_FILE_RANGE_WRITE);
      sum.size_bytes += block.size();
    }
  MUSTER_OK(sync(file, path));
  return sum;
}

Result<void> sync_directory(const std::string& directory) {
  const UniqueFd file(
      retry_eintr([&] { return ::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); }));
  if (!file) return fail(errno_error("open " + directory, errno));
  return sync(file, directory);
}

Result<void> write_file_atomically(const std::string& path, std::span<const std::string_view> pieces) {
  const std::string made = path + ".tmp-" + std::to_string(::getpid());
  ::unlink(made.c_str());  // of a process of the same number
  Result<void> done;
  if (auto written = write_new_file(made, pieces); !written) done = fail(std::move(written).error());
  if (done && ::rename(made.c_str(), path.c_str()) != 0)
    done = fail(errno_error("rename " + made + " to " + path, errno));
  if (!done) {
    ::unlink(made.c_str());
    return done;
  }
  return sync_directory(directory_of(path));
}

}  // namespace muster
