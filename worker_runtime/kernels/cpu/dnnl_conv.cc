// SPDX-License-Identifier: Apache-2.0
#include "worker_runtime/kernels/cpu/dnnl_conv.h"

#include <dlfcn.h>
#include <string>
#include <utility>
#include <vector>

#include <oneapi/dnnl/dnnl.hpp>

#include <muster/check.h>

#include "worker_runtime/kernels/cpu/one_thread.h"

namespace muster::kernels {
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

}  // namespace

struct DnnlConv::Primitives {
  explicit Primitives(const ConvShape& s)
      : shape(s),
        x_dims{s.batch, s.in_channels, s.height, s.width},
        w_dims{s.out_channels, s.in_channels, s.kernel, s.kernel},
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
        forward(forward_hint),
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
        weights_db(b(weights_hint.diff_bias_desc(), true)) {}

  Operand x(const memory::desc& wanted, bool is_result) {
    return {engine, plain(x_dims, memory::format_tag::nchw), wanted, is_result};
  }
  Operand w(const memory::desc& wanted, bool is_result) {
    return {engine, plain(w_dims, memory::format_tag::oihw), wanted, is_result};
  }
  Operand b(const memory::desc& wanted, bool is_result) {
    return {engine, plain(b_dims, memory::format_tag::x), wanted, is_result};
  }
  Operand y(const memory::desc& wanted, bool is_result) {
    return {engine, plain(y_dims, memory::format_tag::nchw), wanted, is_result};
  }

  ConvShape shape;
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream{engine};
  memory::dims x_dims, w_dims, b_dims, y_dims, strides, padding;
  dnnl::convolution_forward::primitive_desc forward_hint;
  dnnl::convolution_backward_data::primitive_desc data_hint;
  dnnl::convolution_backward_weights::primitive_desc weights_hint;
  dnnl::convolution_forward forward;
  dnnl::convolution_backward_data data;
  dnnl::convolution_backward_weights weights;
  Operand forward_x, forward_w, forward_b, forward_y, data_w, data_dy, data_dx, weights_x, weights_dy,
      weights_dw, weights_db;
};

Result<std::unique_ptr<DnnlConv>> DnnlConv::make(const ConvShape& shape) {
  const OneThread one_thread;  // the number of threads is part of what the primitives are compiled for
  try {
    return std::unique_ptr<DnnlConv>(new DnnlConv(std::make_unique<Primitives>(shape)));
  } catch (const std::exception& error) {
    return fail(ErrorCode::kExhausted, "oneDNN convolution " + std::to_string(shape.in_channels) + "->" +
                                           std::to_string(shape.out_channels) + ", batch " +
                                           std::to_string(shape.batch) + ": " + error.what() +
                                           "; use a smaller batch or model");
  }
}

DnnlConv::DnnlConv(std::unique_ptr<Primitives> primitives) : primitives_(std::move(primitives)) {}
DnnlConv::~DnnlConv() = default;

const ConvShape& DnnlConv::shape() const {
  return primitives_->shape;
}

void DnnlConv::forward(const float* x, const float* w, const float* b, float* y) {
  const OneThread one_thread;
  Primitives& p = *primitives_;
  try {
    p.forward.execute(p.stream, {{DNNL_ARG_SRC, p.forward_x.load(p.stream, x)},
                                 {DNNL_ARG_WEIGHTS, p.forward_w.load(p.stream, w)},
                                 {DNNL_ARG_BIAS, p.forward_b.load(p.stream, b)},
                                 {DNNL_ARG_DST, p.forward_y.target(y)}});
    p.forward_y.store(p.stream);
    p.stream.wait();
  } catch (const std::exception& error) {
    MUSTER_CHECK(false, error.what());
  }
}

void DnnlConv::backward(const float* x, const float* w, const float* dy, float* dx, float* dw, float* db) {
  const OneThread one_thread;
  Primitives& p = *primitives_;
  try {
    p.weights.execute(p.stream, {{DNNL_ARG_SRC, p.weights_x.load(p.stream, x)},
                                 {DNNL_ARG_DIFF_DST, p.weights_dy.load(p.stream, dy)},
                                 {DNNL_ARG_DIFF_WEIGHTS, p.weights_dw.target(dw)},
                                 {DNNL_ARG_DIFF_BIAS, p.weights_db.target(db)}});
    p.weights_dw.store(p.stream);
    p.weights_db.store(p.stream);
    if (dx != nullptr) {
      p.data.execute(p.stream, {{DNNL_ARG_DIFF_DST, p.data_dy.load(p.stream, dy)},
                                {DNNL_ARG_WEIGHTS, p.data_w.load(p.stream, w)},
                                {DNNL_ARG_DIFF_SRC, p.data_dx.target(dx)}});
      p.data_dx.store(p.stream);
    }
    p.stream.wait();
  } catch (const std::exception& error) {
    MUSTER_CHECK(false, error.what());
  }
}

}  // namespace muster::kernels
