// SPDX-License-Identifier: Apache-2.0
#include "worker_runtime/core/atomic_file.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <fcntl.h>
#include <filesystem>
#include <future>
#include <unistd.h>

#include "rendezvous/base/syscall.h"
#include "rendezvous/base/unique_fd.h"
#include "worker_runtime/core/crc32c.h"

namespace muster {
namespace {

constexpr std::size_t kBlockBytes = std::size_t{8} << 20, kPageBytes = 4096;

Result<void> sync(const UniqueFd& file, const std::string& path) {
  if (retry_eintr([&] { return ::fsync(file.get()); }) != 0) return fail(errno_error("fsync " + path, errno));
  return {};
}

/// Large ones past the page cache, which costs the processor as much as a copy of them, where the file system
/// can and memory and place in the file are aligned.
Result<void> write_piece(int file, std::string_view bytes) {
  const bool aligned = reinterpret_cast<std::uintptr_t>(bytes.data()) % kPageBytes == 0 &&
                       ::lseek(file, 0, SEEK_CUR) % static_cast<off_t>(kPageBytes) == 0;
  if (bytes.size() >= kBlockBytes && aligned && ::fcntl(file, F_SETFL, O_DIRECT) == 0) {
    while (bytes.size() >= kPageBytes) {
      const std::size_t whole = std::min(bytes.size() - bytes.size() % kPageBytes, kBlockBytes);
      const ssize_t n = retry_eintr([&] { return ::write(file, bytes.data(), whole); });
      if (n <= 0) break;  // what is wrong shows below
      bytes.remove_prefix(static_cast<std::size_t>(n));
    }
    if (::fcntl(file, F_SETFL, 0) != 0) return fail(errno_error("fcntl", errno));
  }
  return write_all(file, bytes);
}

}  // namespace

Result<FileSum> write_new_file(const std::string& path, std::span<const std::string_view> pieces) {
  const UniqueFd file(
      retry_eintr([&] { return ::open(path.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0666); }));
  if (!file) return fail(errno_error("create " + path, errno));
  FileSum sum;
  for (const std::string_view piece : pieces) sum.size_bytes += piece.size();
  // Beside the disk, where it is worth a thread.
  auto crc = std::async(sum.size_bytes < kBlockBytes ? std::launch::deferred : std::launch::async, [&] {
    std::uint32_t all = 0;
    for (const std::string_view piece : pieces) all = crc32c(piece, all);
    return all;
  });
  for (const std::string_view piece : pieces)
    if (auto written = write_piece(file.get(), piece); !written)
      return fail("write " + path, std::move(written).error());
  sum.crc32c = crc.get();
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
  return sync_directory(std::filesystem::absolute(path).parent_path());
}

}  // namespace muster
