// SPDX-License-Identifier: Apache-2.0
#include <filesystem>
#include <fstream>
#include <libdeflate.h>

#include <muster/datasets.h>

#include "tests/support/catch.h"
#include "tests/support/temporary_directory.h"
#include "worker_runtime/data/idx_reader.h"

using namespace muster;
using Catch::Matchers::Contains;

namespace {

std::string idx(const std::vector<std::uint32_t>& dims, const std::string& data) {
  std::string out{'\0', '\0', '\x08', static_cast<char>(dims.size())};
  for (const std::uint32_t dim : dims)
    for (int shift = 24; shift >= 0; shift -= 8) out.push_back(static_cast<char>(dim >> shift & 0xffU));
  return out + data;
}

Result<IdxArray> parse(const std::string& bytes, std::size_t max_bytes = kMaxIdxBytes) {
  return parse_idx("file", bytes, max_bytes);
}

void write(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

std::string gzip(const std::string& bytes) {
  libdeflate_compressor* const compressor = libdeflate_alloc_compressor(6);
  std::string packed(libdeflate_gzip_compress_bound(compressor, bytes.size()), '\0');
  packed.resize(
      libdeflate_gzip_compress(compressor, bytes.data(), bytes.size(), packed.data(), packed.size()));
  libdeflate_free_compressor(compressor);
  REQUIRE(!packed.empty());
  return packed;
}

}  // namespace

TEST_CASE("an IDX array is read with its dimensions") {
  const auto array = parse(idx({2, 3}, "abcdef"));
  REQUIRE_OK(array);
  REQUIRE(array->dims == std::vector<std::uint32_t>{2, 3});
  REQUIRE(std::string(array->data.begin(), array->data.end()) == "abcdef");
}

TEST_CASE("a damaged IDX file is refused with what is wrong, wherever it is cut") {
  const std::string whole = idx({2, 3}, "abcdef");
  for (std::size_t length = 0; length < whole.size(); ++length) {
    const auto result = parse(whole.substr(0, length));
    REQUIRE_FALSE(result);
    REQUIRE(result.error().code == ErrorCode::kCorrupt);
    REQUIRE_THAT(result.error().message, Contains("file: not a valid IDX file: "));
  }
  REQUIRE_THAT(parse(whole.substr(0, 14)).error().message,
               Contains("truncated: 2x3 = 6 bytes are announced, 2 are there"));
  REQUIRE_THAT(parse(whole + "x").error().message, Contains("bytes after the 6 announced ones"));
  REQUIRE_THAT(parse(std::string("\0\0\x08", 3)).error().message, Contains("it ends after 3 bytes"));
  REQUIRE_THAT(parse("\x1f\x8b\x08").error().message, Contains("file: the gzip stream is damaged"));
  REQUIRE_THAT(parse("not an idx file").error().message, Contains("does not start with two zeros"));
  REQUIRE_THAT(parse(std::string("\0\0\x0d\1\0\0\0\1", 8)).error().message, Contains("element type 13"));
  REQUIRE_THAT(parse(std::string("\0\0\x08\0", 4)).error().message, Contains("0 dimensions"));
  REQUIRE_THAT(parse(std::string("\0\0\x08\x05", 4)).error().message, Contains("5 dimensions"));
  REQUIRE_THAT(parse(idx({2, 0}, "")).error().message, Contains("dimension 1 is 0"));
}

TEST_CASE("an IDX header that announces more than the limit is refused before memory is taken") {
  REQUIRE_THAT(parse(idx({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, "")).error().message,
               Contains("more than the limit"));
  REQUIRE_THAT(parse(idx({10}, "0123456789"), 9).error().message, Contains("more than the limit of 9"));
  REQUIRE_OK(parse(idx({10}, "0123456789"), 10));
}

TEST_CASE("plain and compressed IDX files are read alike") {
  const test::TemporaryDirectory dir;
  write(dir.path() + "/plain", idx({4}, "abcd"));
  write(dir.path() + "/packed.gz", gzip(idx({4}, "abcd")));
  // As pigz and cat make it; the last member is smaller than the others, and gzip(1) ignores what follows it.
  write(dir.path() + "/members.gz",
        gzip(idx({4}, "")) + gzip("") + gzip("abc") + gzip("d") + std::string(512, '\0'));
  for (const char* name : {"/plain", "/packed.gz", "/members.gz"}) {
    const auto array = read_idx_file(dir.path() + name);
    REQUIRE_OK(array);
    REQUIRE(std::string(array->data.begin(), array->data.end()) == "abcd");
  }
}

TEST_CASE("a damaged gzip stream is named with its file") {
  const test::TemporaryDirectory dir;
  const std::string path = dir.path() + "/images.gz";
  std::string noise;
  for (int i = 0; i < 100000; ++i) noise.push_back(static_cast<char>(i * 7919 >> 3));
  const std::string packed = gzip(idx({100000}, noise));
  write(path, packed.substr(0, packed.size() / 2));
  REQUIRE(read_idx_file(path).error().message == path + ": the gzip stream is damaged or truncated");
  // Cut within the checksum at the end: the data is complete, its proof is not.
  write(path, packed.substr(0, packed.size() - 6));
  REQUIRE_FALSE(read_idx_file(path));
  std::string flipped = packed;
  flipped[packed.size() / 2] = static_cast<char>(flipped[packed.size() / 2] ^ 0x55);
  write(path, flipped);
  const auto result = read_idx_file(path);
  REQUIRE_FALSE(result);
  REQUIRE(result.error().code == ErrorCode::kCorrupt);
  REQUIRE_THAT(result.error().message, Contains(path));
  // A trailer that announces more bytes than there are.
  for (const int byte : {1, 3}) {
    std::string lying = packed;
    lying[packed.size() - static_cast<std::size_t>(byte)] ^= 0x40;
    write(path, lying);
    REQUIRE_FALSE(read_idx_file(path));
  }
  REQUIRE(read_idx_file(dir.path() + "/missing").error().code == ErrorCode::kNotFound);
  REQUIRE_FALSE(read_idx_file(dir.path()));
}

TEST_CASE("a gzip stream of more bytes than the limit is refused") {
  const test::TemporaryDirectory dir;
  const std::string path = dir.path() + "/zeros.gz";
  write(path, gzip(idx({1000000}, std::string(1000000, '\0'))));
  REQUIRE_OK(read_idx_file(path, 1000000));
  REQUIRE(read_idx_file(path, 999000).error().message == path + ": there are more than 999020 bytes in it");
}

TEST_CASE("FashionMNIST is loaded whole") {
  const auto train = load_fashion_mnist(kFashionMnistDirectory, Split::kTrain);
  REQUIRE_OK(train);
  REQUIRE(train->size() == 60000);
  REQUIRE(train->image_elements() == 784);
  REQUIRE(train->images.size() == 60000 * 784);
  const auto test = load_fashion_mnist(kFashionMnistDirectory, Split::kTest);
  REQUIRE_OK(test);
  REQUIRE(test->size() == 10000);
  std::vector<int> of_class(10);
  for (const std::uint8_t label : test->labels) ++of_class[label];
  REQUIRE(of_class == std::vector<int>(10, 1000));
}

TEST_CASE("a data directory that does not hold the set is refused with what to do") {
  const test::TemporaryDirectory dir;
  const auto empty = load_fashion_mnist(dir.path(), Split::kTrain);
  REQUIRE(empty.error().message ==
          "data directory " + dir.path() +
              " has neither train-images-idx3-ubyte nor train-images-idx3-ubyte.gz; install "
              "dataset-fashion-mnist or name its directory with --data");
  REQUIRE(load_fashion_mnist(dir.path() + "/no", Split::kTrain).error().code == ErrorCode::kNotFound);
}

TEST_CASE("images and labels that do not belong together are refused") {
  const test::TemporaryDirectory dir;
  const std::string images = dir.path() + "/i";
  const std::string labels = dir.path() + "/l";
  write(images, idx({2, 2, 2}, "abcdefgh"));
  write(labels, idx({3}, std::string("\0\1\2", 3)));
  REQUIRE_THAT(load_idx_dataset(images, labels, 10).error().message, Contains("has 2 images but"));
  write(labels, idx({2}, std::string("\0\x0a", 2)));
  REQUIRE_THAT(load_idx_dataset(images, labels, 10).error().message,
               Contains("label 10 at position 1 is not below 10"));
  write(labels, idx({2}, std::string("\0\x09", 2)));
  REQUIRE_OK(load_idx_dataset(images, labels, 10));
  REQUIRE_THAT(load_idx_dataset(labels, images, 10).error().message,
               Contains("has 1 dimensions, images have 3"));
}
