// SPDX-License-Identifier: Apache-2.0
// Images and transforms against Pillow and torchvision (tests/data/make_fixtures.py images), image folders,
// CIFAR-10.
#include <cmath>
#include <filesystem>
#include <fstream>

#include <muster/data_loader.h>
#include <muster/datasets.h>
#include <muster/transforms.h>

#include "tests/support/catch.h"
#include "tests/support/fixture.h"
#include "tests/support/temporary_directory.h"
#include "worker_runtime/data/image_decoder.h"

using namespace muster;
using namespace muster::transforms;

namespace {

const std::vector<std::string> kFiles{"420.jpg",  "422.jpg",   "444.jpg",       "progressive.jpg", "grey.jpg",
                                      "cmyk.jpg", "rgb.png",   "rgba.png",      "palette.png",     "grey.png",
                                      "bit.png",  "alpha.png", "interlaced.png"};

Image decode(const std::vector<std::uint8_t>& bytes, const Window* window = nullptr) {
  const auto size = image_size(bytes);
  REQUIRE_OK(size);
  Image image;
  REQUIRE_OK(decode_image(bytes, *size, window == nullptr ? Window{0, 0, size->width, size->height} : *window,
                          {}, image));
  return image;
}

/// order_summary() of make_fixtures.py.
std::vector<std::int64_t> summary(const Image& image) {
  const std::vector<std::int32_t> values(image.pixels.begin(), image.pixels.end());
  return {test::crc32_of(values), static_cast<std::int64_t>(values.size())};
}

void write(const std::filesystem::path& path, const std::vector<std::uint8_t>& bytes) {
  std::filesystem::create_directories(path.parent_path());
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
}

const Normalize kImageNet{{0.485F, 0.456F, 0.406F}, {0.229F, 0.224F, 0.225F}};

/// get(index) of a data set, outside of a loader.
struct Got {
  std::vector<float> input;
  std::int32_t label = -1;
};
Result<Got> get(const ImageFolder& folder, std::int32_t index, std::uint64_t seed = 0) {
  Got got;
  std::size_t count = 1;
  for (const int dim : folder.layout().shape) count *= static_cast<std::size_t>(dim);
  got.input.resize(count);
  SampleSlot slot{got.input.data(), &got.label, SampleGenerator(seed, 0, static_cast<std::uint64_t>(index))};
  MUSTER_OK(folder.get(index, slot));
  return got;
}

}  // namespace

TEST_CASE("JPEGs and PNGs of every kind have the pixels of PIL's convert(RGB)") {
  const test::Fixture fixture("pytorch_images.safetensors");
  for (const std::string& name : kFiles) {
    INFO(name);
    const Image image = decode(fixture.get<std::uint8_t>("file/" + name));
    const auto expected = fixture.get<std::int64_t>("rgb/" + name);
    REQUIRE(image.width == expected[0]);
    REQUIRE(image.height == expected[1]);
    REQUIRE(test::crc32_of(image.pixels) == expected[2]);
  }
}

TEST_CASE("any window of an image is decoded to the pixels that the whole has there") {
  const test::Fixture fixture("pytorch_images.safetensors");
  SampleGenerator random(1, 0, 0);
  for (const std::string& name : kFiles) {
    const auto bytes = fixture.get<std::uint8_t>("file/" + name);
    const Image whole = decode(bytes);
    for (int i = 0; i < 60; ++i) {
      const int width = random.integer(1, whole.width + 1), height = random.integer(1, whole.height + 1);
      const Window window{random.integer(0, whole.width - width + 1),
                          random.integer(0, whole.height - height + 1), width, height};
      Image expected = whole;
      const Step crop{Step::Kind::kCrop, window.left, window.top, width, height};
      apply_steps({&crop, 1}, expected);
      INFO(name << " " << window.left << "," << window.top << " " << width << "x" << height);
      REQUIRE(decode(bytes, &window).pixels == expected.pixels);
    }
  }
}

TEST_CASE("a truncated or damaged image is an error that says so, as is one beyond the limit") {
  const test::Fixture fixture("pytorch_images.safetensors");
  Image image;
  for (const std::string name : {"420.jpg", "progressive.jpg", "rgb.png", "interlaced.png"}) {
    auto bytes = fixture.get<std::uint8_t>("file/" + name);
    bytes.resize(bytes.size() - 300);
    const auto size = image_size(bytes);
    REQUIRE_OK(size);
    const auto damaged = decode_image(bytes, *size, {0, 0, size->width, size->height}, {}, image);
    REQUIRE(damaged.error().code == ErrorCode::kCorrupt);
    REQUIRE(damaged.error().message.find("is truncated") != std::string::npos);
    bytes.resize(20);
    REQUIRE(image_size(bytes).error().code == ErrorCode::kCorrupt);
  }
  REQUIRE(image_size({}).error().message == "it is neither JPEG nor PNG");
  // libpng reads past a chunk in front of the one that has the size.
  auto early = fixture.get<std::uint8_t>("file/rgb.png");
  const std::string chunk(
      "\0\0\0\x0b"
      "abCd"
      "\0\0\x23\x28\0\0\x23\x28"
      "abc"
      "\0\0\0\0",
      23);
  early.insert(early.begin() + 8, chunk.begin(), chunk.end());
  REQUIRE(image_size(early).error().message == "it is neither JPEG nor PNG");
  auto wide = fixture.get<std::uint8_t>("file/rgb.png");
  wide[18] = wide[22] = 0xff;
  REQUIRE(image_size(wide).error().message.find("pixels at most") != std::string::npos);
}

TEST_CASE("resizing and cropping give torchvision's pixels") {
  const test::Fixture fixture("pytorch_images.safetensors");
  const Image image = decode(fixture.get<std::uint8_t>("file/420.jpg"));
  SampleGenerator random;
  std::vector<Step> steps;
  const auto transformed = [&](const Compose& transform) {
    Image made = image;
    transform.plan(made.width, made.height, random, steps);
    apply_steps(steps, made);
    return made;
  };
  for (const auto& [height, width] :
       std::vector<std::pair<int, int>>{{32, 32}, {90, 110}, {57, 75}, {5, 3}, {57, 20}, {140, 75}}) {
    const Image resized = transformed({Resize(height, width)});
    INFO(width << "x" << height);
    REQUIRE(resized.width == width);
    REQUIRE(summary(resized) ==
            fixture.get<std::int64_t>("resize/" + std::to_string(height) + "/" + std::to_string(width)));
  }
  for (const int size : {60, 70, 100}) {
    REQUIRE(summary(transformed({CenterCrop(size)})) ==
            fixture.get<std::int64_t>("centre/" + std::to_string(size)));
  }
  const auto crops = fixture.get<std::int32_t>("crops");
  const auto expected = fixture.get<std::uint8_t>("cropped");
  std::vector<std::uint8_t> all;
  for (std::size_t i = 0; i < crops.size(); i += 4) {
    Image cropped = image;
    steps = {{Step::Kind::kCrop, crops[i + 1], crops[i], crops[i + 3], crops[i + 2]},
             {Step::Kind::kResize, 0, 0, 28, 24},
             {Step::Kind::kFlip, 0, 0, 28, 24}};
    apply_steps(steps, cropped);
    all.insert(all.end(), cropped.pixels.begin(), cropped.pixels.end());
  }
  REQUIRE(all == expected);
}

TEST_CASE("the random crop keeps torchvision's bounds and falls back to the middle where nothing fits") {
  std::vector<Step> steps;
  const Compose random_crop{RandomResizedCrop(8, {0.08, 1.0}), RandomHorizontalFlip()};
  int flips = 0;
  double area = 0;
  for (std::uint64_t i = 0; i < 2000; ++i) {
    SampleGenerator random(7, 0, i);
    random_crop.plan(500, 375, random, steps);
    const Step& crop = steps.front();
    REQUIRE(crop.left >= 0);
    REQUIRE(crop.top >= 0);
    REQUIRE(crop.left + crop.width <= 500);
    REQUIRE(crop.top + crop.height <= 375);
    const double aspect = static_cast<double>(crop.width) / crop.height;
    REQUIRE((aspect > 0.74 && aspect < 1.35));
    area += static_cast<double>(crop.width) * crop.height / (500.0 * 375) / 2000;
    flips += steps.size() == 3 ? 1 : 0;
  }
  REQUIRE((flips > 900 && flips < 1100));
  REQUIRE((area > 0.4 && area < 0.6));
  SampleGenerator random(7, 0, 0);
  Compose{RandomResizedCrop(8)}.plan(1000, 10, random, steps);  // no crop of that shape is inside
  REQUIRE(steps.front() == Step{Step::Kind::kCrop, 493, 0, 13, 10});
}

TEST_CASE("transforms that torchvision would refuse, or that leave no common size, are refused") {
  const auto refused = [](const Compose& transform) { return transform.check().error().message; };
  REQUIRE_OK((Compose{Resize(256), CenterCrop(224), ToTensor(), kImageNet}.check()));
  REQUIRE(refused({CenterCrop(224), ToTensor(), kImageNet, kImageNet}) ==
          "transforms: one Normalize, at the end");
  REQUIRE(refused({Resize(256), ToTensor()}).find("would differ in size") != std::string::npos);
  REQUIRE(refused({CenterCrop(8), kImageNet}).find("Normalize follows ToTensor") != std::string::npos);
  REQUIRE(refused({ToTensor(), CenterCrop(8)}).find("behind ToTensor only") != std::string::npos);
  REQUIRE(refused({CenterCrop(0)}).find("sides are 1 to 65535") != std::string::npos);
  REQUIRE(refused({RandomResizedCrop(8, {0.0, 1.0})}).find("RandomResizedCrop takes") != std::string::npos);
  REQUIRE(refused({CenterCrop(8), ToTensor(), Normalize{{0}, {1}}}).find("three") != std::string::npos);
}

TEST_CASE("an image folder has torchvision's classes and order, and its samples torchvision's values") {
  const test::Fixture fixture("pytorch_images.safetensors");
  const test::TemporaryDirectory directory;
  const auto jpeg = fixture.get<std::uint8_t>("file/420.jpg");
  for (const char* const name :
       {"dog/b.JPEG", "dog/a.png", "dog/sub-x/z.jpg", "dog/sub/c.jpg", "cat/1.jpg", "cat/no.txt"})
    write(directory.path() + "/" + name, jpeg);
  const ImageFolderOptions options{.transform = {Resize(40), CenterCrop(32), ToTensor(), kImageNet}};
  const auto folder = ImageFolder::create(directory.path(), options);
  REQUIRE_OK(folder);
  REQUIRE(folder->classes() == std::vector<std::string>{"cat", "dog"});
  std::vector<std::string> paths;
  for (std::int32_t i = 0; i < folder->size(); ++i) {
    paths.push_back(folder->path(i).substr(directory.path().size() + 1));
    REQUIRE(folder->label(i) == (i == 0 ? 0 : 1));
  }
  REQUIRE(paths == std::vector<std::string>{"cat/1.jpg", "dog/a.png", "dog/b.JPEG", "dog/sub/c.jpg",
                                            "dog/sub-x/z.jpg"});
  const auto got = get(*folder, 1);
  REQUIRE_OK(got);
  REQUIRE(got->label == 1);
  REQUIRE(got->input == fixture.get<float>("evaluation"));

  std::filesystem::create_directory(directory.path() + "/empty");
  REQUIRE(ImageFolder::create(directory.path(), options).error().message.find("a class without images") !=
          std::string::npos);
  REQUIRE(ImageFolder::create(directory.path() + "/nowhere", options).error().code == ErrorCode::kNotFound);
}

TEST_CASE("a damaged image is an error that names it, or is replaced by the next one and counted") {
  const test::Fixture fixture("pytorch_images.safetensors");
  const test::TemporaryDirectory directory;
  auto good = fixture.get<std::uint8_t>("file/420.jpg"), bad = good;
  bad.resize(bad.size() / 2);
  write(directory.path() + "/a/0.jpg", bad);
  write(directory.path() + "/a/1.jpg", {1, 2, 3});
  write(directory.path() + "/b/2.jpg", good);
  write(directory.path() + "/b/3.jpg", bad);
  ImageFolderOptions options{.transform = {RandomResizedCrop(16, {1.0, 1.0}, {1.3, 1.3}), ToTensor()}};
  const auto strict = ImageFolder::create(directory.path(), options);
  REQUIRE_OK(strict);
  REQUIRE(get(*strict, 1).error().message == directory.path() + "/a/1.jpg: it is neither JPEG nor PNG");
  options.skip_corrupt = true;
  const auto folder = ImageFolder::create(directory.path(), options);
  REQUIRE_OK(folder);
  for (const std::int32_t index : {0, 1, 2, 3, 0}) {
    const auto got = get(*folder, index);
    REQUIRE_OK(got);
    REQUIRE(got->label == 1);
    REQUIRE(get(*folder, index)->input == got->input);
  }
  const auto corrupt = folder->corrupt();
  REQUIRE(corrupt.size() == 3);
  REQUIRE(corrupt[0] == directory.path() + "/a/0.jpg: the JPEG is truncated");
  std::filesystem::remove(directory.path() + "/b/2.jpg");
  REQUIRE(get(*folder, 2).error().code == ErrorCode::kNotFound);  // a disk that lost a file is not skipped
}

TEST_CASE("scaled decoding gives nearly the same image, uint8 batches the same pixels") {
  const test::Fixture fixture("pytorch_images.safetensors");
  const test::TemporaryDirectory directory;
  write(directory.path() + "/a/0.jpg", fixture.get<std::uint8_t>("file/420.jpg"));
  write(directory.path() + "/a/1.png", fixture.get<std::uint8_t>("file/rgb.png"));
  ImageFolderOptions options{.transform = {Resize(20, 25), ToTensor()}};
  const auto exact = ImageFolder::create(directory.path(), options);
  options.scaled_decode = true;
  const auto scaled = ImageFolder::create(directory.path(), options);
  options.scaled_decode = false;
  options.normalize_on_device = true;
  const auto raw = ImageFolder::create(directory.path(), options);
  REQUIRE_OK(raw);
  for (const std::int32_t index : {0, 1}) {
    const auto a = get(*exact, index)->input, b = get(*scaled, index)->input;
    double squares = 0;
    for (std::size_t i = 0; i < a.size(); ++i)
      squares += std::pow(a[i] - b[i], 2) / static_cast<double>(a.size());
    REQUIRE((index == 1 ? squares == 0 : squares > 0 && -10 * std::log10(squares) > 24));  // PSNR in dB
    std::vector<std::uint8_t> pixels(a.size());
    std::int32_t label = 0;
    SampleSlot slot{pixels.data(), &label, {}};
    REQUIRE_OK(raw->get(index, slot));
    for (std::size_t i = 0; i < a.size(); ++i) REQUIRE(static_cast<float>(pixels[i]) / 255.0F == a[i]);
  }
}

TEST_CASE("CIFAR-10's binary files are read, and refused by what is wrong") {
  const test::TemporaryDirectory directory;
  std::vector<std::uint8_t> record(3073);
  for (std::size_t i = 0; i < record.size(); ++i) record[i] = static_cast<std::uint8_t>(i % 10);
  for (int file = 1; file <= 5; ++file) {
    record[0] = static_cast<std::uint8_t>(file);
    write(directory.path() + "/data_batch_" + std::to_string(file) + ".bin", record);
  }
  const auto train = load_cifar10(directory.path(), Split::kTrain);
  REQUIRE_OK(train);
  REQUIRE(train->size() == 5);
  REQUIRE(train->labels == std::vector<std::uint8_t>{1, 2, 3, 4, 5});
  REQUIRE(train->images[3072] == 1);  // the second image's first value
  REQUIRE(train->layout().shape == std::vector<int>{3, 32, 32});
  const std::string test_file = directory.path() + "/test_batch.bin";
  REQUIRE(load_cifar10(directory.path(), Split::kTest).error().code == ErrorCode::kNotFound);
  record[0] = 10;
  write(test_file, record);
  REQUIRE(load_cifar10(directory.path(), Split::kTest).error().message ==
          test_file + ": label 10 of image 0 is not below 10");
  record.pop_back();
  write(test_file, record);
  REQUIRE(load_cifar10(directory.path(), Split::kTest).error().code == ErrorCode::kCorrupt);
}
