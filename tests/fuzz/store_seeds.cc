// SPDX-License-Identifier: Apache-2.0
// Writes the seeds of the store's fuzz targets: one request of every kind, in every generation that has it.
// Usage: store_seeds <folder for fuzz_store_decoder> <folder for fuzz_store_session>
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "rendezvous/store/wire.h"

namespace {

using namespace muster::wire;

// As store_session_fuzz.cc reads it: pieces of at most 63 bytes, each after a byte with client, silence and
// length.
std::string in_pieces(std::string_view bytes, int client) {
  std::string out;
  while (!bytes.empty()) {
    const std::size_t size = std::min<std::size_t>(bytes.size(), 63);
    out.push_back(
        static_cast<char>(size << 2 | (size == bytes.size() ? 2 : 0) | static_cast<std::size_t>(client)));
    out.append(bytes.substr(0, size));
    bytes.remove_prefix(size);
  }
  return out;
}

bool write(const std::string& path, std::string_view bytes) {
  std::ofstream file(path, std::ios::binary);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  return file.good();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: store_seeds <decoder corpus> <session corpus> <relay corpus>\n");
    return 2;
  }
  const std::vector<std::string_view> items = {"/a", "1", "/b", "2"};
  bool good = true;
  for (const Generation generation : {Generation::kModern, Generation::kTorch21, Generation::kTorch20}) {
    std::string all;
    if (generation == Generation::kModern) encode({.op = Op::kValidate, .number = kMagic}, all);
    for (std::size_t op = 1; op < kNumOps; ++op) {
      if (opcode_byte(static_cast<Op>(op), generation) < 0) continue;
      encode(
          {.op = static_cast<Op>(op), .key = "/a", .value = "5", .desired = "7", .number = 2, .items = items},
          all, generation);
    }
    const std::string name = "/generation" + std::to_string(static_cast<int>(generation));
    good = good && write(argv[1] + name, "\x07" + all);
    good = good && write(argv[3] + name, all + all);
    good = good && write(argv[2] + name, in_pieces(all, 0) + in_pieces(all, 1));
    // And of a torchrun job.
    std::string jobs;
    if (generation == Generation::kModern) encode({.op = Op::kValidate, .number = kMagic}, jobs);
    const std::vector<std::string_view> rounds = {"/torch.rendezvous.j.0/a", "1", "/torch.rendezvous.k", "2"};
    for (const Op op : {Op::kCompareSet, Op::kSet, Op::kWait, Op::kMultiSet, Op::kDeleteKey}) {
      if (opcode_byte(op, generation) < 0) continue;
      encode({.op = op, .key = "/torch.rendezvous.j", .desired = "7", .items = rounds}, jobs, generation);
    }
    good = good && write(argv[2] + name + "_job", in_pieces(jobs, 0) + in_pieces(jobs, 1));
  }
  if (!good) std::fprintf(stderr, "store_seeds: cannot write to %s, %s or %s\n", argv[1], argv[2], argv[3]);
  return good ? 0 : 1;
}
