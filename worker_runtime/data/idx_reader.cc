// SPDX-License-Identifier: Apache-2.0
#include "worker_runtime/data/idx_reader.h"

#include <algorithm>
#include <fcntl.h>
#include <memory>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <zlib.h>

#include "rendezvous/base/syscall.h"
#include "rendezvous/base/unique_fd.h"

namespace muster {
namespace {

constexpr std::size_t kMaxDims = 4;
constexpr std::size_t kBlock = std::size_t{4} << 20;

tl::unexpected<Error> corrupt(const std::string& name, const std::string& what) {
  return fail(ErrorCode::kCorrupt, name + ": not a valid IDX file: " + what);
}

std::uint32_t big_endian(const std::uint8_t* bytes) {
  return std::uint32_t{bytes[0]} << 24 | std::uint32_t{bytes[1]} << 16 | std::uint32_t{bytes[2]} << 8 |
         bytes[3];
}

std::string describe(const std::vector<std::uint32_t>& dims) {
  return fmt::format("{}", fmt::join(dims, "x"));
}

/// zlib puts its own idea of the file's name, "<fd:3>: ", in front.
std::string without_name(const std::string& text) {
  const std::size_t colon = text.find(": ");
  return colon == std::string::npos ? text : text.substr(colon + 2);
}

struct GzClose {
  void operator()(gzFile_s* file) const { gzclose_r(file); }
};

}  // namespace

Result<IdxArray> parse_idx(const std::string& name, std::vector<std::uint8_t> bytes, std::size_t max_bytes) {
  if (bytes.size() < 4) return corrupt(name, "it ends after " + std::to_string(bytes.size()) + " bytes");
  if (bytes[0] != 0 || bytes[1] != 0)
    return corrupt(
        name, "magic number " + std::to_string(big_endian(bytes.data())) + " does not start with two zeros");
  if (bytes[2] != 0x08)
    return corrupt(name, "element type " + std::to_string(bytes[2]) + " is not 8 (unsigned byte)");
  const std::size_t num_dims = bytes[3], header_bytes = 4 + 4 * num_dims;
  if (num_dims < 1 || num_dims > kMaxDims)
    return corrupt(
        name, std::to_string(num_dims) + " dimensions, 1 to " + std::to_string(kMaxDims) + " are supported");
  if (bytes.size() < header_bytes) return corrupt(name, "it ends within the list of dimensions");

  IdxArray array;
  std::uint64_t total = 1;
  for (std::size_t i = 0; i < num_dims; ++i) {
    array.dims.push_back(big_endian(&bytes[4 + 4 * i]));
    if (array.dims.back() == 0) return corrupt(name, "dimension " + std::to_string(i) + " is 0");
  }
  for (const std::uint32_t dim : array.dims) {
    total *= dim;  // at most max_bytes * 2^32: no overflow
    if (total > max_bytes)
      return corrupt(name,
                     describe(array.dims) + " bytes are more than the limit of " + std::to_string(max_bytes));
  }
  const std::size_t have = bytes.size() - header_bytes;
  if (have < total)
    return corrupt(name, "truncated: " + describe(array.dims) + " = " + std::to_string(total) +
                             " bytes are announced, " + std::to_string(have) + " are there");
  if (have > total)
    return corrupt(name, "there are bytes after the " + std::to_string(total) + " announced ones");
  bytes.erase(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(header_bytes));
  array.data = std::move(bytes);
  return array;
}

Result<IdxArray> read_idx_file(const std::string& path, std::size_t max_bytes) {
  UniqueFd fd(retry_eintr([&] { return ::open(path.c_str(), O_RDONLY | O_CLOEXEC); }));
  if (!fd) return fail(errno_error("open " + path, errno));
  const std::unique_ptr<gzFile_s, GzClose> file(gzdopen(fd.get(), "rb"));
  if (!file) return fail(ErrorCode::kExhausted, "open " + path + ": out of memory");
  fd.release();  // gzclose_r closes it
  gzbuffer(file.get(), 1 << 18);
  // Memory grows with what is there, whatever the header says; of a file that is too large not all is read.
  std::vector<std::uint8_t> bytes;
  for (std::size_t have = 0; have <= max_bytes + 4 + 4 * kMaxDims;) {
    const std::size_t want = std::min(std::max(kBlock, have), std::size_t{1} << 30);
    bytes.resize(have + want);
    const int got = gzread(file.get(), bytes.data() + have, static_cast<unsigned>(want));
    int code = Z_OK;
    const char* text = gzerror(file.get(), &code);
    if (code == Z_ERRNO) return fail(errno_error("read " + path, errno));
    if (code == Z_BUF_ERROR) return fail(ErrorCode::kCorrupt, path + ": the gzip stream is truncated");
    if (got < 0)
      return fail(ErrorCode::kCorrupt, path + ": the gzip stream is damaged: " + without_name(text));
    have += static_cast<std::size_t>(got);
    bytes.resize(have);
    if (got == 0) break;
  }
  return parse_idx(path, std::move(bytes), max_bytes);
}

}  // namespace muster
