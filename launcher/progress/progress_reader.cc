// SPDX-License-Identifier: Apache-2.0
#include "launcher/progress/progress_reader.h"

#include <array>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "rendezvous/base/syscall.h"
#include "rendezvous/base/unique_fd.h"

namespace muster::launcher {

std::optional<SeenProgress> read_progress(const std::string& path) {
  if (path.empty()) return std::nullopt;
  // O_NONBLOCK: the worker may have made a pipe of it.
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  struct stat info {};
  if (!file || ::fstat(file.get(), &info) != 0 || !S_ISREG(info.st_mode)) return std::nullopt;
  std::array<char, kProgressBytes> block;
  const ssize_t n = retry_eintr([&] { return ::pread(file.get(), block.data(), block.size(), 0); });
  if (n <= 0) return std::nullopt;
  SeenProgress out;
  out.word = parse_progress({block.data(), static_cast<std::size_t>(n)});
  out.written_s = info.st_mtim.tv_sec;
  out.mark = out.word.is_page ? out.word.moves
                              : static_cast<std::uint64_t>(info.st_mtim.tv_sec) * 1'000'000'000 +
                                    static_cast<std::uint64_t>(info.st_mtim.tv_nsec);
  if (out.word.is_page && out.word.moves == 0) return std::nullopt;
  return out;
}

}  // namespace muster::launcher
