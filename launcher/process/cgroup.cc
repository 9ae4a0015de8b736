// SPDX-License-Identifier: Apache-2.0
#include "launcher/process/cgroup.h"

#include <algorithm>
#include <charconv>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <memory>
#include <poll.h>
#include <unistd.h>

#include "launcher/process/memory_kills.h"
#include "rendezvous/base/syscall.h"
#include "rendezvous/base/unique_fd.h"

namespace muster::launcher::cgroup {
namespace {

constexpr std::size_t kMaxFileBytes = std::size_t{4} << 20;
constexpr int kMaxDepth = 32;

std::vector<std::string> subdirectories(const std::string& directory) {
  struct Close {
    void operator()(DIR* open) const { ::closedir(open); }
  };
  std::vector<std::string> out;
  const std::unique_ptr<DIR, Close> open(::opendir(directory.c_str()));
  if (!open) return out;
  while (const dirent* entry = ::readdir(open.get())) {
    const std::string_view name = entry->d_name;
    if (entry->d_type == DT_DIR && name != "." && name != "..")
      out.push_back(directory + "/" + std::string(name));
  }
  return out;
}

void collect_processes(const std::string& directory, int depth, std::vector<pid_t>& out) {
  if (const auto text = read_file(directory + "/cgroup.procs", kMaxFileBytes)) {
    const char* at = text->data();
    const char* const end = at + text->size();
    while (at < end) {
      pid_t pid = 0;
      const auto [next, error] = std::from_chars(at, end, pid);
      if (error != std::errc{}) break;
      out.push_back(pid);
      at = next < end ? next + 1 : end;
    }
  }
  if (depth == 0) return;
  for (const std::string& below : subdirectories(directory)) collect_processes(below, depth - 1, out);
}

bool remove_below(const std::string& directory, int depth) {
  if (::rmdir(directory.c_str()) == 0 || errno == ENOENT) return true;
  if (depth == 0) return false;
  for (const std::string& below : subdirectories(directory)) remove_below(below, depth - 1);
  return ::rmdir(directory.c_str()) == 0;
}

}  // namespace

std::string own_directory(const std::string& proc) {
  const auto cgroup = read_file(proc + "/cgroup", kMaxFileBytes);
  const auto mountinfo = read_file(proc + "/mountinfo", kMaxFileBytes);
  if (!cgroup || !mountinfo) return {};
  for (const std::string& directory : candidates(*cgroup, *mountinfo)) {
    std::vector<pid_t> here;
    collect_processes(directory, 0, here);
    if (std::find(here.begin(), here.end(), ::getpid()) != here.end()) return directory;
  }
  return {};
}

bool lists(const std::string& file, std::string_view controller) {
  const auto text = read_file(file, kMaxFileBytes);
  if (!text) return false;
  std::string_view rest = *text;
  while (!rest.empty()) {
    const auto end = rest.find_first_of(" \n");
    if (rest.substr(0, end) == controller) return true;
    rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
  }
  return false;
}

int write(const std::string& file, std::string_view text) {
  const UniqueFd fd(::open(file.c_str(), O_WRONLY | O_CLOEXEC));
  if (!fd) return errno;
  const ssize_t n = retry_eintr([&] { return ::write(fd.get(), text.data(), text.size()); });
  if (n < 0) return errno;
  return static_cast<std::size_t>(n) == text.size() ? 0 : EIO;
}

std::vector<pid_t> processes(const std::string& directory) {
  std::vector<pid_t> out;
  collect_processes(directory, kMaxDepth, out);
  return out;
}

bool kill(const std::string& directory) {
  return write(directory + "/cgroup.kill", "1") == 0;
}

bool wait_until_empty(const std::string& directory, Instant deadline) {
  const UniqueFd events(::open((directory + "/cgroup.events").c_str(), O_RDONLY | O_CLOEXEC));
  if (!events) return errno == ENOENT;
  while (true) {
    char text[256];
    const ssize_t n = retry_eintr([&] { return ::pread(events.get(), text, sizeof text, 0); });
    if (n <= 0) return false;
    if (std::string_view(text, static_cast<std::size_t>(n)).find("populated 0") != std::string_view::npos)
      return true;
    const auto left = std::chrono::ceil<Millis>(deadline - SteadyClock::now());
    if (left.count() <= 0) return false;
    pollfd change{events.get(), POLLPRI, 0};
    retry_eintr([&] { return ::poll(&change, 1, static_cast<int>(left.count())); });
  }
}

bool remove(const std::string& directory) {
  return remove_below(directory, kMaxDepth);
}

std::optional<std::int64_t> memory_kills(const std::string& directory) {
  const auto text = read_file(directory + "/memory.events", kMaxFileBytes);
  return text ? parse_oom_kills(*text) : std::nullopt;
}

}  // namespace muster::launcher::cgroup
