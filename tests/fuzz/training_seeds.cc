// SPDX-License-Identifier: Apache-2.0
// Writes the seeds of fuzz_idx, fuzz_safetensors, fuzz_safetensors_header and fuzz_checkpoint_state: small
// files of each shape. Usage: training_seeds <a folder for each, in this order>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "tests/support/safetensors_file.h"
#include "worker_runtime/checkpoint/step_directory.h"

namespace {

using namespace muster;

bool write(const std::string& path, std::string_view bytes) {
  std::ofstream file(path, std::ios::binary);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  return file.good();
}

// As idx_reader.h reads it: two zeros, unsigned bytes, how many dimensions; these, the highest byte first;
// data.
std::string idx(const std::vector<std::uint8_t>& dims) {
  std::string out("\0\0\x08", 3);
  out.push_back(static_cast<char>(dims.size()));
  std::size_t total = 1;
  for (const std::uint8_t dim : dims) {
    out += std::string("\0\0\0", 3) + static_cast<char>(dim);
    total *= dim;
  }
  for (std::size_t i = 0; i < total; ++i) out.push_back(static_cast<char>(i));
  return out;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) {
    std::fprintf(stderr,
                 "usage: training_seeds <idx corpus> <safetensors corpus> <header corpus> <state corpus>\n");
    return 2;
  }
  const std::string idx_folder = argv[1], file_folder = argv[2], header_folder = argv[3];
  bool good = write(idx_folder + "/labels", idx({5})) && write(idx_folder + "/images", idx({2, 3, 4}));
  good = good && write(idx_folder + "/short", idx({2, 3, 4}).substr(0, 20));
  // The first as gzip(1) would store it: header, one block, CRC-32 and size.
  constexpr std::uint8_t kPacked[] = {0x1f, 0x8b, 0x08, 0x00, 0x00, 0x00, 0x00, 0x00, 0x04, 0x03, 0x01, 0x0d,
                                      0x00, 0xf2, 0xff, 0x00, 0x00, 0x08, 0x01, 0x00, 0x00, 0x00, 0x05, 0x00,
                                      0x01, 0x02, 0x03, 0x04, 0x9b, 0x79, 0xc0, 0x9d, 0x0d, 0x00, 0x00, 0x00};
  good = good && write(idx_folder + "/packed", {reinterpret_cast<const char*>(kPacked), sizeof kPacked});

  const std::string data("0123456789abcdefghijklmnopqrstuv");
  using View = safetensors::TensorView;
  const std::vector<View> weights = {
      {"layer.weight", DType::kFloat32, {2, 3}, std::string_view(data).substr(0, 24)},
      {"layer.bias", DType::kFloat32, {2}, std::string_view(data).substr(24, 8)}};
  const std::vector<View> scalar = {{"step", DType::kFloat32, {}, std::string_view(data).substr(0, 4)}};
  const std::vector<View> empty = {{"none", DType::kFloat32, {0, 7}, {}}};
  int number = 0;
  for (const auto& tensors : {weights, scalar, empty, std::vector<View>()}) {
    const auto file = safetensors::serialize(tensors, {{"epoch", "3"}, {"text", "a \"quoted\" one\n"}});
    const auto layout = safetensors::lay_out(tensors, {{"epoch", "3"}});
    good = good && file && layout;
    if (!good) break;
    const std::string name = "/file" + std::to_string(number++);
    good = write(file_folder + name, *file) && write(header_folder + name, layout->header.substr(8));
  }
  Manifest manifest{.model = "garment", .optimizer = "SGD"};
  manifest.files["model.safetensors"] = {1000, 0xE3069283};
  good = good && write(std::string(argv[4]) + "/state", to_text(manifest)) &&
         write(std::string(argv[4]) + "/name", step_name(1234));
  if (!good)
    std::fprintf(stderr, "training_seeds: cannot write to %s, %s, %s or %s\n", argv[1], argv[2], argv[3],
                 argv[4]);
  return good ? 0 : 1;
}
