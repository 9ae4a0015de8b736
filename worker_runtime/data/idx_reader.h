// SPDX-License-Identifier: Apache-2.0
// idx_reader: the IDX files of MNIST and its relatives (unsigned bytes, any number of dimensions up to 4),
// plain or gzip. Files are treated as hostile: magic, dimensions and size are checked, memory grows with what
// is really there, and every error names the file and what is wrong with it. Pure apart from read_idx_file.
// Source: the IDX format description of the MNIST database.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <muster/result.h>

namespace muster {

struct IdxArray {
  std::vector<std::uint32_t> dims;
  std::vector<std::uint8_t> data;  // product(dims) bytes, row-major
};

inline constexpr std::size_t kMaxIdxBytes = std::size_t{1} << 30;

/// `file`: all of its bytes, plain or gzip-compressed. `name` is the file in error texts.
[[nodiscard]] Result<IdxArray> parse_idx(const std::string& name, std::string_view file,
                                         std::size_t max_bytes = kMaxIdxBytes);

[[nodiscard]] Result<IdxArray> read_idx_file(const std::string& path, std::size_t max_bytes = kMaxIdxBytes);

}  // namespace muster
