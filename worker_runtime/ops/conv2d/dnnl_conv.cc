// SPDX-License-Identifier: Apache-2.0
#include <dlfcn.h>
#include <string>
#include <utility>
#include <vector>

#include <oneapi/dnnl/dnnl.hpp>

#include <muster/check.h>

#include "worker_runtime/ops/conv2d/conv2d.h"
#include "worker_runtime/ops/one_thread.h"

namespace muster::nn {
namespace {

using dnnl::memory;

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
  const memory& load(const dnnl::stream& stream, const float* data) {
    plain_.set_data_handle(const_cast<float*>(data));  // inputs are only read; oneDNN has one handle type
    if (reorder_) reorder_.execute(stream, const_cast<memory&>(plain_), wanted_);
    return wanted_;
  }
  /// Before execution, of a result.
  const memory& target(float* data) {
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

memory::desc any(const memory::dims& dims) {
  return {dims, memory::data_type::f32, memory::format_tag::any};
}

struct DnnlConv final : PreparedConv2d {
  explicit DnnlConv(const ConvShape& s)
      : x_dims{s.batch, s.in_channels, s.height, s.width},
        w_dims(s.groups == 1 ? memory::dims{s.out_channels, s.in_channels, s.kernel, s.kernel}
                             : memory::dims{s.groups, s.out_channels / s.groups, s.in_channels / s.groups,
                                            s.kernel, s.kernel}),
        b_dims{s.out_channels},
        y_dims{s.batch, s.out_channels, s.out_height(), s.out_width()},
        strides{s.stride, s.stride},
        padding{s.padding, s.padding},
        forward_hint({dnnl::prop_kind::forward_training, dnnl::algorithm::convolution_direct, any(x_dims),
                      any(w_dims), any(b_dims), any(y_dims), strides, padding, padding},
                     engine),
        data_hint({dnnl::algorithm::convolution_direct, any(x_dims), any(w_dims), any(y_dims), strides,
                   padding, padding},
                  engine, forward_hint),
        weights_hint({dnnl::algorithm::convolution_direct, any(x_dims), any(w_dims), any(b_dims), any(y_dims),
                      strides, padding, padding},
                     engine, forward_hint),
        forward_pass(forward_hint),
        data(data_hint),
        weights(weights_hint),
        forward_x(x(forward_hint.src_desc(), false)),
        forward_w(w(forward_hint.weights_desc(), false)),
        forward_b(b(forward_hint.bias_desc(), false)),
        forward_y(y(forward_hint.dst_desc(), true)),
        data_w(w(data_hint.weights_desc(), false)),
        data_dy(y(data_hint.diff_dst_desc(), false)),
        data_dx(x(data_hint.diff_src_desc(), true)),
        weights_x(x(weights_hint.src_desc(), false)),
        weights_dy(y(weights_hint.diff_dst_desc(), false)),
        weights_dw(w(weights_hint.diff_weights_desc(), true)),
        weights_db(b(weights_hint.diff_bias_desc(), true)) {
    backend = "oneDNN";
  }

  Operand x(const memory::desc& wanted, bool is_result) {
    return {engine, plain(x_dims, memory::format_tag::nchw), wanted, is_result};
  }
  Operand w(const memory::desc& wanted, bool is_result) {
    return {engine, plain(w_dims, w_dims.size() == 4 ? memory::format_tag::oihw : memory::format_tag::goihw),
            wanted, is_result};
  }
  Operand b(const memory::desc& wanted, bool is_result) {
    return {engine, plain(b_dims, memory::format_tag::x), wanted, is_result};
  }
  Operand y(const memory::desc& wanted, bool is_result) {
    return {engine, plain(y_dims, memory::format_tag::nchw), wanted, is_result};
  }

  void forward(const float* x, const float* w, const float* b, float* y, void* /*workspace*/) override {
    const OneThread one_thread;
    try {
      forward_pass.execute(stream, {{DNNL_ARG_SRC, forward_x.load(stream, x)},
                                    {DNNL_ARG_WEIGHTS, forward_w.load(stream, w)},
                                    {DNNL_ARG_BIAS, forward_b.load(stream, b)},
                                    {DNNL_ARG_DST, forward_y.target(y)}});
      forward_y.store(stream);
      stream.wait();
    } catch (const std::exception& error) {
      MUSTER_CHECK(false, error.what());
    }
  }

  void backward(const float* x, const float* w, const float* dy, float* dx, float* dw, float* db,
                void* /*workspace*/) override {
    const OneThread one_thread;
    try {
      weights.execute(stream, {{DNNL_ARG_SRC, weights_x.load(stream, x)},
                               {DNNL_ARG_DIFF_DST, weights_dy.load(stream, dy)},
                               {DNNL_ARG_DIFF_WEIGHTS, weights_dw.target(dw)},
                               {DNNL_ARG_DIFF_BIAS, weights_db.target(db)}});
      weights_dw.store(stream);
      weights_db.store(stream);
      if (dx != nullptr) {
        data.execute(stream, {{DNNL_ARG_DIFF_DST, data_dy.load(stream, dy)},
                              {DNNL_ARG_WEIGHTS, data_w.load(stream, w)},
                              {DNNL_ARG_DIFF_SRC, data_dx.target(dx)}});
        data_dx.store(stream);
      }
      stream.wait();
    } catch (const std::exception& error) {
      MUSTER_CHECK(false, error.what());
    }
  }

  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream{engine};
  memory::dims x_dims, w_dims, b_dims, y_dims, strides, padding;
  dnnl::convolution_forward::primitive_desc forward_hint;
  dnnl::convolution_backward_data::primitive_desc data_hint;
  dnnl::convolution_backward_weights::primitive_desc weights_hint;
  dnnl::convolution_forward forward_pass;
  dnnl::convolution_backward_data data;
  dnnl::convolution_backward_weights weights;
  Operand forward_x, forward_w, forward_b, forward_y, data_w, data_dy, data_dx, weights_x, weights_dy,
      weights_dw, weights_db;
};

}  // namespace

Result<std::unique_ptr<PreparedConv2d>> make_general_conv(const ConvShape& shape) {
  const OneThread one_thread;  // the number of threads is part of what the primitives are compiled for
  try {
    return std::make_unique<DnnlConv>(shape);
  } catch (const std::exception& error) {
    return fail(ErrorCode::kExhausted, "oneDNN convolution " + std::to_string(shape.in_channels) + "->" +
                                           std::to_string(shape.out_channels) + ", batch " +
                                           std::to_string(shape.batch) + ": " + error.what() +
                                           "; use a smaller batch or model");
  }
}

}  // namespace muster::nn
