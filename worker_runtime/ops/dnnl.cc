// SPDX-License-Identifier: Apache-2.0
// What oneDNN computes on the CPU: general convolutions, and the gradients of large linear layers.
#include <algorithm>
#include <dlfcn.h>

#include <oneapi/dnnl/dnnl.hpp>

#include <muster/check.h>

#include "rendezvous/base/fail.h"
#include "worker_runtime/ops/conv2d/conv2d.h"
#include "worker_runtime/ops/linear/linear.h"

namespace muster::nn {
namespace {

using dnnl::memory;

/// While it lives, the calling thread's OpenMP regions run on one thread; afterwards as before. Around every
/// oneDNN call, because a rank has one core whatever OMP_NUM_THREADS says. The OpenMP runtime is looked up in
/// the process, since oneDNN brings its own: linking another compiler's would make two. A oneDNN without
/// OpenMP has nothing to set.
class OneThread {
 public:
  OneThread() {
    const auto get = reinterpret_cast<int (*)()>(::dlsym(RTLD_DEFAULT, "omp_get_max_threads"));
    set_ = reinterpret_cast<void (*)(int)>(::dlsym(RTLD_DEFAULT, "omp_set_num_threads"));
    if (get == nullptr || set_ == nullptr) return;
    before_ = get();
    set_(1);
  }
  ~OneThread() {
    if (before_ != 0) set_(before_);
  }
  OneThread& operator=(OneThread&&) = delete;  // nor copied

 private:
  void (*set_)(int) = nullptr;
  int before_ = 0;  // 0: no OpenMP
};

/// A tensor as the caller has it (plain) and as the primitive wants it, with the reorder between them where
/// they differ.
class Operand {
 public:
  Operand(const dnnl::engine& engine, const memory::desc& plain, const memory::desc& wanted, bool is_result)
      : plain_(plain, engine, nullptr), wanted_(plain_) {
    if (plain == wanted) return;
    wanted_ = memory(wanted, engine);
    reorder_ = is_result ? dnnl::reorder(wanted_, plain_) : dnnl::reorder(plain_, wanted_);
  }

  /// Before execution, of an input.
  const memory& load(const dnnl::stream& stream, const void* data) {
    plain_.set_data_handle(const_cast<void*>(data));  // inputs are only read; oneDNN has one handle type
    if (reorder_) reorder_.execute(stream, const_cast<memory&>(plain_), wanted_);
    return wanted_;
  }
  /// Before execution, of a result.
  const memory& target(void* data) {
    plain_.set_data_handle(data);
    return wanted_;
  }
  /// After execution, of a result.
  void store(const dnnl::stream& stream) {
    if (reorder_) reorder_.execute(stream, wanted_, plain_);
  }

 private:
  memory plain_;
  memory wanted_;  // shares plain_'s handle when the layouts agree
  dnnl::reorder reorder_;
};

memory::desc plain(const memory::dims& dims, memory::format_tag tag) {
  return {dims, memory::data_type::f32, tag};
}

/// The tensor in the layout that a primitive chooses.
memory::desc any(const memory::desc& plain) {
  return {plain.dims(), plain.data_type(), memory::format_tag::any};
}

// Why tensors are plain NCHW between operations: the convolutions of ResNet-18 on 32x32 images, batch 64, on
// one core of a Xeon (AVX-512), milliseconds of forward + dx + dw with warm caches: 31.0 + 21.8 + 69.9 in
// NHWC; 24.7 + 23.2 + 68.1 in the blocked layouts that oneDNN chooses, and 3.2 for the reorders from and to
// NCHW. What mattered more were the weights (13.6 for their reorders) and the taps below.

/// The rows (or columns) of the kernel that meet the image and not padding alone, and the padding left to
/// them. On 1x1 images a 3x3 kernel is one of 1x1: 512->512 channels, batch 64, one core (AVX-512),
/// milliseconds of forward + dx + dw with the weights' reorders: 14.1 by nine taps, 3.6 by one.
struct Taps {
  Taps(const ConvShape& s, int size, int outputs) : count(s.kernel), before(s.padding), after(s.padding) {
    const auto meets = [&](memory::dim p) {
      for (int o = 0; o < outputs; ++o)
        if (const memory::dim i = o * s.stride + p - s.padding; i >= 0 && i < size) return true;
      return false;
    };
    for (; count > 1 && !meets(count - 1); --count) --after;
    for (; count > 1 && !meets(first); --count, --before) ++first;
  }
  memory::dim first = 0, count, before, after;
};

memory::dims of_groups(const ConvShape& s, memory::dims dims, memory::dim first) {
  if (s.groups != 1) dims.insert(dims.begin(), first);
  return dims;
}

struct DnnlConv final : PreparedConv2d {
  explicit DnnlConv(const ConvShape& shape) : s(shape) { backend = "oneDNN"; }

  memory::dim first() const { return rows.first * s.kernel + columns.first; }  // of the taps that are used
  const float* first_tap(const void* w) const { return static_cast<const float*>(w) + first(); }

  void forward(const void* x, const void* w, const void* b, void* y, void* /*workspace*/) override {
    const OneThread one_thread;
    try {
      forward_pass.execute(stream, {{DNNL_ARG_SRC, forward_x.load(stream, x)},
                                    {DNNL_ARG_WEIGHTS, forward_w.load(stream, first_tap(w))},
                                    {DNNL_ARG_BIAS, forward_b.load(stream, b)},
                                    {DNNL_ARG_DST, forward_y.target(y)}});
      forward_y.store(stream);
      stream.wait();
    } catch (const std::exception& error) {
      MUSTER_CHECK(false, error.what());
    }
  }

  void backward(const void* x, const void* w, const void* dy, void* dx, float* dw, float* db,
                void* /*workspace*/) override {
    const OneThread one_thread;
    if (is_cut) std::fill_n(dw, s.out_channels * group_in * taps, 0.0F);  // of what meets padding alone
    try {
      weights.execute(stream, {{DNNL_ARG_SRC, weights_x.load(stream, x)},
                               {DNNL_ARG_DIFF_DST, weights_dy.load(stream, dy)},
                               {DNNL_ARG_DIFF_WEIGHTS, weights_dw.target(dw + first())},
                               {DNNL_ARG_DIFF_BIAS, weights_db.target(db)}});
      weights_dw.store(stream);
      weights_db.store(stream);
      if (dx != nullptr) {
        data.execute(stream, {{DNNL_ARG_DIFF_DST, data_dy.load(stream, dy)},
                              {DNNL_ARG_WEIGHTS, data_w.load(stream, first_tap(w))},
                              {DNNL_ARG_DIFF_SRC, data_dx.target(dx)}});
        data_dx.store(stream);
      }
      stream.wait();
    } catch (const std::exception& error) {
      MUSTER_CHECK(false, error.what());
    }
  }

  const ConvShape s;
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream{engine};
  const Taps rows{s, s.height, s.out_height()}, columns{s, s.width, s.out_width()};
  const bool is_cut = rows.count < s.kernel || columns.count < s.kernel;
  const memory::dim group_in = s.in_channels / s.groups, taps = s.kernel * s.kernel;  // taps: all
  const memory::desc x_plain = plain({s.batch, s.in_channels, s.height, s.width}, memory::format_tag::nchw);
  const memory::desc w_plain = memory::desc(
      of_groups(s, {s.out_channels / s.groups, group_in, rows.count, columns.count}, s.groups),
      memory::data_type::f32,
      of_groups(s, {group_in * taps, taps, s.kernel, 1}, s.out_channels / s.groups * group_in * taps));
  const memory::desc b_plain = plain({s.out_channels}, memory::format_tag::x);
  const memory::desc y_plain =
      plain({s.batch, s.out_channels, s.out_height(), s.out_width()}, memory::format_tag::nchw);
  const memory::dims strides{s.stride, s.stride}, padding{rows.before, columns.before},
      padding_after{rows.after, columns.after};
  const dnnl::convolution_forward::primitive_desc forward_hint{
      {dnnl::prop_kind::forward_training, dnnl::algorithm::convolution_direct, any(x_plain), any(w_plain),
       any(b_plain), any(y_plain), strides, padding, padding_after},
      engine};
  const dnnl::convolution_backward_data::primitive_desc data_hint{
      {dnnl::algorithm::convolution_direct, any(x_plain), any(w_plain), any(y_plain), strides, padding,
       padding_after},
      engine,
      forward_hint};
  const dnnl::convolution_backward_weights::primitive_desc weights_hint{
      {dnnl::algorithm::convolution_direct, any(x_plain), any(w_plain), any(b_plain), any(y_plain), strides,
       padding, padding_after},
      engine,
      forward_hint};
  const dnnl::convolution_forward forward_pass{forward_hint};
  const dnnl::convolution_backward_data data{data_hint};
  const dnnl::convolution_backward_weights weights{weights_hint};
  Operand forward_x{engine, x_plain, forward_hint.src_desc(), false},
      forward_w{engine, w_plain, forward_hint.weights_desc(), false},
      forward_b{engine, b_plain, forward_hint.bias_desc(), false},
      forward_y{engine, y_plain, forward_hint.dst_desc(), true},
      data_w{engine, w_plain, data_hint.weights_desc(), false},
      data_dy{engine, y_plain, data_hint.diff_dst_desc(), false},
      data_dx{engine, x_plain, data_hint.diff_src_desc(), true},
      weights_x{engine, x_plain, weights_hint.src_desc(), false},
      weights_dy{engine, y_plain, weights_hint.diff_dst_desc(), false},
      weights_dw{engine, w_plain, weights_hint.diff_weights_desc(), true},
      weights_db{engine, b_plain, weights_hint.diff_bias_desc(), true};
};

}  // namespace

Result<std::unique_ptr<PreparedConv2d>> make_general_conv(const ConvShape& shape) {
  const OneThread one_thread;  // the number of threads is part of what the primitives are compiled for
  try {
    return std::make_unique<DnnlConv>(shape);
  } catch (const std::exception& error) {
    return fail(ErrorCode::kExhausted,
                "oneDNN convolution {}->{}, batch {}: {}; use a smaller batch or model", shape.in_channels,
                shape.out_channels, shape.batch, error.what());
  }
}

bool linear_sgemm_is_faster(const LinearShape& shape) {
  // One core of a Zen 4, microseconds of dw + dx, own against sgemm: 512->512, batch 64: 605 / 594;
  // 784->512, batch 256: 3999 / 3620;  1024->1024, batch 256: 18160 / 10409.
  return std::int64_t{shape.in_features} * shape.out_features >= 512 * 512 && shape.batch >= 16;
}

void linear_sgemm_backward(const LinearShape& shape, const float* x, const float* w, const float* dy,
                           float* dx, float* dw) {
  const OneThread one_thread;
  const int batch = shape.batch, in = shape.in_features, out = shape.out_features;
  dnnl_status_t status = dnnl_sgemm('T', 'N', out, in, batch, 1.0F, dy, out, x, in, 0.0F, dw, in);
  MUSTER_CHECK(status == dnnl_success, "oneDNN refused the product of a linear layer's weight gradient");
  if (dx == nullptr) return;
  status = dnnl_sgemm('N', 'N', batch, in, out, 1.0F, dy, out, w, in, 0.0F, dx, in);
  MUSTER_CHECK(status == dnnl_success, "oneDNN refused the product of a linear layer's input gradient");
}

}  // namespace muster::nn
