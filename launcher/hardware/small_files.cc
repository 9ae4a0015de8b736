// SPDX-License-Identifier: Apache-2.0
#include "launcher/hardware/small_files.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "rendezvous/base/syscall.h"

namespace muster::launcher {

std::vector<std::string> list_directory(const std::string& path) {
  std::vector<std::string> out;
  std::error_code unreadable;
  for (std::filesystem::directory_iterator entry(path, unreadable), end; !unreadable && entry != end;
       entry.increment(unreadable))
    if (std::string name = entry->path().filename(); !name.starts_with('.')) out.push_back(std::move(name));
  std::sort(out.begin(), out.end());
  return out;
}

std::string first_line(const std::string& path) {
  const auto text = read_file(path, 4096);
  return text ? text->substr(0, text->find('\n')) : std::string();
}

}  // namespace muster::launcher
