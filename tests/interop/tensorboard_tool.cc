// SPDX-License-Identifier: Apache-2.0
// Writes an event file that the real tensorboard reads: tensorboard_tool DIRECTORY. The histogram's values
// are read from standard input, native float32.
#include <cstdio>
#include <vector>

#include <muster/tensorboard.h>

using namespace muster;

namespace {

Result<void> write(const char* directory) {
  std::vector<float> values(1 << 20);
  values.resize(std::fread(values.data(), sizeof(float), values.size(), stdin));
  MUSTER_TRY(const auto writer, SummaryWriter::create(directory));
  for (int step = 0; step < 100; ++step) writer->add_scalar("train/loss", 1.0 / (step + 1), step);
  writer->add_scalar("train/accuracy", 0.25, std::int64_t{1} << 40);
  writer->add_histogram("fc1.weight", values, 7);
  constexpr int kHeight = 3, kWidth = 5;
  for (const int channels : {1, 3, 4}) {
    std::vector<std::uint8_t> pixels(static_cast<std::size_t>(kHeight * kWidth * channels));
    for (std::size_t i = 0; i < pixels.size(); ++i) pixels[i] = static_cast<std::uint8_t>(7 * i);
    const std::string tag = "image" + std::to_string(channels);
    MUSTER_OK(writer->add_image(tag, {pixels, kHeight, kWidth, channels}, 9));
  }
  MUSTER_OK(writer->close());
  std::printf("%s\n", writer->path().c_str());
  return {};
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  const auto done = write(argv[1]);
  if (!done) std::fprintf(stderr, "tensorboard_tool: %s\n", done.error().message.c_str());
  return done ? 0 : 1;
}
