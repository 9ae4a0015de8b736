// SPDX-License-Identifier: Apache-2.0
// Emulated CUDA: cuDNN's backend descriptors, and the three passes of a convolution in plain loops on the
// stream. Of three engines the first computes by Winograd, the second rounds float32 to TF32 (not really),
// the third is plain; each spoils the workspace that it asked for. Refuses what does not fit together, mixed
// formats, pointers that break a promised alignment, and as cuDNN has no engine for some shapes, more than
// one group and multiples of 5 input channels.
#include <array>
#include <cstdio>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "tests/support/emulated_cuda/cudnn.h"
#include "tests/support/host_device.h"
#include "worker_runtime/ops/cast/half.h"

struct cudnnContext {
  cudaStream_t stream = nullptr;
};

namespace {

constexpr std::int64_t kWorkspace = 1000, kEngines = 3;
thread_local std::string last_error;

cudnnStatus_t refuse(cudnnStatus_t status, const std::string& why) {
  last_error = "emulated cuDNN: " + why;
  return status;
}
cudnnStatus_t refuse(const std::string& why) {
  return refuse(CUDNN_STATUS_BAD_PARAM, why);
}

struct Descriptor {
  cudnnBackendDescriptorType_t type;
  bool finalized = false;
  std::map<int, std::vector<std::uint8_t>> values = {};  // by attribute
  std::int64_t engine = -1;                              // of an engine, its configuration and plan
  const Descriptor* operation = nullptr;                 // likewise

  template <class T>
  [[nodiscard]] std::vector<T> list(int name) const {
    const auto found = values.find(name);
    if (found == values.end()) return {};
    std::vector<T> made(found->second.size() / sizeof(T));
    std::memcpy(made.data(), found->second.data(), found->second.size());
    return made;
  }
  template <class T>
  [[nodiscard]] T one(int name) const {
    const std::vector<T> all = list<T>(name);
    return all.size() == 1 ? all[0] : T{};
  }
  [[nodiscard]] const Descriptor* of(int name) const {
    return static_cast<const Descriptor*>(one<cudnnBackendDescriptor_t>(name));
  }
};

struct Tensor {
  explicit Tensor(const Descriptor& from)
      : dims(from.list<std::int64_t>(CUDNN_ATTR_TENSOR_DIMENSIONS)),
        strides(from.list<std::int64_t>(CUDNN_ATTR_TENSOR_STRIDES)),
        id(from.one<std::int64_t>(CUDNN_ATTR_TENSOR_UNIQUE_ID)),
        alignment(from.one<std::int64_t>(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT)) {
    const auto type = from.one<cudnnDataType_t>(CUDNN_ATTR_TENSOR_DATA_TYPE);
    dtype = type == CUDNN_DATA_BFLOAT16 ? muster::DType::kBFloat16
            : type == CUDNN_DATA_HALF   ? muster::DType::kFloat16
                                        : muster::DType::kFloat32;
  }
  [[nodiscard]] bool is(bool nhwc) const {
    using Strides = std::vector<std::int64_t>;
    const std::int64_t c = dims[1], h = dims[2], w = dims[3];
    return strides == (nhwc ? Strides{c * h * w, 1, w * c, c} : Strides{c * h * w, h * w, w, 1});
  }
  [[nodiscard]] std::int64_t at(std::int64_t a, std::int64_t b, std::int64_t c, std::int64_t d) const {
    return a * strides[0] + b * strides[1] + c * strides[2] + d * strides[3];
  }
  [[nodiscard]] std::vector<float> zeros() const {
    return std::vector<float>(static_cast<std::size_t>(dims[0] * strides[0]));
  }
  // As one copy each way, whose ends the address sanitizer checks: this file is compiled without it.
  [[nodiscard]] std::vector<float> loaded(const void* from) const {
    std::vector<float> made = zeros();
    std::vector<std::byte> bytes(made.size() * muster::size_of(dtype));
    std::memcpy(bytes.data(), from, bytes.size());
    for (std::size_t i = 0; i < made.size(); ++i)
      made[i] = muster::nn::load<1>(bytes.data(), dtype, static_cast<std::int64_t>(i)).v[0];
    return made;
  }
  void store(const std::vector<float>& values, void* to) const {
    std::vector<std::byte> bytes(values.size() * muster::size_of(dtype));
    for (std::size_t i = 0; i < values.size(); ++i)
      muster::nn::store<1>(bytes.data(), dtype, static_cast<std::int64_t>(i), {{values[i]}});
    std::memcpy(to, bytes.data(), bytes.size());
  }
  std::vector<std::int64_t> dims, strides;
  std::int64_t id, alignment;
  muster::DType dtype = muster::DType::kFloat32;
};

/// The attributes of a pass' operation: x, w, y, the convolution, alpha, beta.
std::array<int, 6> names_of(cudnnBackendDescriptorType_t pass) {
  if (pass == CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR) return {704, 703, 705, 702, 700, 701};
  if (pass == CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR)
    return {710, 709, 711, 708, 706, 707};
  return {716, 715, 717, 714, 712, 713};
}

struct Convolution {
  explicit Convolution(const Descriptor& operation)
      : pass(operation.type),
        x(*operation.of(names_of(pass)[0])),
        w(*operation.of(names_of(pass)[1])),
        y(*operation.of(names_of(pass)[2])) {
    const Descriptor& conv = *operation.of(names_of(pass)[3]);
    stride = conv.list<std::int64_t>(CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES).at(0);
    padding = conv.list<std::int64_t>(CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS).at(0);
  }
  /// Why not; "" if it does.
  [[nodiscard]] std::string fits() const {
    for (const Tensor* each : {&x, &w, &y}) {
      if (each->dims.size() != 4 || each->strides.size() != 4) return "a tensor without four dimensions";
      if (each->dtype != x.dtype) return "tensors of different types";
    }
    for (const bool nhwc : {false, true})
      if (x.is(nhwc) && w.is(nhwc) && y.is(nhwc)) {
        const auto size = [&](std::size_t i) {
          return (x.dims[i] + 2 * padding - w.dims[i]) / stride + 1 == y.dims[i];
        };
        return x.dims[0] == y.dims[0] && w.dims[0] == y.dims[1] && x.dims[1] % w.dims[1] == 0 && size(2) &&
                       size(3)
                   ? ""
                   : "shapes that do not fit";
      }
    return "tensors of different layouts";
  }
  void run(void* x_at, void* w_at, void* y_at) const {
    const bool forward = pass == CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR;
    const bool data = pass == CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR;
    std::vector<float> of_x = data ? x.zeros() : x.loaded(x_at);
    std::vector<float> of_w = forward || data ? w.loaded(w_at) : w.zeros();
    std::vector<float> of_y = forward ? y.zeros() : y.loaded(y_at);
    for (std::int64_t n = 0; n < y.dims[0]; ++n)
      for (std::int64_t o = 0; o < y.dims[1]; ++o)
        for (std::int64_t i = 0; i < y.dims[2]; ++i)
          for (std::int64_t j = 0; j < y.dims[3]; ++j)
            for (std::int64_t p = 0; p < w.dims[2]; ++p)
              for (std::int64_t q = 0; q < w.dims[3]; ++q) {
                const std::int64_t row = i * stride + p - padding, column = j * stride + q - padding;
                if (row < 0 || row >= x.dims[2] || column < 0 || column >= x.dims[3]) continue;
                float* const x_place = &of_x[static_cast<std::size_t>(x.at(n, 0, row, column))];
                float* const w_place = &of_w[static_cast<std::size_t>(w.at(o, 0, p, q))];
                float& y_value = of_y[static_cast<std::size_t>(y.at(n, o, i, j))];
                for (std::int64_t c = 0; c < w.dims[1]; ++c) {
                  float& x_value = x_place[c * x.strides[1]];
                  float& w_value = w_place[c * w.strides[1]];
                  if (forward)
                    y_value += x_value * w_value;
                  else if (data)
                    x_value += y_value * w_value;
                  else
                    w_value += y_value * x_value;
                }
              }
    if (forward)
      y.store(of_y, y_at);
    else if (data)
      x.store(of_x, x_at);
    else
      w.store(of_w, w_at);
  }
  cudnnBackendDescriptorType_t pass;
  Tensor x, w, y;
  std::int64_t stride = 1, padding = 0;
};

cudnnStatus_t finalize_operation(const Descriptor& operation) {
  const std::array<int, 6> names = names_of(operation.type);
  for (std::size_t i = 0; i < 4; ++i)
    if (operation.of(names[i]) == nullptr) return refuse("a convolution lacks a tensor");
  if (operation.one<float>(names[4]) != 1 || operation.one<float>(names[5]) != 0)
    return refuse("alpha is not 1, or beta not 0");
  const Convolution convolution(operation);
  if (const std::string why = convolution.fits(); !why.empty()) return refuse(why);
  if (convolution.x.dims[1] % 5 == 0 || convolution.x.dims[1] != convolution.w.dims[1])
    return refuse(CUDNN_STATUS_NOT_SUPPORTED, "no engine");
  return CUDNN_STATUS_SUCCESS;
}

}  // namespace

#pragma GCC visibility push(default)

cudnnStatus_t cudnnCreate(cudnnHandle_t* handle) {
  *handle = new cudnnContext;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnDestroy(cudnnHandle_t handle) {
  delete handle;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
  handle->stream = stream;
  return CUDNN_STATUS_SUCCESS;
}
std::size_t cudnnGetVersion() {
  return 0;
}
const char* cudnnGetErrorString(cudnnStatus_t status) {
  return status == CUDNN_STATUS_NOT_SUPPORTED ? "not supported" : "bad parameter";
}
void cudnnGetLastErrorString(char* message, std::size_t size) {
  (void)std::snprintf(message, size, "%s", last_error.c_str());
}
cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type,
                                           cudnnBackendDescriptor_t* made) {
  *made = new Descriptor{type};
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t descriptor) {
  delete static_cast<Descriptor*>(descriptor);
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, std::int64_t count,
                                       const void* values) {
  auto& to = *static_cast<Descriptor*>(descriptor);
  if (to.finalized) return refuse("an attribute of a finalized descriptor");
  if (type == CUDNN_TYPE_BACKEND_DESCRIPTOR)
    for (std::int64_t i = 0; i < count; ++i) {
      cudnnBackendDescriptor_t each = nullptr;
      std::memcpy(&each, static_cast<const cudnnBackendDescriptor_t*>(values) + i, sizeof each);
      if (each == nullptr || !static_cast<Descriptor*>(each)->finalized)
        return refuse("a descriptor that is not finalized");
    }
  const bool wide = type == CUDNN_TYPE_INT64 || type == CUDNN_TYPE_HANDLE || type == CUDNN_TYPE_VOID_PTR ||
                    type == CUDNN_TYPE_BACKEND_DESCRIPTOR;
  const auto* const bytes = static_cast<const std::uint8_t*>(values);
  to.values[name].assign(bytes, bytes + count * (wide ? 8 : 4));
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t /*type*/, std::int64_t asked,
                                       std::int64_t* count, void* values) {
  const auto& from = *static_cast<const Descriptor*>(descriptor);
  const bool is_engine = from.type == CUDNN_BACKEND_ENGINE_DESCRIPTOR && from.engine >= 0;
  if (!from.finalized && !is_engine) return refuse("a descriptor that is not finalized is asked");
  *count = 1;
  const auto descriptor_at = [values](std::int64_t i) -> Descriptor& {
    return *static_cast<Descriptor*>(static_cast<cudnnBackendDescriptor_t*>(values)[i]);
  };
  if (name == CUDNN_ATTR_ENGINEHEUR_RESULTS) {
    *count = std::min(asked, kEngines);
    const Descriptor& graph = *from.of(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH);
    for (std::int64_t i = 0; i < *count; ++i) {
      descriptor_at(i).engine = i;
      descriptor_at(i).operation = graph.of(CUDNN_ATTR_OPERATIONGRAPH_OPS);
      descriptor_at(i).finalized = true;
    }
  } else if (name == CUDNN_ATTR_ENGINECFG_ENGINE) {
    descriptor_at(0).engine = from.engine;
  } else if (name == CUDNN_ATTR_ENGINE_NUMERICAL_NOTE) {
    constexpr std::array<cudnnBackendNumericalNote_t, kEngines> kNotes{CUDNN_NUMERICAL_NOTE_WINOGRAD,
                                                                       CUDNN_NUMERICAL_NOTE_TENSOR_CORE,
                                                                       CUDNN_NUMERICAL_NOTE_STRICT_NAN_PROP};
    *static_cast<cudnnBackendNumericalNote_t*>(values) = kNotes.at(static_cast<std::size_t>(from.engine));
  } else if (name == CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE) {
    *static_cast<std::int64_t*>(values) = kWorkspace;
  } else {
    return refuse("an attribute that is not emulated");
  }
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t descriptor) {
  auto& made = *static_cast<Descriptor*>(descriptor);
  if (made.type >= CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR &&
      made.type <= CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR) {
    if (const cudnnStatus_t status = finalize_operation(made); status != CUDNN_STATUS_SUCCESS) return status;
  } else if (made.type == CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR) {
    const Descriptor* const config = made.of(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG);
    if (config == nullptr) return refuse("a plan without an engine");
    made.engine = config->engine;
    made.operation = config->operation;
  }
  made.finalized = true;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan,
                                  cudnnBackendDescriptor_t pack) {
  const auto& from = *static_cast<const Descriptor*>(plan);
  const auto& variants = *static_cast<const Descriptor*>(pack);
  if (!from.finalized || !variants.finalized) return refuse("what is executed is not finalized");
  const Convolution convolution(*from.operation);
  const auto ids = variants.list<std::int64_t>(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
  const auto pointers = variants.list<void*>(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
  auto* const workspace = variants.one<void*>(CUDNN_ATTR_VARIANT_PACK_WORKSPACE);
  std::array<void*, 3> memory{};
  for (std::size_t i = 0; i < 3; ++i) {
    const Tensor& tensor = *std::array{&convolution.x, &convolution.w, &convolution.y}.at(i);
    for (std::size_t k = 0; k < ids.size() && k < pointers.size(); ++k)
      if (ids[k] == tensor.id) memory.at(i) = pointers[k];
    if (memory.at(i) == nullptr || reinterpret_cast<std::intptr_t>(memory.at(i)) % tensor.alignment != 0)
      return refuse("a tensor is not there, or not aligned as it was said to be");
  }
  if (workspace == nullptr) return refuse("no workspace");
  reinterpret_cast<muster::testing::HostStream*>(handle->stream)->enqueue([=] {
    std::memset(workspace, 0x7f, kWorkspace);
    convolution.run(memory[0], memory[1], memory[2]);
  });
  return CUDNN_STATUS_SUCCESS;
}

#pragma GCC visibility pop
