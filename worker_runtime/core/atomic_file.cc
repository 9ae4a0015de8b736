// SPDX-License-Identifier: Apache-2.0
#include "worker_runtime/core/atomic_file.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <future>
#include <memory>
#include <sys/mman.h>
#include <unistd.h>

#include "rendezvous/base/syscall.h"
#include "rendezvous/base/unique_fd.h"
#include "worker_runtime/core/crc32c.h"

namespace muster {
namespace {

constexpr std::size_t kBlockBytes = std::size_t{2} << 20, kPageBytes = 4096;
constexpr std::size_t kBlocks = 5;  // one is put together while the others are written

Result<void> sync(const UniqueFd& file, const std::string& path) {
  if (retry_eintr([&] { return ::fsync(file.get()); }) != 0) return fail(errno_error("fsync " + path, errno));
  return {};
}

/// Writes blocks at their places, some at a time while the next is put together, as one alone leaves the disk
/// idle in between; large files past the page cache, where the file system can: that costs the processor as
/// much as another copy of them. The blocks stay in the processor's cache.
class BlockWriter {
 public:
  BlockWriter(int file, std::size_t size_bytes) : file_(file), size_bytes_(size_bytes) {}

  /// Asks for the space: a disk that is too full says so before the first byte, and writes that do not make
  /// the file longer can go on beside each other.
  Result<void> start() {
    if (size_bytes_ < kBlockBytes) return {};
    const int result = retry_eintr([&] { return ::fallocate(file_, 0, 0, static_cast<off_t>(size_bytes_)); });
    if (result != 0 && errno != EOPNOTSUPP) return fail(errno_error("allocate", errno));
    (void)::fcntl(file_, F_SETFL, O_DIRECT);
    return {};
  }

  Result<void> add(std::string_view piece) {
    while (!piece.empty()) {
      if (filled_ == 0) MUSTER_OK(prepare(blocks_[current_]));
      const std::string_view part = piece.substr(0, kBlockBytes - filled_);
      std::memcpy(blocks_[current_].memory.get() + filled_, part.data(), part.size());
      piece.remove_prefix(part.size());
      filled_ += part.size();
      if (filled_ == kBlockBytes) flush();
    }
    return {};
  }
  Result<FileSum> finish() {
    if (filled_ % kPageBytes != 0) buffer();
    if (filled_ > 0) flush();
    for (Block& block : blocks_)
      if (block.writing.valid()) MUSTER_OK(block.writing.get());
    return sum_;
  }

 private:
  struct Block {
    std::shared_ptr<char> memory;
    std::future<Result<void>> writing;  // its end is waited for before the memory is freed
  };

  /// Waits until what was in it is written.
  Result<void> prepare(Block& block) const {
    if (block.writing.valid()) return block.writing.get();
    const std::size_t bytes = std::min(size_bytes_ / kPageBytes * kPageBytes + kPageBytes, kBlockBytes);
    // As one large page: given and pinned once instead of 512 times, which is a quarter of the time of 1 GB.
    const bool is_large = bytes == kBlockBytes;
    const std::size_t alignment = is_large ? kBlockBytes : kPageBytes;
    block.memory.reset(static_cast<char*>(std::aligned_alloc(alignment, bytes)), std::free);
    if (is_large) (void)::madvise(block.memory.get(), bytes, MADV_HUGEPAGE);
    return {};
  }

  void flush() {
    Block& block = blocks_[current_];
    const std::string_view bytes(block.memory.get(), filled_);
    sum_.crc32c = crc32c(bytes, sum_.crc32c);
    block.writing = std::async(
        size_bytes_ < kBlockBytes ? std::launch::deferred : std::launch::async | std::launch::deferred,
        [this, bytes, at = sum_.size_bytes] { return write(bytes, at); });
    sum_.size_bytes += filled_;
    current_ = (current_ + 1) % blocks_.size();
    filled_ = 0;
  }

  /// On a thread of its own. What cannot go past the page cache goes through it.
  Result<void> write(std::string_view bytes, std::size_t at) const {
    while (!bytes.empty()) {
      const bool is_direct = (::fcntl(file_, F_GETFL) & O_DIRECT) != 0;
      const ssize_t n =
          retry_eintr([&] { return ::pwrite(file_, bytes.data(), bytes.size(), static_cast<off_t>(at)); });
      if (n < 0 && !is_direct) return fail(errno_error("write", errno));
      const std::size_t written = n < 0 ? 0 : static_cast<std::size_t>(n);
      if (written < bytes.size()) buffer();
      bytes.remove_prefix(written);
      at += written;
    }
    return {};
  }
  void buffer() const { (void)::fcntl(file_, F_SETFL, 0); }

  int file_;
  std::size_t size_bytes_;
  std::array<Block, kBlocks> blocks_;
  std::size_t current_ = 0, filled_ = 0;
  FileSum sum_;
};

}  // namespace

Result<FileSum> write_new_file(const std::string& path, std::span<const std::string_view> pieces) {
  const UniqueFd file(
      retry_eintr([&] { return ::open(path.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0666); }));
  if (!file) return fail(errno_error("create " + path, errno));
  std::size_t size_bytes = 0;
  for (const std::string_view piece : pieces) size_bytes += piece.size();
  BlockWriter writer(file.get(), size_bytes);
  Result<void> added = writer.start();
  for (const std::string_view piece : pieces)
    if (added) added = writer.add(piece);
  auto sum = added ? writer.finish() : Result<FileSum>(fail(std::move(added).error()));
  if (!sum) return fail("write " + path, std::move(sum).error());
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
  auto done = write_new_file(made, pieces);
  if (done && ::rename(made.c_str(), path.c_str()) != 0)
    done = fail(errno_error("rename " + made + " to " + path, errno));
  if (!done) {
    ::unlink(made.c_str());
    return fail(std::move(done).error());
  }
  return sync_directory(std::filesystem::absolute(path).parent_path());
}

}  // namespace muster
