// SPDX-License-Identifier: Apache-2.0
#include "worker_runtime/data/idx_reader.h"

#include <algorithm>
#include <array>
#include <fcntl.h>
#include <memory>
#include <unistd.h>

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

Result<IdxArray> parse_idx(const std::string& name, const ByteSource& source, std::size_t max_bytes) {
  std::array<std::uint8_t, 4 + 4 * kMaxDims> header{};
  MUSTER_TRY(const std::size_t magic_bytes, source(std::span(header).first(4)));
  if (magic_bytes < 4) return corrupt(name, "it ends after " + std::to_string(magic_bytes) + " bytes");
  if (header[0] != 0 || header[1] != 0)
    return corrupt(
        name, "magic number " + std::to_string(big_endian(header.data())) + " does not start with two zeros");
  if (header[2] != 0x08)
    return corrupt(name, "element type " + std::to_string(header[2]) + " is not 8 (unsigned byte)");
  const std::size_t num_dims = header[3];
  if (num_dims < 1 || num_dims > kMaxDims)
    return corrupt(
        name, std::to_string(num_dims) + " dimensions, 1 to " + std::to_string(kMaxDims) + " are supported");
  MUSTER_TRY(const std::size_t dim_bytes, source(std::span(header).subspan(4, 4 * num_dims)));
  if (dim_bytes < 4 * num_dims) return corrupt(name, "it ends within the list of dimensions");

  IdxArray array;
  std::uint64_t total = 1;
  for (std::size_t i = 0; i < num_dims; ++i) {
    array.dims.push_back(big_endian(&header[4 + 4 * i]));
    if (array.dims.back() == 0) return corrupt(name, "dimension " + std::to_string(i) + " is 0");
  }
  for (const std::uint32_t dim : array.dims) {
    total *= dim;  // at most max_bytes * 2^32: no overflow
    if (total > max_bytes)
      return corrupt(name,
                     describe(array.dims) + " bytes are more than the limit of " + std::to_string(max_bytes));
  }

  // Memory grows block by block, so that a header that lies costs what the file really holds.
  std::size_t have = 0;
  while (have < total) {
    const std::size_t want = std::min<std::size_t>(total - have, std::max(kBlock, have));
    array.data.resize(have + want);
    MUSTER_TRY(const std::size_t got, source(std::span(array.data).subspan(have, want)));
    have += got;
    if (got < want)
      return corrupt(name, "truncated: " + describe(array.dims) + " = " + std::to_string(total) +
                               " bytes are announced, " + std::to_string(have) + " are there");
  }
  std::uint8_t extra = 0;
  MUSTER_TRY(const std::size_t more, source(std::span(&extra, 1)));
  if (more != 0)
    return corrupt(name, "there are bytes after the " + std::to_string(total) + " announced ones");
  return array;
}

Result<IdxArray> read_idx_file(const std::string& path, std::size_t max_bytes) {
  UniqueFd fd(retry_eintr([&] { return ::open(path.c_str(), O_RDONLY | O_CLOEXEC); }));
  if (!fd) return fail(errno_error("open " + path, errno));
  const std::unique_ptr<gzFile_s, GzClose> file(gzdopen(fd.get(), "rb"));
  if (!file) return fail(ErrorCode::kExhausted, "open " + path + ": out of memory");
  fd.release();  // gzclose_r closes it
  gzbuffer(file.get(), 1 << 18);
  const auto source = [&](std::span<std::uint8_t> out) -> Result<std::size_t> {
    std::size_t have = 0;
    while (have < out.size()) {
      const auto want = static_cast<unsigned>(std::min<std::size_t>(out.size() - have, 1U << 30));
      const int got = gzread(file.get(), out.data() + have, want);
      int code = Z_OK;
      const char* text = gzerror(file.get(), &code);
      if (code == Z_ERRNO) return fail(errno_error("read " + path, errno));
      if (code == Z_BUF_ERROR) return fail(ErrorCode::kCorrupt, path + ": the gzip stream is truncated");
      if (got < 0)
        return fail(ErrorCode::kCorrupt, path + ": the gzip stream is damaged: " + without_name(text));
      if (got == 0) break;
      have += static_cast<std::size_t>(got);
    }
    return have;
  };
  return parse_idx(path, source, max_bytes);
}

}  // namespace muster
