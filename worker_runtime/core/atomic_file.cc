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

/// Writes blocks one after another, each while the next is put together; large files past the page cache,
/// where the file system can: that costs the processor as much as another copy of them.
class BlockWriter {
 public:
  BlockWriter(int file, std::size_t size_bytes) : file_(file), size_bytes_(size_bytes) {
    const std::size_t bytes = std::min(size_bytes / kPageBytes * kPageBytes + kPageBytes, kBlockBytes);
    for (auto& block : blocks_) block.reset(static_cast<char*>(std::aligned_alloc(kPageBytes, bytes)));
    direct_ = size_bytes >= kBlockBytes && ::fcntl(file, F_SETFL, O_DIRECT) == 0;
  }

  Result<void> add(std::string_view piece) {
    while (!piece.empty()) {
      const std::string_view part = piece.substr(0, kBlockBytes - filled_);
      std::memcpy(blocks_[current_].get() + filled_, part.data(), part.size());
      piece.remove_prefix(part.size());
      filled_ += part.size();
      if (filled_ == kBlockBytes) MUSTER_OK(flush());
    }
    return {};
  }
  Result<FileSum> finish() {
    MUSTER_OK(flush());
    MUSTER_OK(writing_.get());
    return sum_;
  }

 private:
  struct Free {
    void operator()(char* memory) const { std::free(memory); }
  };

  Result<void> flush() {
    const std::string_view block(blocks_[current_].get(), filled_);
    sum_.crc32c = crc32c(block, sum_.crc32c);
    if (writing_.valid()) MUSTER_OK(writing_.get());
    if (filled_ % kPageBytes != 0) buffer();
    const auto how = size_bytes_ < kBlockBytes ? std::launch::deferred : std::launch::async;
    writing_ = std::async(how, [this, block, at = sum_.size_bytes]() -> Result<void> {
      auto written = write_all(file_, block);
      if (written || !direct_) return written;
      buffer();  // from where it stopped
      return write_all(file_, block.substr(static_cast<std::size_t>(::lseek(file_, 0, SEEK_CUR)) - at));
    });
    sum_.size_bytes += filled_;
    current_ ^= 1U;
    filled_ = 0;
    return {};
  }
  void buffer() { direct_ = direct_ && ::fcntl(file_, F_SETFL, 0) != 0; }

  int file_;
  std::size_t size_bytes_;
  bool direct_ = false;
  std::array<std::unique_ptr<char, Free>, 2> blocks_;
  std::size_t current_ = 0, filled_ = 0;
  FileSum sum_;
  std::future<Result<void>> writing_;
};

}  // namespace

Result<FileSum> write_new_file(const std::string& path, std::span<const std::string_view> pieces) {
  const UniqueFd file(
      retry_eintr([&] { return ::open(path.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0666); }));
  if (!file) return fail(errno_error("create " + path, errno));
  std::size_t size_bytes = 0;
  for (const std::string_view piece : pieces) size_bytes += piece.size();
  BlockWriter writer(file.get(), size_bytes);
  Result<void> added;
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
