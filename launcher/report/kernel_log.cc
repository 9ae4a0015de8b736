// SPDX-License-Identifier: Apache-2.0
#include "launcher/report/kernel_log.h"

#include <algorithm>
#include <charconv>
#include <fcntl.h>
#include <unistd.h>

#include "rendezvous/base/syscall.h"

namespace muster::launcher {
namespace {

constexpr std::size_t kMaxLines = 10'000;  // of one look: a driver in distress repeats itself

/// The number that follows `name`, which may be quoted; 0 if there is none.
int number_after(std::string_view line, std::string_view name) {
  const auto at = line.find(name);
  if (at == std::string_view::npos) return 0;
  std::string_view rest = line.substr(at + name.size());
  if (rest.starts_with('\'')) rest.remove_prefix(1);
  int number = 0;
  std::from_chars(rest.data(), rest.data() + rest.size(), number);
  return number;
}

/// Without "6,1234,5678,-;".
std::string_view text_of(std::string_view record) {
  if (record.empty() || record[0] < '0' || record[0] > '9') return record;
  const auto semicolon = record.find(';');
  return semicolon == std::string_view::npos ? record : record.substr(semicolon + 1);
}

}  // namespace

std::optional<Xid> parse_xid(std::string_view line) {
  constexpr std::string_view kBegin = "NVRM: Xid (", kFromNvml = "NVML: Xid (";
  const auto at = std::min(line.find(kBegin), line.find(kFromNvml));
  if (at == std::string_view::npos) return std::nullopt;
  std::string_view rest = line.substr(at + kBegin.size());
  const auto end = rest.find("): ");
  if (end == std::string_view::npos) return std::nullopt;
  std::string_view device = rest.substr(0, end);
  if (device.starts_with("PCI:")) device.remove_prefix(4);
  Xid out;
  out.device = std::string(device.substr(0, device.find(' ')));  // a MIG instance follows the blank
  rest.remove_prefix(end + 3);
  const auto [after, error] = std::from_chars(rest.data(), rest.data() + rest.size(), out.number);
  if (error != std::errc{}) return std::nullopt;
  out.pid = number_after(rest, "pid=");
  return out;
}

std::optional<int> parse_memory_kill(std::string_view line) {
  if (line.find("ut of memory") == std::string_view::npos) return std::nullopt;
  for (const std::string_view words : {"Killed process ", "Kill process "})
    if (const int pid = number_after(line, words); pid > 0) return pid;
  return std::nullopt;
}

KernelLog::KernelLog(const std::string& path)
    : file_(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC)) {
  if (file_) ::lseek(file_.get(), 0, SEEK_END);
}

std::vector<std::string> KernelLog::take_new() {
  std::vector<std::string> out;
  if (!file_) return out;
  std::string block(8192, '\0');
  std::string kept;
  while (out.size() < kMaxLines) {
    const ssize_t n = retry_eintr([&] { return ::read(file_.get(), block.data(), block.size()); });
    if (n < 0 && errno == EPIPE) continue;  // records were overwritten before they were read
    if (n <= 0) break;
    kept.append(block, 0, static_cast<std::size_t>(n));
    std::size_t begin = 0;
    for (auto end = kept.find('\n'); end != std::string::npos; end = kept.find('\n', begin)) {
      const std::string_view line = std::string_view(kept).substr(begin, end - begin);
      if (!line.starts_with(' ')) out.emplace_back(text_of(line));  // else a record's properties
      begin = end + 1;
    }
    kept.erase(0, begin);
  }
  return out;
}

}  // namespace muster::launcher
