// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/wal/log_file.h"

#include <cerrno>
#include <fcntl.h>
#include <filesystem>
#include <memory>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>

#include "rendezvous/base/fail.h"
#include "rendezvous/base/key_map.h"
#include "rendezvous/base/syscall.h"

namespace muster {
namespace {

// A snapshot is written in frames of about this size, so that it is never in memory twice.
constexpr std::size_t kSnapshotFrameBytes = std::size_t{1} << 20;

bool no_room(int error_number) {
  return error_number == ENOSPC || error_number == EDQUOT || error_number == EFBIG;
}

struct Unmap {
  std::size_t size = 0;
  void operator()(char* begin) const { ::munmap(begin, size); }
};
using Mapping = std::unique_ptr<char, Unmap>;

// The whole file, for reading; nullptr: it is empty.
Result<Mapping> map_file(int fd, const std::string& path) {
  struct stat status {};
  if (::fstat(fd, &status) != 0) return fail(errno_error("fstat " + path, errno));
  const auto size = static_cast<std::size_t>(status.st_size);
  if (size == 0) return Mapping();
  void* begin = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0);
  if (begin == MAP_FAILED) return fail(errno_error("mmap " + path, errno));
  return Mapping(static_cast<char*>(begin), Unmap{size});
}

Result<UniqueFd> take_lock(const std::string& directory) {
  const std::string path = directory + "/lock";
  UniqueFd fd(retry_eintr([&] { return ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600); }));
  if (!fd) return fail(errno_error("open " + path, errno));
  if (retry_eintr([&] { return ::flock(fd.get(), LOCK_EX | LOCK_NB); }) != 0) {
    if (errno != EWOULDBLOCK) return fail(errno_error("flock " + path, errno));
    char text[32] = "";
    const ssize_t n = ::pread(fd.get(), text, sizeof text - 1, 0);
    const std::string_view owner(text, n > 0 ? static_cast<std::size_t>(n) : 0);
    return fail(ErrorCode::kExhausted,
                "state directory {} belongs to the running process {}; stop that one, or give each musterd a "
                "directory of its own",
                directory, owner.empty() ? "that has just locked it" : owner.substr(0, owner.find('\n')));
  }
  const std::string pid = fmt::format("{}\n", ::getpid());
  // For people: the lock holds without it, and a full disk must not keep musterd from reading its log.
  if (::ftruncate(fd.get(), 0) == 0) (void)!::pwrite(fd.get(), pid.data(), pid.size(), 0);
  return fd;
}

}  // namespace

Error LogFile::error(std::string_view call, int error_number) const {
  Error out = errno_error(fmt::format("{} {}", call, path_), error_number);
  out.code = no_room(error_number) ? ErrorCode::kExhausted : ErrorCode::kIo;
  return out;
}

Result<void> LogFile::write(int fd, std::string_view bytes, std::size_t offset) const {
  while (!bytes.empty()) {
    const ssize_t n =
        retry_eintr([&] { return ::pwrite(fd, bytes.data(), bytes.size(), static_cast<off_t>(offset)); });
    if (n < 0) return fail(error("write", errno));
    bytes.remove_prefix(static_cast<std::size_t>(n));
    offset += static_cast<std::size_t>(n);
  }
  return {};
}

Result<LogFile::Opened> LogFile::open(const std::string& directory, const journal::LogSink& to) {
  if (::mkdir(directory.c_str(), 0700) == 0) {
    // Its name has to be on the disk too.
    const std::string parent = std::filesystem::path(directory + "/").parent_path().parent_path();
    const UniqueFd above(::open(parent.empty() ? "." : parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!above || ::fsync(above.get()) != 0)
      return fail(errno_error("fsync of the folder of " + directory, errno));
  } else if (errno != EEXIST) {
    return fail(errno_error("state directory " + directory, errno));
  }
  Opened out{LogFile(), 0, {}};
  LogFile& file = out.file;
  file.directory_ = directory;
  file.path_ = directory + "/state.log";
  file.directory_fd_.reset(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!file.directory_fd_) return fail(errno_error("state directory " + directory, errno));
  MUSTER_TRY(file.lock_, take_lock(directory));
  ::unlink((file.path_ + ".new").c_str());  // of a rewriting that was interrupted

  file.fd_.reset(retry_eintr([&] { return ::open(file.path_.c_str(), O_RDWR | O_CLOEXEC); }));
  if (!file.fd_) {
    if (errno != ENOENT) return fail(errno_error("open " + file.path_, errno));
    MUSTER_OK(file.rewrite([](const journal::LogSink&) {}));
    return out;
  }

  MUSTER_TRY(const Mapping mapping, map_file(file.fd_.get(), file.path_));
  const std::string_view bytes(mapping.get(), mapping.get_deleter().size);
  const journal::Replayed replayed = journal::replay(bytes, to);
  const std::size_t tail = bytes.size() - replayed.good_bytes;
  switch (replayed.end) {
    case journal::Replayed::End::kClean:
      break;
    case journal::Replayed::End::kDamaged:
      return fail(
          ErrorCode::kCorrupt,
          "state log {} is damaged after byte {}: {}; put a copy of the file in its place, or cut it with "
          "\"truncate -s {} {}\" and lose the last {} bytes, or move it away to begin with nothing",
          file.path_, replayed.good_bytes, replayed.text, replayed.good_bytes, file.path_, tail);
    case journal::Replayed::End::kTorn:
      out.notice = fmt::format(
          "state log {}: cut {} bytes at offset {}: the last write was not complete, and nobody was told of "
          "it",
          file.path_, tail, replayed.good_bytes);
      if (::ftruncate(file.fd_.get(), static_cast<off_t>(replayed.good_bytes)) != 0)
        return fail(file.error("cut", errno));
      break;
  }
  if (::fdatasync(file.fd_.get()) != 0) return fail(file.error("fdatasync", errno));
  file.salt_ = journal::salt_of(bytes);
  file.size_ = replayed.good_bytes;
  out.num_frames = replayed.num_frames;
  return out;
}

Result<void> LogFile::append(journal::Encoder& records) {
  const std::string_view frame = records.seal(salt_, size_);
  if (auto written = write(fd_.get(), frame, size_); !written) {
    // A part of a frame, which the next one takes the place of.
    if (::ftruncate(fd_.get(), static_cast<off_t>(size_)) != 0) return fail(error("cut", errno));
    return written;
  }
  if (::fdatasync(fd_.get()) != 0) return fail(ErrorCode::kIo, error("fdatasync", errno).message);
  size_ += frame.size();
  return {};
}

Result<void> LogFile::rewrite(const Describe& describe) {
  const std::string path = path_ + ".new";
  UniqueFd fd(
      retry_eintr([&] { return ::open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600); }));
  if (!fd) return fail(errno_error("open " + path, errno));
  const std::uint64_t salt = random_sip_key().front();
  std::size_t size = 0;
  Result<void> done;
  const auto add = [&](std::string_view bytes) {
    if (done) done = write(fd.get(), bytes, size);
    size += bytes.size();
  };
  add(journal::file_header(salt));
  journal::Encoder frame;
  describe([&](const journal::LogRecord& record) {
    frame.add(record);
    if (frame.size() <= kSnapshotFrameBytes) return;
    add(frame.seal(salt, size));
    frame.clear();
  });
  if (!frame.empty()) add(frame.seal(salt, size));
  if (done && ::fsync(fd.get()) != 0) done = fail(error("fsync", errno));
  if (done && ::rename(path.c_str(), path_.c_str()) != 0) done = fail(error("rename", errno));
  if (!done) {
    ::unlink(path.c_str());
    return fail("rewrite", std::move(done).error());
  }
  // From here on the new file is the log, whatever the directory's sync says.
  fd_ = std::move(fd);
  size_ = size;
  salt_ = salt;
  if (::fsync(directory_fd_.get()) != 0)
    return fail(ErrorCode::kIo, errno_error("fsync " + directory_, errno).message);
  return {};
}

}  // namespace muster
