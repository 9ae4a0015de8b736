// SPDX-License-Identifier: Apache-2.0
#include "launcher/output/tail_reader.h"

#include <algorithm>
#include <fcntl.h>
#include <string_view>
#include <sys/stat.h>
#include <unistd.h>

#include <fmt/format.h>

#include "launcher/output/error_watch.h"
#include "rendezvous/base/syscall.h"

namespace muster::launcher {
namespace {

constexpr int kTries = 16;  // a name that moved while it was opened
constexpr off_t kSearchBytes = off_t{32} << 20;
constexpr std::size_t kTailReadBytes = 64 * 1024;

/// The current file is number 0.
std::string copy_name(const std::string& path, int number) {
  return number == 0 ? path : fmt::format("{}.{}", path, number);
}

UniqueFd open_to_read(const std::string& path) {
  return UniqueFd(retry_eintr([&] { return ::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC); }));
}

bool same_file(const struct stat& a, const struct stat& b) {
  return a.st_ino == b.st_ino && a.st_dev == b.st_dev;
}

struct CopyPart {
  UniqueFd file;
  struct stat info;
};

/// The files of a log, oldest first, as they are now. Opened from the youngest on: one that is renamed
/// meanwhile comes twice, and none is missed.
std::vector<CopyPart> open_log(const std::string& path, int keep) {
  std::vector<CopyPart> out;
  for (int number = 0; number <= keep; ++number) {
    CopyPart part{open_to_read(copy_name(path, number)), {}};
    if (!part.file) {
      if (number > 0) break;
      continue;
    }
    if (::fstat(part.file.get(), &part.info) != 0) continue;
    if (out.empty() || !same_file(out.back().info, part.info)) out.push_back(std::move(part));
  }
  std::ranges::reverse(out);
  return out;
}

}  // namespace

Result<TailReader> TailReader::open(std::string path, int keep) {
  TailReader out(std::move(path), keep);
  out.file_ = open_to_read(out.path_);
  if (!out.file_) return fail(errno_error("open " + out.path_, errno));
  return out;
}

bool TailReader::is_named(int number) const {
  struct stat ours {
  }, named{};
  return ::fstat(file_.get(), &ours) == 0 && ::stat(copy_name(path_, number).c_str(), &named) == 0 &&
         same_file(ours, named);
}

/// Files move to higher numbers only, so that the search does not miss one. Nothing: it was removed.
std::optional<int> TailReader::number() const {
  for (int number = 0; number <= keep_; ++number)
    if (is_named(number)) return number;
  return std::nullopt;
}

std::size_t TailReader::read(char* into, std::size_t size) {
  while (true) {
    // Before the read: what it does not find was written after this, or into another file.
    const bool renamed = keep_ > 0 && !is_named(0);
    const ssize_t n = retry_eintr([&] { return ::read(file_.get(), into, size); });
    if (n > 0) return static_cast<std::size_t>(n);
    if (!renamed || !next_file()) return 0;
  }
}

/// Opens the file after this one, of one that was removed the oldest that is left.
bool TailReader::next_file() {
  for (int tries = 0; tries < kTries; ++tries) {
    const auto number = this->number();
    if (number == 0) return false;
    int next = number.value_or(keep_ + 1) - 1;
    UniqueFd file = open_to_read(copy_name(path_, next));
    while (!number && !file && next > 0) file = open_to_read(copy_name(path_, --next));
    // Older files are renamed first: if this one has its name still, the next one had its own.
    if (!file || (number && !is_named(*number))) continue;
    skipped_ |= !number;
    file_ = std::move(file);
    moved_ = true;
    return true;
  }
  return false;  // the writer tells when it has renamed them all
}

std::uint64_t TailReader::left() const {
  struct stat info {};
  std::uint64_t out = 0;
  if (::fstat(file_.get(), &info) == 0)
    out =
        static_cast<std::uint64_t>(info.st_size - std::min(info.st_size, ::lseek(file_.get(), 0, SEEK_CUR)));
  for (int newer = number().value_or(keep_ + 1) - 1; newer >= 0; --newer)
    if (::stat(copy_name(path_, newer).c_str(), &info) == 0) out += static_cast<std::uint64_t>(info.st_size);
  return out;
}

std::optional<Cause> find_error_in_log(const std::string& path, int keep, off_t newest_bytes) {
  std::vector<CopyPart> parts = open_log(path, keep);
  if (!parts.empty()) parts.back().info.st_size = std::min(parts.back().info.st_size, newest_bytes);
  off_t size = 0;
  for (const CopyPart& part : parts) size += part.info.st_size;
  const off_t skip_from = kSearchBytes, skip_to = std::max(kSearchBytes, size - kSearchBytes);
  ErrorWatch errors;
  std::string block(kTailReadBytes, '\0');
  off_t begin = 0;  // of the part, in the log
  for (const CopyPart& part : parts) {
    for (off_t at = 0; at < part.info.st_size;) {
      if (begin + at >= skip_from && begin + at < skip_to) {
        errors.feed("\n");  // what follows is no part of this line
        at = skip_to - begin;
        continue;
      }
      const off_t end =
          std::min(part.info.st_size, begin + at < skip_from ? skip_from - begin : part.info.st_size);
      const auto most = std::min(block.size(), static_cast<std::size_t>(end - at));
      const ssize_t n = retry_eintr([&] { return ::pread(part.file.get(), block.data(), most, at); });
      if (n <= 0) break;
      errors.feed(std::string_view(block.data(), static_cast<std::size_t>(n)));
      at += n;
    }
    begin += part.info.st_size;
  }
  errors.finish();
  return errors.found();
}

std::vector<std::string> last_lines_of_log(const std::string& path, std::size_t count,
                                           std::size_t max_bytes) {
  std::string end;
  const std::vector<CopyPart> parts = open_log(path, 1);
  for (auto part = parts.rbegin(); part != parts.rend() && end.size() < max_bytes; ++part) {
    std::string bytes(std::min(static_cast<std::size_t>(part->info.st_size), max_bytes - end.size()), '\0');
    const ssize_t n = ::pread(part->file.get(), bytes.data(), bytes.size(),
                              part->info.st_size - static_cast<off_t>(bytes.size()));
    bytes.resize(n > 0 ? static_cast<std::size_t>(n) : 0);
    end.insert(0, bytes);
  }
  TailBuffer tail(max_bytes);
  tail.append(end);
  return tail.last_lines(count);
}

}  // namespace muster::launcher
