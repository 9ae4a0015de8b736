// SPDX-License-Identifier: Apache-2.0
// What tensorboard reads of it is tested in tests/interop/test_tensorboard.py.
#include <atomic>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <sys/resource.h>
#include <thread>

#include <muster/tensorboard.h>

#include "tests/support/catch.h"
#include "tests/support/temporary_directory.h"

using namespace muster;

namespace {

std::unique_ptr<SummaryWriter> writer_in(const std::string& directory,
                                         const SummaryWriterOptions& options = {}) {
  auto made = SummaryWriter::create(directory, options);
  REQUIRE_OK(made);
  return *std::move(made);
}

/// No file of this process grows beyond its size now by more than `bytes`.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit tight{bytes, before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &tight);
    handler_ = std::signal(SIGXFSZ, SIG_IGN);
  }
  ~FileSizeLimit() { lift(); }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;
  void lift() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }

 private:
  rlimit before_{};
  void (*handler_)(int) = nullptr;
};

}  // namespace

TEST_CASE("summaries are in the file after flush, also those of several threads") {
  const test::TemporaryDirectory directory;
  const auto writer = writer_in(directory.path() + "/runs/one");
  const auto empty = std::filesystem::file_size(writer->path());
  writer->add_scalar("loss", 1, 0);
  REQUIRE_OK(writer->flush());
  const auto record = std::filesystem::file_size(writer->path()) - empty;
  REQUIRE(record > 0);
  std::vector<std::thread> threads;
  threads.reserve(4);
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      for (int i = 0; i < 100; ++i) writer->add_scalar("loss", i, 1);
    });
  for (std::thread& thread : threads) thread.join();
  REQUIRE_OK(writer->close());
  // A step other than 0 is encoded in two more bytes.
  REQUIRE(std::filesystem::file_size(writer->path()) >= empty + record + 400 * record);
  REQUIRE(writer->dropped() == 0);
}

TEST_CASE("two writers of a second have two files") {
  const test::TemporaryDirectory directory;
  const auto one = writer_in(directory.path()), other = writer_in(directory.path());
  REQUIRE(one->path() != other->path());
}

TEST_CASE("a histogram without a finite value and summaries after close are not written") {
  const test::TemporaryDirectory directory;
  const auto writer = writer_in(directory.path());
  const auto empty = std::filesystem::file_size(writer->path());
  writer->add_histogram("none", {}, 1);
  writer->add_histogram("nan", std::vector<float>{NAN, INFINITY}, 1);
  REQUIRE_OK(writer->close());
  writer->add_scalar("late", 1, 1);
  REQUIRE_OK(writer->close());
  REQUIRE(std::filesystem::file_size(writer->path()) == empty);
  REQUIRE(writer->dropped() == 1);
}

TEST_CASE("what does not fit the queue is dropped and counted") {
  const test::TemporaryDirectory directory;
  const auto writer = writer_in(directory.path(), {.max_queue_bytes = 100'000});
  const std::vector<float> large(100'000);
  writer->add_histogram("large", large, 1);
  writer->add_scalar("small", 1, 1);
  REQUIRE(writer->dropped() == 1);
  REQUIRE_OK(writer->close());
}

TEST_CASE("an image must fit its pixels") {
  const test::TemporaryDirectory directory;
  const auto writer = writer_in(directory.path());
  const std::vector<std::uint8_t> pixels(12);
  REQUIRE_OK(writer->add_image("good", {pixels, 2, 2, 3}, 1));
  REQUIRE(
      writer->add_image("bad", {pixels, 2, 3, 3}, 1).error().message ==
      "add_image 'bad': 12 bytes for 2 x 3 pixels of 3 channels; give height * width * channels bytes, 1, 3 "
      "or 4 channels, sides up to 32768");
  REQUIRE_FALSE(writer->add_image("bad", {pixels, 3, 2, 2}, 1));
  REQUIRE_FALSE(writer->add_image("bad", {pixels, -2, -2, 3}, 1));
  REQUIRE_FALSE(writer->add_image("bad", {{}, 0, 0, 3}, 1));
}

TEST_CASE("an error of the disk stays, loses what follows and leaves whole records") {
  const test::TemporaryDirectory directory;
  const auto writer = writer_in(directory.path());
  writer->add_scalar("before", 1, 1);
  REQUIRE_OK(writer->flush());
  const auto size = std::filesystem::file_size(writer->path());
  FileSizeLimit limit(size + 20);
  writer->add_scalar("torn", 1, 2);
  const auto failed = writer->flush();
  limit.lift();
  REQUIRE_FALSE(failed);
  REQUIRE(failed.error().message.find(writer->path() + ": ") != std::string::npos);
  REQUIRE(failed.error().message.find("EFBIG") != std::string::npos);
  REQUIRE(std::filesystem::file_size(writer->path()) == size);
  writer->add_scalar("after", 1, 3);
  REQUIRE(writer->close().error().message == failed.error().message);
  REQUIRE(writer->dropped() == 2);
  REQUIRE(std::filesystem::file_size(writer->path()) == size);
}

TEST_CASE("a directory that cannot be made is an error at once") {
  const test::TemporaryDirectory directory;
  std::ofstream(directory.path() + "/file") << "here";
  const auto failed = SummaryWriter::create(directory.path() + "/file/runs");
  REQUIRE(failed.error().message.find("TensorBoard's directory " + directory.path() + "/file/runs: ") == 0);
}
