// SPDX-License-Identifier: Apache-2.0
// What is read of sysfs and procfs. Whatever cannot be read is empty.
#pragma once

#include <algorithm>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "rendezvous/base/syscall.h"

namespace muster::launcher {

/// Names in a directory, sorted; empty if it cannot be read.
[[nodiscard]] inline std::vector<std::string> list_directory(const std::string& path) {
  std::vector<std::string> out;
  std::error_code unreadable;
  for (std::filesystem::directory_iterator entry(path, unreadable), end; !unreadable && entry != end;
       entry.increment(unreadable))
    if (std::string name = entry->path().filename(); !name.starts_with('.')) out.push_back(std::move(name));
  std::ranges::sort(out);
  return out;
}

/// The first line of a small file, without the newline; empty if it cannot be read.
[[nodiscard]] inline std::string first_line(const std::string& path) {
  const auto text = read_file(path, 4096);
  return text ? text->substr(0, text->find('\n')) : std::string();
}

}  // namespace muster::launcher
