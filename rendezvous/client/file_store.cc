// SPDX-License-Identifier: Apache-2.0
// The file is opened for each operation: a lock belongs to an open file description, so a store that is used
// by several threads or was inherited through fork() still excludes itself, and a file that was deleted and
// made anew is noticed.
#include <algorithm>
#include <fcntl.h>
#include <mutex>
#include <optional>
#include <poll.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <thread>
#include <unistd.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <muster/file_store.h>

#include "rendezvous/base/backoff.h"
#include "rendezvous/base/clock.h"
#include "rendezvous/base/fail.h"
#include "rendezvous/base/syscall.h"
#include "rendezvous/base/unique_fd.h"
#include "rendezvous/client/file_record.h"
#include "rendezvous/store/counter.h"

namespace muster {
namespace {

// How many use the file, and have used it; PyTorch's names for them.
constexpr std::string_view kUsersKey = "refcount/", kGoneKey = "cleanup/";
constexpr Millis kDestructorTimeout{200};

/// Sleeps until a file may have changed, or a deadline. inotify tells at once of what this kernel writes; for
/// the rest (NFS, FUSE, no inotify instance left) it returns after 10 to 100 ms and the caller looks for
/// itself. It watches from its making on: look at the file once more before wait().
class FileWatch {
 public:
  explicit FileWatch(const std::string& path)
      : backoff_({.first = Millis(10), .max = Millis(100)}, static_cast<std::uint64_t>(::getpid())) {
    // Fails when the user's instances (128 by default) are used up.
    UniqueFd fd(::inotify_init1(IN_CLOEXEC | IN_NONBLOCK));
    if (!fd || ::inotify_add_watch(fd.get(), path.c_str(), IN_MODIFY | IN_DELETE_SELF | IN_ATTRIB) < 0)
      return;
    inotify_ = std::move(fd);
  }

  /// Returns after a change, or at the deadline, or when it is time to look.
  void wait(Instant deadline) {
    const Millis left = std::min(time_left(deadline, SteadyClock::now()), backoff_.next());
    pollfd entry{inotify_.get(), POLLIN, 0};  // -1: poll() ignores it and only sleeps
    if (::poll(&entry, 1, static_cast<int>(left.count())) <= 0 || !inotify_) return;
    alignas(inotify_event) char events[4096];
    while (retry_eintr([&] { return ::read(inotify_.get(), events, sizeof events); }) > 0) {
    }
  }

 private:
  UniqueFd inotify_;
  Backoff backoff_;
};

class FileStore final : public Store {
 public:
  FileStore(std::string path, std::int64_t world_size, dev_t device, ino_t inode)
      : path_(std::move(path)), world_size_(world_size), device_(device), inode_(inode) {}

  ~FileStore() override {
    (void)sticky(kDestructorTimeout, LOCK_EX, [&](int fd) -> Result<void> {
      MUSTER_TRY(const std::int64_t users, count(fd, kUsersKey, -1));
      if (world_size_ <= 0) return {};
      MUSTER_TRY(const std::int64_t gone, count(fd, kGoneKey, 1));
      if (gone >= world_size_ && users <= 0) ::unlink(path_.c_str());
      return {};
    });
  }

  Result<void> enter() {
    return sticky(timeout(), LOCK_EX,
                  [&](int fd) -> Result<void> { return count(fd, kUsersKey, 1).map([](std::int64_t) {}); });
  }

  Result<void> set(std::string_view key, std::string_view value) override {
    return sticky(timeout(), LOCK_EX,
                  [&](int fd) -> Result<void> { return append_records(fd, record(regular(key), value)); });
  }

  Result<std::string> compare_set(std::string_view key, std::string_view expected,
                                  std::string_view desired) override {
    return sticky(timeout(), LOCK_EX, [&](int fd) -> Result<std::string> {
      MUSTER_OK(replay(fd));
      const auto found = map_.find(regular(key));
      if (found == map_.end() && !expected.empty()) return std::string(expected);
      if (found != map_.end() && found->second != expected) return found->second;
      MUSTER_OK(append_records(fd, record(regular(key), desired)));
      return std::string(desired);
    });
  }

  Result<std::int64_t> add(std::string_view key, std::int64_t delta) override {
    return sticky(timeout(), LOCK_EX,
                  [&](int fd) -> Result<std::int64_t> { return count(fd, regular(key), delta); });
  }

  Result<bool> check(std::span<const std::string> keys) override {
    return sticky(timeout(), LOCK_SH, [&](int fd) -> Result<bool> {
      MUSTER_OK(replay(fd));
      return first_missing(keys) == keys.end();
    });
  }

  Result<std::int64_t> num_keys() override {
    return sticky(timeout(), LOCK_SH, [&](int fd) -> Result<std::int64_t> {
      MUSTER_OK(replay(fd));
      return std::ranges::count_if(map_, [](const auto& entry) { return entry.first.starts_with('/'); });
    });
  }

  Result<bool> delete_key(std::string_view key) override {
    return sticky(timeout(), LOCK_EX, [&](int fd) -> Result<bool> {
      MUSTER_OK(replay(fd));
      if (!map_.contains(regular(key))) return false;
      MUSTER_OK(append_records(fd, record('-' + regular(key), "")));
      return true;
    });
  }

  Result<void> append(std::string_view key, std::string_view value) override {
    return sticky(timeout(), LOCK_EX, [&](int fd) -> Result<void> {
      MUSTER_OK(replay(fd));
      return append_records(fd, record(regular(key), std::string(current(regular(key))).append(value)));
    });
  }

  Result<std::vector<std::string>> multi_get(std::span<const std::string> keys,
                                             std::optional<Timeout> wanted) override {
    const Timeout limit = wanted.value_or(timeout());
    const Instant deadline = after(limit);
    std::optional<FileWatch> watch;  // made only when the keys are not there yet
    while (true) {
      std::vector<std::string> values;
      std::string missing;
      const auto look = [&](int fd) -> Result<void> {
        MUSTER_OK(replay(fd));
        if (const auto absent = first_missing(keys); absent != keys.end()) {
          missing = fmt::format("{}", fmt::join(absent, keys.end(), ", "));
          return {};
        }
        for (const std::string& key : keys) values.emplace_back(current(regular(key)));
        return {};
      };
      MUSTER_OK(sticky(std::max(time_left(deadline, SteadyClock::now()), Millis(1)), LOCK_SH, look));
      if (values.size() == keys.size()) return values;
      if (SteadyClock::now() >= deadline)
        return fail(ErrorCode::kTimeout, "wait timeout after {}ms in file store {}, keys: {}", limit.count(),
                    path_, missing);
      if (watch) {
        watch->wait(deadline);
      } else {
        watch.emplace(path_);
      }
    }
  }

  Result<void> multi_set(std::span<const std::pair<std::string, std::string>> pairs) override {
    return sticky(timeout(), LOCK_EX, [&](int fd) -> Result<void> {
      Result<std::string> all = std::string();
      for (const auto& [key, value] : pairs) {
        MUSTER_TRY(const std::string one, record(regular(key), value));
        *all += one;
      }
      return append_records(fd, std::move(all));
    });
  }

 private:
  /// Adds to a counter. Needs the exclusive lock.
  Result<std::int64_t> count(int fd, std::string_view full_key, std::int64_t delta) {
    MUSTER_OK(replay(fd));
    MUSTER_TRY(const std::int64_t sum,
               add_to_counter(full_key.substr(full_key.starts_with('/') ? 1 : 0), current(full_key), delta));
    MUSTER_OK(append_records(fd, record(full_key, std::to_string(sum))));
    return sum;
  }

  static std::string regular(std::string_view key) { return std::string(1, '/').append(key); }

  std::string_view current(std::string_view full_key) const {
    const auto found = map_.find(full_key);
    return found == map_.end() ? std::string_view() : std::string_view(found->second);
  }

  std::span<const std::string>::iterator first_missing(std::span<const std::string> keys) const {
    return std::ranges::find_if(keys, [&](const std::string& key) { return !map_.contains(regular(key)); });
  }

  static Result<std::string> record(std::string_view full_key, std::string_view value) {
    if (full_key.size() > kMaxFileRecordPart || value.size() > kMaxFileRecordPart)
      return invalid("file store: a value of {} bytes is above its limit of {}",
                     std::max(full_key.size(), value.size()), kMaxFileRecordPart);
    std::string out;
    encode_file_record(full_key, value, out);
    return out;
  }

  /// Runs `operation` on the locked file. Damage and failed system calls are kept; timeouts and bad input are
  /// not.
  template <class Operation>
  auto sticky(Timeout limit, int lock_kind, Operation operation) -> decltype(operation(0)) {
    const std::lock_guard lock(mutex_);
    if (failure_) return fail(*failure_);
    auto file = open_locked(lock_kind, limit);
    auto result = file ? operation(file->get()) : decltype(operation(0))(fail(std::move(file).error()));
    if (!result && result.error().code != ErrorCode::kTimeout &&
        result.error().code != ErrorCode::kInvalidArgument)
      failure_ = result.error();
    return result;
  }

  Result<UniqueFd> open_locked(int lock_kind, Timeout limit) {
    UniqueFd fd(retry_eintr([&] { return ::open(path_.c_str(), O_RDWR | O_APPEND | O_CLOEXEC); }));
    if (!fd) return fail(errno_error("open file store " + path_, errno));
    struct stat info {};
    if (::fstat(fd.get(), &info) != 0) return fail(errno_error("stat file store " + path_, errno));
    if (info.st_dev != device_ || info.st_ino != inode_)
      return fail(ErrorCode::kPeerGone, "file store " + path_ + " was deleted and made anew by others");
    // flock(2) has no timeout. Locks are held for microseconds, so these pauses are rare; the deadline is for
    // a holder that was stopped.
    const Instant deadline = after(limit);
    std::chrono::microseconds pause{20};
    while (retry_eintr([&] { return ::flock(fd.get(), lock_kind | LOCK_NB); }) != 0) {
      if (errno != EWOULDBLOCK) return fail(errno_error("lock file store " + path_, errno));
      if (SteadyClock::now() >= deadline)
        return fail(ErrorCode::kTimeout,
                    "lock file store {}: held by another process for {}ms; is one of the ranks stopped?",
                    path_, limit.count());
      std::this_thread::sleep_for(pause);
      pause = std::min(pause * 2, std::chrono::microseconds(2000));
    }
    return fd;
  }

  /// Reads what was appended since the last time. Needs the lock.
  Result<void> replay(int fd) {
    struct stat info {};
    if (::fstat(fd, &info) != 0) return fail(errno_error("stat file store " + path_, errno));
    if (info.st_size < offset_)
      return fail(ErrorCode::kCorrupt, "file store " + path_ + " became shorter; delete it and start again");
    std::string bytes(static_cast<std::size_t>(info.st_size - offset_), '\0');
    std::size_t have = 0;
    while (have < bytes.size()) {
      const ssize_t n = retry_eintr([&] {
        return ::pread(fd, bytes.data() + have, bytes.size() - have, offset_ + static_cast<off_t>(have));
      });
      if (n < 0) return fail(errno_error("read file store " + path_, errno));
      if (n == 0)
        return fail(ErrorCode::kCorrupt, "file store " + path_ + " became shorter while it was read");
      have += static_cast<std::size_t>(n);
    }
    const auto done = replay_file_records(bytes, map_);
    if (!done) return fail("file store " + path_, done.error());
    offset_ += static_cast<off_t>(*done);
    if (*done != bytes.size())
      return fail(ErrorCode::kCorrupt,
                  "file store {} ends within a record at byte {}: not a store's file, or a rank died while "
                  "it wrote; delete it and start again",
                  path_, offset_);
    return {};
  }

  /// One write, so that a process which dies leaves a whole record or none. Needs the exclusive lock.
  Result<void> append_records(int fd, Result<std::string> records) {
    if (!records) return fail(std::move(records).error());
    struct stat before {};
    if (::fstat(fd, &before) != 0) return fail(errno_error("stat file store " + path_, errno));
    if (auto written = write_all(fd, *records); !written) {
      // Disk full: take the beginning of the record back, the others can go on.
      if (::ftruncate(fd, before.st_size) != 0)
        return fail(errno_error("truncate file store " + path_, errno));
      return fail("file store " + path_, std::move(written).error());
    }
    return {};
  }

  const std::string path_;
  const std::int64_t world_size_;
  const dev_t device_;
  const ino_t inode_;
  std::mutex mutex_;   // guards what follows; not held while waiting for keys
  FileRecordMap map_;  // everything before offset_
  off_t offset_ = 0;   // end of the last whole record that was read
  std::optional<Error> failure_;
};

}  // namespace

Result<std::unique_ptr<Store>> open_file_store(const std::string& path, std::int64_t world_size) {
  const UniqueFd fd(retry_eintr([&] { return ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644); }));
  if (!fd) {
    Error error = errno_error("open file store " + path, errno);
    error.message += "; give a file in an existing directory that every rank can write";
    return fail(std::move(error));
  }
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) return fail(errno_error("stat file store " + path, errno));
  if (!S_ISREG(info.st_mode))
    return fail(ErrorCode::kInvalidArgument, "open file store " + path + ": not a regular file");
  auto store = std::make_unique<FileStore>(path, world_size, info.st_dev, info.st_ino);
  MUSTER_OK(store->enter());
  return store;
}

}  // namespace muster
