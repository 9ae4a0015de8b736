// SPDX-License-Identifier: Apache-2.0
#include "worker_runtime/core/atomic_file.h"

#include <cerrno>
#include <cstdio>
#include <fcntl.h>
#include <unistd.h>

#include "rendezvous/base/syscall.h"
#include "rendezvous/base/unique_fd.h"

namespace muster {
namespace {

std::string directory_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

/// The new file while it is being written: unnamed, or named path.tmp-<pid>. Removed unless it was renamed.
class TemporaryFile {
 public:
  explicit TemporaryFile(const std::string& path) : name_(path + ".tmp-" + std::to_string(::getpid())) {}
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  ~TemporaryFile() {
    if (named_) ::unlink(name_.c_str());
  }

  Result<void> create(const std::string& directory) {
    fd_.reset(retry_eintr([&] { return ::open(directory.c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, 0666); }));
    if (fd_) return {};
    // EOPNOTSUPP and EISDIR: a file system or kernel without unnamed files. Other errors come again below.
    ::unlink(name_.c_str());
    fd_.reset(
        retry_eintr([&] { return ::open(name_.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0666); }));
    if (!fd_) return fail(errno_error("create " + name_, errno));
    named_ = true;
    return {};
  }
  [[nodiscard]] int fd() const { return fd_.get(); }

  Result<void> rename_to(const std::string& path) {
    if (!named_) {
      // A name left by a process of the same id that was killed in this very place.
      ::unlink(name_.c_str());
      const std::string self = "/proc/self/fd/" + std::to_string(fd_.get());
      if (::linkat(AT_FDCWD, self.c_str(), AT_FDCWD, name_.c_str(), AT_SYMLINK_FOLLOW) != 0)
        return fail(errno_error("link " + name_, errno));
      named_ = true;
    }
    if (::rename(name_.c_str(), path.c_str()) != 0)
      return fail(errno_error("rename " + name_ + " to " + path, errno));
    named_ = false;
    return {};
  }

 private:
  std::string name_;
  UniqueFd fd_;
  bool named_ = false;
};

}  // namespace

Result<void> write_file_atomically(const std::string& path, std::span<const std::string_view> pieces) {
  const std::string directory = directory_of(path);
  TemporaryFile file(path);
  MUSTER_OK(file.create(directory));
  for (const std::string_view piece : pieces)
    if (auto written = write_all(file.fd(), piece); !written)
      return fail("write " + path, std::move(written).error());
  if (retry_eintr([&] { return ::fsync(file.fd()); }) != 0) return fail(errno_error("fsync " + path, errno));
  MUSTER_OK(file.rename_to(path));
  return sync_directory(directory);
}

Result<void> sync_directory(const std::string& directory) {
  const UniqueFd dir(
      retry_eintr([&] { return ::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); }));
  if (!dir) return fail(errno_error("open " + directory, errno));
  if (retry_eintr([&] { return ::fsync(dir.get()); }) != 0)
    return fail(errno_error("fsync " + directory, errno));
  return {};
}

}  // namespace muster
