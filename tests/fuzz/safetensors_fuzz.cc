// SPDX-License-Identifier: Apache-2.0
// parse on arbitrary bytes: tensors within the file whose bytes fit their shapes, which survive being written
// and read again; or an error of one line.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "tests/support/safetensors_file.h"

namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace muster;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const auto view = safetensors::parse(bytes);
  if (!view) {
    require(!view.error().message.empty() && view.error().message.find('\n') == std::string::npos);
    return 0;
  }
  std::size_t total = 0;
  for (const safetensors::TensorView& tensor : view->tensors) {
    require(tensor.bytes.empty() ||
            (tensor.bytes.data() >= bytes.data() &&
             tensor.bytes.data() + tensor.bytes.size() <= bytes.data() + bytes.size()));
    require(tensor.bytes.size() % size_of(tensor.dtype) == 0);
    total += tensor.bytes.size();
  }
  require(total <= size);
  const auto written = safetensors::serialize(view->tensors, view->metadata);
  require(written.has_value());
  const auto again = safetensors::parse(*written);
  require(again.has_value() && again->tensors.size() == view->tensors.size() &&
          again->metadata == view->metadata);
  for (const safetensors::TensorView& tensor : view->tensors) {
    const safetensors::TensorView* found = again->find(tensor.name);
    require(found != nullptr && found->bytes == tensor.bytes && found->shape == tensor.shape);
  }
  return 0;
}
