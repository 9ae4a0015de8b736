// SPDX-License-Identifier: Apache-2.0
// Data sets from files of arbitrary content: an image folder whose one image the input is, and a CIFAR-10
// batch. A sample of the right size, or an error with a text.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <unistd.h>
#include <vector>

#include <muster/datasets.h>

namespace {

struct Folder {
  std::string path = (std::filesystem::temp_directory_path() / "muster-fuzz-XXXXXX").string();
  Folder() {
    if (::mkdtemp(path.data()) == nullptr) std::abort();
    std::filesystem::create_directory(path + "/class");
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
};

const std::string& folder() {
  static const Folder made;
  return made.path;
}

void write(const std::string& name, const std::uint8_t* data, std::size_t size) {
  std::ofstream file(folder() + name, std::ios::binary);
  file.write(reinterpret_cast<const char*>(data), static_cast<std::streamsize>(size));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace muster;
  write("/test_batch.bin", data, size);
  const auto cifar = load_cifar10(folder(), Split::kTest);
  if (!cifar ? cifar.error().message.empty() : cifar->images.size() != cifar->labels.size() * 3072)
    std::abort();
  write("/class/image.jpg", data, size);
  using namespace transforms;
  for (const Compose& transform :
       {Compose{Resize(9), CenterCrop(8)}, Compose{RandomResizedCrop(8), ToTensor()}}) {
    const auto images = ImageFolder::create(folder(), {.transform = transform, .scaled_decode = true});
    if (!images) std::abort();
    std::vector<float> input(3 * 8 * 8);
    std::int32_t label = -1;
    SampleSlot slot{input.data(), &label, SampleGenerator(size, 0, 0)};
    const auto got = images->get(0, slot);
    if (got ? label != 0 : got.error().message.find("image.jpg: ") == std::string::npos) std::abort();
  }
  return 0;
}
