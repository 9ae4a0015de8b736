// SPDX-License-Identifier: Apache-2.0
#include "launcher/output/followed_file.h"

#include <algorithm>
#include <fcntl.h>
#include <sys/stat.h>

#include <fmt/format.h>

#include "rendezvous/base/syscall.h"

namespace muster::launcher {
namespace {

constexpr int kTries = 16;  // a name that moved while it was opened

std::string end_of_file(const std::string& path, std::size_t max_bytes) {
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) return {};
  const off_t size = ::lseek(file.get(), 0, SEEK_END);
  std::string out(std::min(static_cast<std::size_t>(size), max_bytes), '\0');
  const ssize_t n = ::pread(file.get(), out.data(), out.size(), size - static_cast<off_t>(out.size()));
  out.resize(n > 0 ? static_cast<std::size_t>(n) : 0);
  return out;
}

}  // namespace

std::string end_of_log(const std::string& path, std::size_t max_bytes) {
  std::string out = end_of_file(path, max_bytes);
  if (out.size() < max_bytes) out.insert(0, end_of_file(path + ".1", max_bytes - out.size()));
  return out;
}

Result<FollowedFile> FollowedFile::open(std::string path, std::shared_ptr<const LogStreamState> state,
                                        int keep) {
  FollowedFile out(std::move(path), std::move(state), keep);
  out.file_.reset(retry_eintr([&] { return ::open(out.path_.c_str(), O_RDONLY | O_CLOEXEC); }));
  if (!out.file_) return fail(errno_error("open " + out.path_, errno));
  return out;
}

std::string FollowedFile::name(std::uint64_t back) const {
  return back == 0 ? path_ : fmt::format("{}.{}", path_, back);
}

void FollowedFile::rest() {
  if (!file_) return;
  at_ = std::max<off_t>(::lseek(file_.get(), 0, SEEK_CUR), 0);
  file_.reset();
}

/// Opens the file that was being read, or the oldest that is left.
bool FollowedFile::wake() {
  for (int tries = 0; tries < kTries; ++tries) {
    const std::uint64_t turn = state_ ? state_->turn.load() : 0;
    if (turn % 2 != 0) return false;
    const std::uint64_t newest = turn / 2;
    const std::uint64_t number = std::max(number_, newest - std::min(newest, keep_));
    UniqueFd file(retry_eintr([&] { return ::open(name(newest - number).c_str(), O_RDONLY | O_CLOEXEC); }));
    if (state_ && state_->turn.load() != turn) continue;
    if (!file) return false;
    skipped_ += number - number_;
    if (number == number_) ::lseek(file.get(), at_, SEEK_SET);
    number_ = number;
    file_ = std::move(file);
    return true;
  }
  return false;
}

std::size_t FollowedFile::read(char* into, std::size_t size) {
  if (!file_ && !wake()) return 0;
  while (true) {
    // Before the read: what it does not find was written after this, or into another file.
    const std::uint64_t turn = state_ ? state_->turn.load() : 0;
    const ssize_t n = retry_eintr([&] { return ::read(file_.get(), into, size); });
    if (n > 0) return static_cast<std::size_t>(n);
    if (turn / 2 <= number_ || !go_on(turn)) return 0;
  }
}

/// Opens the file after this one. `turn`: as it was before this one was found to be read to its end.
bool FollowedFile::go_on(std::uint64_t turn) {
  for (int tries = 0; tries < kTries; ++tries, turn = state_->turn.load()) {
    if (turn % 2 != 0) return false;  // the bell rings when the names have settled
    const std::uint64_t newest = turn / 2;
    const std::uint64_t next = std::max(number_ + 1, newest - std::min(newest, keep_));
    UniqueFd file(retry_eintr([&] { return ::open(name(newest - next).c_str(), O_RDONLY | O_CLOEXEC); }));
    if (state_->turn.load() != turn) continue;
    if (!file) return false;
    skipped_ += next - (number_ + 1);
    number_ = next;
    file_ = std::move(file);
    moved_ = true;
    return true;
  }
  return false;
}

std::uint64_t FollowedFile::left() const {
  struct stat info {};
  std::uint64_t out = 0;
  if (::fstat(file_.get(), &info) == 0)
    out =
        static_cast<std::uint64_t>(info.st_size - std::min(info.st_size, ::lseek(file_.get(), 0, SEEK_CUR)));
  const std::uint64_t newest = state_ ? state_->turn.load() / 2 : 0;
  for (std::uint64_t back = 0; newest > number_ && back < std::min(newest - number_, keep_ + 1); ++back)
    if (::stat(name(back).c_str(), &info) == 0) out += static_cast<std::uint64_t>(info.st_size);
  return out;
}

}  // namespace muster::launcher
