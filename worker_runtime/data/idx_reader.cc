// SPDX-License-Identifier: Apache-2.0
#include "worker_runtime/data/idx_reader.h"

#include <algorithm>
#include <libdeflate.h>
#include <memory>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "rendezvous/base/syscall.h"

namespace muster {
namespace {

constexpr std::size_t kMaxDims = 4, kMaxHeader = 4 + 4 * kMaxDims;
constexpr std::string_view kGzipMagic = "\x1f\x8b";
constexpr std::size_t kDeflateRatio = 1032;  // what one byte can become at most

template <class... Args>
tl::unexpected<Error> corrupt(const std::string& name, fmt::format_string<Args...> what, Args&&... args) {
  return fail(ErrorCode::kCorrupt,
              name + ": not a valid IDX file: " + fmt::format(what, std::forward<Args>(args)...));
}

std::uint32_t big_endian(const std::uint8_t* bytes) {
  return std::uint32_t{bytes[0]} << 24 | std::uint32_t{bytes[1]} << 16 | std::uint32_t{bytes[2]} << 8 |
         bytes[3];
}

/// The members of a gzip file; what follows them is ignored, as gzip(1) does. By libdeflate: FashionMNIST's
/// 47 MB take 65 ms, by zlib 180 ms.
Result<std::vector<std::uint8_t>> unpack(const std::string& name, std::string_view packed, std::size_t most) {
  const std::unique_ptr<libdeflate_decompressor, decltype(&libdeflate_free_decompressor)> decompressor(
      libdeflate_alloc_decompressor(), libdeflate_free_decompressor);
  if (!decompressor) return fail(ErrorCode::kExhausted, "unpack " + name + ": out of memory");
  // The last member's size is at the end. It may lie: memory grows with what is there.
  std::size_t size = 0;
  for (std::size_t i = 1; i <= std::min<std::size_t>(4, packed.size()); ++i)
    size = size << 8 | static_cast<std::uint8_t>(packed[packed.size() - i]);
  std::vector<std::uint8_t> bytes(std::min({size, most, kDeflateRatio * packed.size()}));
  std::size_t have = 0;
  while (packed.substr(0, kGzipMagic.size()) == kGzipMagic) {
    std::size_t taken = 0, made = 0;
    const libdeflate_result result =
        libdeflate_gzip_decompress_ex(decompressor.get(), packed.data(), packed.size(), bytes.data() + have,
                                      bytes.size() - have, &taken, &made);
    if (result == LIBDEFLATE_INSUFFICIENT_SPACE && bytes.size() < most) {
      bytes.resize(std::min(most, 2 * bytes.size() + kDeflateRatio));
    } else if (result == LIBDEFLATE_INSUFFICIENT_SPACE) {
      return fail(ErrorCode::kCorrupt, fmt::format("{}: there are more than {} bytes in it", name, most));
    } else if (result != LIBDEFLATE_SUCCESS) {
      return fail(ErrorCode::kCorrupt, name + ": the gzip stream is damaged or truncated");
    } else {
      have += made;
      packed.remove_prefix(taken);
    }
  }
  bytes.resize(have);
  return bytes;
}

}  // namespace

Result<IdxArray> parse_idx(const std::string& name, std::string_view file, std::size_t max_bytes) {
  IdxArray array;
  std::vector<std::uint8_t>& bytes = array.data;
  if (file.substr(0, kGzipMagic.size()) == kGzipMagic) {
    MUSTER_TRY(bytes, unpack(name, file, max_bytes + kMaxHeader));
  } else {
    bytes.assign(file.begin(), file.end());
  }
  if (bytes.size() < 4) return corrupt(name, "it ends after {} bytes", bytes.size());
  if (bytes[0] != 0 || bytes[1] != 0)
    return corrupt(name, "magic number {} does not start with two zeros", big_endian(bytes.data()));
  if (bytes[2] != 0x08) return corrupt(name, "element type {} is not 8 (unsigned byte)", bytes[2]);
  const std::size_t num_dims = bytes[3], header_bytes = 4 + 4 * num_dims;
  if (num_dims < 1 || num_dims > kMaxDims)
    return corrupt(name, "{} dimensions, 1 to {} are supported", num_dims, kMaxDims);
  if (bytes.size() < header_bytes) return corrupt(name, "it ends within the list of dimensions");
  for (std::size_t i = 0; i < num_dims; ++i) {
    array.dims.push_back(big_endian(&bytes[4 + 4 * i]));
    if (array.dims.back() == 0) return corrupt(name, "dimension {} is 0", i);
  }
  const std::string shape = fmt::format("{}", fmt::join(array.dims, "x"));
  std::uint64_t total = 1;
  for (const std::uint32_t dim : array.dims) {
    total *= dim;  // at most max_bytes * 2^32: no overflow
    if (total > max_bytes) return corrupt(name, "{} bytes are more than the limit of {}", shape, max_bytes);
  }
  const std::size_t have = bytes.size() - header_bytes;
  if (have < total)
    return corrupt(name, "truncated: {} = {} bytes are announced, {} are there", shape, total, have);
  if (have > total) return corrupt(name, "there are bytes after the {} announced ones", total);
  bytes.erase(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(header_bytes));
  return array;
}

Result<IdxArray> read_idx_file(const std::string& path, std::size_t max_bytes) {
  MUSTER_TRY(const std::string file, read_file(path, max_bytes + kMaxHeader));
  return parse_idx(path, file, max_bytes);
}

}  // namespace muster
