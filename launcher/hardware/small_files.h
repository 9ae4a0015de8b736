// SPDX-License-Identifier: Apache-2.0
// What is read of sysfs and procfs. Whatever cannot be read is empty.
#pragma once

#include <string>
#include <vector>

namespace muster::launcher {

/// Names in a directory, sorted; empty if it cannot be read.
[[nodiscard]] std::vector<std::string> list_directory(const std::string& path);

/// The first line of a small file, without the newline; empty if it cannot be read.
[[nodiscard]] std::string first_line(const std::string& path);

}  // namespace muster::launcher
