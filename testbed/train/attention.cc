#include "testbed/train/attention.h"

#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "testbed/train/row_ops.h"

extern "C" void sgemm_(const char* trans_a, const char* trans_b, const int* m, const int* n, const int* k, const float* alpha,
                       const float* a, const int* lda, const float* b, const int* ldb, const float* beta, float* c, const int* ldc);

namespace lime::train {
namespace {

constexpr int kRowBlock = 64;  // query rows at a time: their probabilities stay in the L2 cache

// Row-major C[m, n] = alpha * op(A) op(B) + beta * C.
void Gemm(bool trans_a, bool trans_b, int m, int n, int k, float alpha, const float* a, int lda, const float* b, int ldb, float beta,
          float* c, int ldc) {
  sgemm_(trans_b ? "T" : "N", trans_a ? "T" : "N", &n, &m, &k, &alpha, b, &ldb, a, &lda, &beta, c, &ldc);
}

// Rotates every head of x: [batch * tokens, heads * head_dim] by its position, backwards where sign
// is -1.
void Rotate(float* x, const AttentionShape& s, int64_t heads, float sign) {
  const int64_t half = s.head_dim / 2;
  std::vector<double> rates(half);
  for (int64_t i = 0; i < half; ++i) rates[i] = std::pow(s.rope_theta, -2.0 * i / s.head_dim);
  std::vector<float> cosine(s.tokens * half), sine(s.tokens * half);
  for (int64_t t = 0; t < s.tokens; ++t) {
    for (int64_t i = 0; i < half; ++i) {
      cosine[t * half + i] = std::cos(t * rates[i]);
      sine[t * half + i] = sign * std::sin(t * rates[i]);
    }
  }
  for (int64_t row = 0; row < s.batch * s.tokens; ++row) {
    const int64_t t = row % s.tokens;
    for (int64_t h = 0; h < heads; ++h, x += s.head_dim) RotateHead(x, &cosine[t * half], &sine[t * half], half);
  }
}

// One (sequence, head): pointers to its first row, and the strides of rows.
struct Head {
  const float *q, *k, *v;
  int q_stride, kv_stride;
};

Head HeadAt(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionShape& s, int64_t b, int64_t h) {
  const int64_t kv = h / (s.heads / s.kv_heads), q_stride = s.heads * s.head_dim, kv_stride = s.kv_heads * s.head_dim;
  const int64_t kv_offset = b * s.tokens * kv_stride + kv * s.head_dim;
  return {q.data_ptr<float>() + b * s.tokens * q_stride + h * s.head_dim, k.data_ptr<float>() + kv_offset, v.data_ptr<float>() + kv_offset,
          static_cast<int>(q_stride), static_cast<int>(kv_stride)};
}

// probabilities: [rows, keys] of the query rows first .. first + rows - 1, where keys = first +
// rows.
void Probabilities(const Head& head, const AttentionShape& s, int first, int rows, float* probabilities) {
  const int keys = first + rows;
  const float scale = 1.0f / std::sqrt(static_cast<float>(s.head_dim));
  Gemm(false, true, rows, keys, s.head_dim, scale, head.q + first * head.q_stride, head.q_stride, head.k, head.kv_stride, 0, probabilities,
       keys);
  for (int r = 0; r < rows; ++r) SoftmaxRow(probabilities + r * keys, first + r + 1, keys);
}

struct Attention : public torch::autograd::Function<Attention> {
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& q_in, const at::Tensor& k_in, const at::Tensor& v,
                            const AttentionShape& s) {
    at::Tensor q = q_in.clone(), k = k_in.clone(), out = at::empty_like(q);
    Rotate(q.data_ptr<float>(), s, s.heads, 1);
    Rotate(k.data_ptr<float>(), s, s.kv_heads, 1);
    std::vector<float> p(kRowBlock * s.tokens);
    for (int64_t b = 0; b < s.batch; ++b) {
      for (int64_t h = 0; h < s.heads; ++h)
        ForwardHead(HeadAt(q, k, v, s, b, h), s, out.data_ptr<float>() + (b * s.tokens * s.heads + h) * s.head_dim, p.data());
    }
    ctx->save_for_backward({q, k, v, out});
    ctx->saved_data["shape"] = std::vector<int64_t>{s.batch, s.tokens, s.heads, s.kv_heads, s.head_dim};
    ctx->saved_data["theta"] = s.rope_theta;
    return out;
  }

  static void ForwardHead(const Head& head, const AttentionShape& s, float* out, float* p) {
    for (int first = 0; first < s.tokens; first += kRowBlock) {
      const int rows = std::min<int>(kRowBlock, s.tokens - first), keys = first + rows;
      Probabilities(head, s, first, rows, p);
      Gemm(false, false, rows, s.head_dim, keys, 1, p, keys, head.v, head.kv_stride, 0, out + first * head.q_stride, head.q_stride);
    }
  }

  static torch::autograd::tensor_list backward(torch::autograd::AutogradContext* ctx, torch::autograd::tensor_list grads) {
    const auto saved = ctx->get_saved_variables();
    const auto dims = ctx->saved_data["shape"].toIntVector();
    const AttentionShape s{dims[0], dims[1], dims[2], dims[3], dims[4], ctx->saved_data["theta"].toDouble()};
    const at::Tensor &q = saved[0], &k = saved[1], &v = saved[2], &out = saved[3], grad = grads[0].contiguous();
    at::Tensor dq = at::empty_like(q), dk = at::zeros_like(k), dv = at::zeros_like(v);
    std::vector<float> p(kRowBlock * s.tokens), dp(kRowBlock * s.tokens);
    for (int64_t b = 0; b < s.batch; ++b) {
      for (int64_t h = 0; h < s.heads; ++h) {
        const Head head = HeadAt(q, k, v, s, b, h), output = HeadAt(out, dk, dv, s, b, h), gradient = HeadAt(grad, dk, dv, s, b, h);
        float* head_dq = dq.data_ptr<float>() + (gradient.q - grad.data_ptr<float>());
        BackwardHead(head, s, output.q, gradient.q, head_dq, const_cast<float*>(output.k), const_cast<float*>(output.v), p.data(),
                     dp.data());
      }
    }
    Rotate(dq.data_ptr<float>(), s, s.heads, -1);
    Rotate(dk.data_ptr<float>(), s, s.kv_heads, -1);
    return {dq, dk, dv, at::Tensor()};
  }

  // With P the probabilities: dV += P' dO;  dP = dO V';  dS = P (dP - rowsum(dO O));  dQ = dS K
  // scale;  dK += dS' Q scale.
  static void BackwardHead(const Head& head, const AttentionShape& s, const float* out, const float* grad, float* dq, float* dk, float* dv,
                           float* p, float* dp) {
    const float scale = 1.0f / std::sqrt(static_cast<float>(s.head_dim));
    const int qs = head.q_stride, kvs = head.kv_stride, d = s.head_dim;
    for (int first = 0; first < s.tokens; first += kRowBlock) {
      const int rows = std::min<int>(kRowBlock, s.tokens - first), keys = first + rows;
      const float* block_grad = grad + first * qs;
      Probabilities(head, s, first, rows, p);
      Gemm(true, false, keys, d, rows, 1, p, keys, block_grad, qs, 1, dv, kvs);
      Gemm(false, true, rows, keys, d, 1, block_grad, qs, head.v, kvs, 0, dp, keys);
      for (int r = 0; r < rows; ++r) {
        SoftmaxGradRow(p + r * keys, dp + r * keys, Dot(block_grad + r * qs, out + (first + r) * qs, d), keys);
      }
      Gemm(false, false, rows, d, keys, scale, dp, keys, head.k, kvs, 0, dq + first * qs, qs);
      Gemm(true, false, keys, d, rows, scale, dp, keys, head.q + first * qs, qs, 1, dk, kvs);
    }
  }
};

}  // namespace

at::Tensor CausalAttention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionShape& shape) {
  return Attention::apply(q.contiguous(), k.contiguous(), v.contiguous(), shape);
}

}  // namespace lime::train
