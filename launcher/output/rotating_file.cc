// SPDX-License-Identifier: Apache-2.0
#include "launcher/output/rotating_file.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <fcntl.h>
#include <sys/stat.h>
#include <utility>

#include <climits>
#include <fmt/format.h>

#include "rendezvous/base/syscall.h"

namespace muster::launcher {
namespace {

constexpr std::size_t kNone = std::string_view::npos;

/// Whether a line ends with the byte at `at`. Of \r\n it ends with the \n.
bool ends_line(std::string_view bytes, std::size_t at) {
  return bytes[at] == '\n' || (bytes[at] == '\r' && at + 1 < bytes.size() && bytes[at + 1] != '\n');
}

/// Behind the last line end within the first `room` bytes; 0: there is none.
std::size_t last_end(std::string_view bytes, std::size_t room) {
  const std::string_view part = bytes.substr(0, room);
  for (std::size_t at = part.find_last_of("\r\n"); at != kNone; at = part.find_last_of("\r\n", at - 1)) {
    if (ends_line(bytes, at)) return at + 1;
    if (at == 0) break;
  }
  return 0;
}

/// Behind the first line end; all of it where there is none.
std::size_t first_end(std::string_view bytes) {
  for (std::size_t at = bytes.find_first_of("\r\n"); at != kNone; at = bytes.find_first_of("\r\n", at + 1))
    if (ends_line(bytes, at)) return at + 1;
  return bytes.size();
}

}  // namespace

RotatingFile::RotatingFile(UniqueFd file, std::string path, std::string link, Rotation rules,
                           std::function<void()> turning)
    : file_(std::move(file)),
      path_(std::move(path)),
      link_(std::move(link)),
      rules_(rules),
      turning_(std::move(turning)),
      limit_(rules.max_bytes > 0 ? rules.max_bytes : UINT64_MAX) {
  struct stat info {};
  if (::fstat(file_.get(), &info) == 0) size_ = static_cast<std::uint64_t>(info.st_size);
}

bool RotatingFile::at_line_start(std::string_view next) const {
  return last_ == '\n' || (last_ == '\r' && !next.empty() && next[0] != '\n');
}

/// How many of `bytes`, which are more than there is room for, go into this file; 0: none, it is full.
std::size_t RotatingFile::cut_for(std::string_view bytes) const {
  const std::uint64_t room = limit_ > size_ ? limit_ - size_ : 0;
  if (const std::size_t cut = last_end(bytes, std::min<std::uint64_t>(room, bytes.size())); cut > 0)
    return cut;
  if (size_ > 0 && at_line_start(bytes)) return 0;
  // The line began in this file, or is longer than any: it stays whole.
  const std::uint64_t most = limit_ + kLongestLine > size_ ? limit_ + kLongestLine - size_ : 0;
  return std::min<std::uint64_t>(first_end(bytes), most);
}

void RotatingFile::write(std::string_view bytes) {
  if (error_ != 0) bytes = resume(bytes);
  while (!bytes.empty() && error_ == 0) {
    if (limit_ - std::min(limit_, size_) >= bytes.size()) return put(bytes);
    std::size_t cut = cut_for(bytes);
    if (cut == 0) {
      if (rotate()) continue;
      cut = first_end(bytes);
    }
    const std::string_view part = bytes.substr(0, cut);
    bytes.remove_prefix(cut);
    put(part);
    if (error_ != 0) drop(bytes);
  }
}

void RotatingFile::put(std::string_view bytes) {
  if (bytes.empty()) return;
  while (!bytes.empty()) {
    const ssize_t n = retry_eintr([&] { return ::write(file_.get(), bytes.data(), bytes.size()); });
    if (n < 0) {
      error_ = errno;
      torn_ = last_ != '\n';
      return drop(bytes);
    }
    size_ += static_cast<std::uint64_t>(n);
    last_ = bytes[static_cast<std::size_t>(n) - 1];
    bytes.remove_prefix(static_cast<std::size_t>(n));
  }
}

void RotatingFile::drop(std::string_view bytes) {
  if (bytes.empty()) return;
  missing_ += bytes.size();
  last_ = bytes.back();
}

/// Tries to write again, and returns what is left to be written.
std::string_view RotatingFile::resume(std::string_view bytes) {
  if (!at_line_start(bytes)) {
    const std::size_t end = first_end(bytes);
    drop(bytes.substr(0, end));
    bytes.remove_prefix(end);
  }
  if (bytes.empty()) return bytes;
  const std::string note = fmt::format("{}muster: {} bytes are missing here: {}\n", torn_ ? "\n" : "",
                                       missing_ - announced_, errno_text(error_));
  const ssize_t n = retry_eintr([&] { return ::write(file_.get(), note.data(), note.size()); });
  if (n != static_cast<ssize_t>(note.size())) {
    // Half a note helps nobody.
    if (n > 0) (void)::ftruncate(file_.get(), static_cast<off_t>(size_));
    drop(bytes);
    return {};
  }
  size_ += note.size();
  announced_ = missing_;
  torn_ = false;
  error_ = 0;
  last_ = '\n';
  return bytes;
}

void RotatingFile::go_on(std::uint64_t missing) {
  while (held_ < rules_.keep && ::access(fmt::format("{}.{}", path_, held_ + 1).c_str(), F_OK) == 0) ++held_;
  for (int number = 1; number <= held_; ++number) link_to(number);
  const UniqueFd reader(::open(path_.c_str(), O_RDONLY | O_CLOEXEC));
  if (size_ > 0) (void)!::pread(reader.get(), &last_, 1, static_cast<off_t>(size_) - 1);
  if (missing > 0)
    write(fmt::format("{}muster: the log writer was killed: up to {} bytes are missing here\n",
                      last_ == '\n' ? "" : "\n", missing));
}

bool finish_rotation(const std::string& path, int keep) {
  const auto name = [&](int number) { return fmt::format("{}.{}", path, number); };
  const std::string draft = path + ".new";
  struct stat fresh {};
  if (::stat(draft.c_str(), &fresh) != 0) return true;
  struct stat current {
  }, newest{};
  const bool here = ::stat(path.c_str(), &current) == 0;
  const bool moved = ::stat(name(1).c_str(), &newest) == 0;
  const bool linked = here && moved && current.st_ino == newest.st_ino && current.st_dev == newest.st_dev;
  int gap = 1;
  while (gap < keep && ::access(name(gap).c_str(), F_OK) == 0) ++gap;
  // Older files give way from the oldest on: where none is missing, none has yet.
  const bool shifting = gap < keep && ::access(name(gap + 1).c_str(), F_OK) == 0;
  if (here && !linked && !shifting) {
    ::unlink(draft.c_str());
    return false;
  }
  if (here && !linked) {
    for (int number = gap - 1; number >= 1; --number)
      ::rename(name(number).c_str(), name(number + 1).c_str());
    if (::link(path.c_str(), name(1).c_str()) != 0) ::rename(path.c_str(), name(1).c_str());
  }
  ::rename(draft.c_str(), path.c_str());
  return true;
}

/// <path>.new becomes <path>; at each moment <path> exists, unless the file system knows no hard links.
bool RotatingFile::rotate() {
  const auto name = [&](int number) { return fmt::format("{}.{}", path_, number); };
  const std::string draft = path_ + ".new";
  UniqueFd fresh(retry_eintr(
      [&] { return ::open(draft.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0666); }));
  if (!fresh) {
    rotation_error_ = errno;
    limit_ = size_ + rules_.max_bytes;  // larger is better than lost; tried again then
    return false;
  }
  if (turning_) turning_();
  bool moved = true;
  for (int number = std::min(held_, rules_.keep - 1); number >= 1; --number)
    moved = ::rename(name(number).c_str(), name(number + 1).c_str()) == 0 && moved;
  const std::string newest = name(1);
  if (held_ > 0 && rules_.keep == 1) ::unlink(newest.c_str());
  moved =
      (::link(path_.c_str(), newest.c_str()) == 0 || ::rename(path_.c_str(), newest.c_str()) == 0) && moved;
  moved = ::rename(draft.c_str(), path_.c_str()) == 0 && moved;
  rotation_error_ = moved ? 0 : errno;
  file_ = std::move(fresh);
  size_ = 0;
  limit_ = rules_.max_bytes;
  if (held_ < rules_.keep) link_to(++held_);
  if (turning_) turning_();
  return true;
}

/// <link>.<number>, beside <link>, to <path>.<number>.
void RotatingFile::link_to(int number) const {
  if (link_.empty()) return;
  std::string target(PATH_MAX, '\0');
  const ssize_t n = ::readlink(link_.c_str(), target.data(), target.size());
  if (n <= 0) return;
  target.resize(static_cast<std::size_t>(n));
  (void)!::symlink(fmt::format("{}.{}", target, number).c_str(), fmt::format("{}.{}", link_, number).c_str());
}

}  // namespace muster::launcher
