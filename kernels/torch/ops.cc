#include "kernels/torch/ops.h"

#include <ATen/TensorIndexing.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/cpu/attention.h"

namespace lime::torch_ops {
namespace {

using at::indexing::Slice;
using cpu::kPagePositions;

// Rows of a weight that are converted at a time, so that a large one is never completely in fp32.
constexpr int64_t kRowsAtATime = 1024;

// Unpacks words [rows, cols * bits / 32] int32 to codes [rows, cols]. A code may lie in two words.
at::Tensor Unpack(const at::Tensor& words, int64_t bits, int64_t cols) {
  const at::Tensor wide = words.to(at::kLong).bitwise_and(int64_t{0xffffffff});
  const at::Tensor next = at::cat({wide.slice(1, 1), at::zeros_like(wide.slice(1, 0, 1))}, 1);
  const at::Tensor pairs = wide.bitwise_or(at::bitwise_left_shift(next, 32));
  const at::Tensor first_bit = at::arange(cols, wide.options()) * bits;
  const at::Tensor word = at::floor_divide(first_bit, 32), shift = first_bit.bitwise_and(31);
  return at::bitwise_right_shift(pairs.index_select(1, word), shift).bitwise_and((int64_t{1} << bits) - 1);
}

// Some rows of a layer in fp32; take(t) selects them from each of its tensors.
template <typename Select>
at::Tensor Unpacked(const LinearWeight& w, int64_t cols, Select&& select) {
  if (w.bits == 0) return select(w.weight).to(at::kFloat);
  const at::Tensor codes = Unpack(select(w.weight), w.bits, cols).to(at::kFloat);
  const auto spread = [&](const at::Tensor& t) { return select(t).to(at::kFloat).repeat_interleave(w.group_size, 1); };
  return spread(w.scales) * codes + spread(w.biases);
}

at::Tensor RmsScaled(const at::Tensor& x, double eps) {
  return x * at::rsqrt(x.pow(2).mean({-1}, /*keepdim=*/true) + eps);
}

// K [pages, kv_heads, head_dim, 16] and V [pages, kv_heads, 16, head_dim] of the pool.
struct KvParts {
  at::Tensor k, v;
};
KvParts Split(const KvLayer& kv) {
  const int64_t half = kv.kv_heads * kv.head_dim * kPagePositions, pages = kv.pages.size(0);
  return {kv.pages.slice(1, 0, half).view({pages, kv.kv_heads, kv.head_dim, kPagePositions}),
          kv.pages.slice(1, half, 2 * half).view({pages, kv.kv_heads, kPagePositions, kv.head_dim})};
}

// One row: softmax(scale q K) V over the positions that it sees.   q: [heads, head_dim]; pages: of
// this sequence, in order.
at::Tensor AttendRow(const at::Tensor& q, const KvParts& kv, const at::Tensor& pages, int64_t begin, int64_t end, double scale) {
  const int64_t kv_heads = kv.k.size(1), head_dim = q.size(1);
  const at::Tensor used = pages.slice(0, 0, (end + kPagePositions - 1) / kPagePositions);
  const at::Tensor k =
      kv.k.index_select(0, used).permute({1, 2, 0, 3}).reshape({kv_heads, head_dim, -1}).slice(2, begin, end).to(at::kFloat);
  const at::Tensor v =
      kv.v.index_select(0, used).permute({1, 0, 2, 3}).reshape({kv_heads, -1, head_dim}).slice(1, begin, end).to(at::kFloat);
  const at::Tensor scores =
      at::matmul(q.view({kv_heads, -1, head_dim}), k) * (scale != 0 ? scale : 1 / std::sqrt(static_cast<double>(head_dim)));
  return at::matmul(at::softmax(scores, -1), v).reshape({-1});
}

}  // namespace

at::Tensor Linear(const at::Tensor& x, const LinearWeight& w) {
  const at::Tensor wide = x.to(at::kFloat);
  const int64_t rows = w.weight.size(0);
  at::Tensor y = at::empty({x.size(0), rows}, at::kFloat);
  for (int64_t begin = 0; begin < rows; begin += kRowsAtATime) {
    const int64_t end = std::min(rows, begin + kRowsAtATime);
    const at::Tensor part = Unpacked(w, x.size(1), [&](const at::Tensor& t) { return t.slice(0, begin, end); });
    y.slice(1, begin, end).copy_(at::matmul(wide, part.t()));
  }
  return w.bias.defined() ? y.add_(w.bias.to(at::kFloat)) : y;
}

int64_t LinearScratchBytes(int64_t cols) {
  return kRowsAtATime * cols * 5 * static_cast<int64_t>(sizeof(int64_t));
}

at::Tensor RmsNorm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  return (RmsScaled(x.to(at::kFloat), eps) * weight.to(at::kFloat)).to(x.scalar_type());
}

at::Tensor LayerNorm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, double eps) {
  const auto wide = [](const at::Tensor& t) { return t.defined() ? t.to(at::kFloat) : t; };
  return at::layer_norm(x.to(at::kFloat), {x.size(1)}, wide(weight), wide(bias), eps).to(x.scalar_type());
}

at::Tensor HeadRmsNorm(const at::Tensor& qk, const at::Tensor& weight, double eps) {
  const at::Tensor heads = qk.view({qk.size(0), -1, weight.numel()});
  return (RmsScaled(heads, eps) * weight.to(at::kFloat)).view(qk.sizes());
}

at::Tensor Rope(const at::Tensor& qk, int64_t head_dim, const at::Tensor& positions, const at::Tensor& cos, const at::Tensor& sin) {
  const int64_t half = cos.size(1);
  const at::Tensor heads = qk.view({qk.size(0), -1, head_dim}), rows = positions.to(at::kLong);
  const at::Tensor c = cos.index_select(0, rows).unsqueeze(1), s = sin.index_select(0, rows).unsqueeze(1);
  const at::Tensor a = heads.slice(2, 0, half), b = heads.slice(2, half, 2 * half), rest = heads.slice(2, 2 * half);
  return at::cat({a * c - b * s, b * c + a * s, rest}, 2).view(qk.sizes());
}

void KvAppend(const at::Tensor& k, const at::Tensor& v, const at::Tensor& slots, const at::Tensor& positions, const KvLayer& kv) {
  KvParts parts = Split(kv);
  const at::Tensor where = positions.to(at::kLong), offset = at::remainder(where, kPagePositions);
  const at::Tensor page = kv.page_table.index({slots.to(at::kLong), at::floor_divide(where, kPagePositions)}).to(at::kLong);
  TORCH_CHECK((page >= 0).all().item<bool>(), "a row has no KV page");
  const auto rows = [&](const at::Tensor& x) { return x.view({-1, kv.kv_heads, kv.head_dim}).to(kv.pages.scalar_type()); };
  parts.k.index_put_({page, Slice(), Slice(), offset}, rows(k));
  parts.v.index_put_({page, Slice(), offset}, rows(v));
}

at::Tensor Attend(const at::Tensor& q, const at::Tensor& slots, const at::Tensor& positions, const KvLayer& kv, int64_t window,
                  double scale) {
  const KvParts parts = Split(kv);
  std::vector<at::Tensor> out;
  for (int64_t row = 0; row < q.size(0); ++row) {
    const int64_t end = positions.data_ptr<int32_t>()[row] + 1, begin = window > 0 ? std::max<int64_t>(0, end - window) : 0;
    const at::Tensor pages = kv.page_table.select(0, slots.data_ptr<int32_t>()[row]).to(at::kLong);
    out.push_back(AttendRow(q.select(0, row).view({-1, kv.head_dim}), parts, pages, begin, end, scale));
  }
  return at::stack(out).to(kv.pages.scalar_type());
}

at::Tensor GatedActivation(const at::Tensor& gate, const at::Tensor& up, Activation activation, double limit) {
  if (activation == Activation::kFatRelu) return at::threshold(gate, limit, 0) * up;
  if (activation == Activation::kDoubleRelu) return at::relu(gate) * at::relu(up);
  return PlainActivation(gate, activation) * up;
}

at::Tensor PlainActivation(const at::Tensor& x, Activation activation) {
  return activation == Activation::kSilu ? at::silu(x) : at::relu(x);
}

at::Tensor Embed(const at::Tensor& tokens, const LinearWeight& table, int64_t hidden, const at::Tensor& positions,
                 const at::Tensor& position_table, int64_t position_offset) {
  const at::Tensor rows = tokens.to(at::kLong);
  const at::Tensor x = Unpacked(table, hidden, [&](const at::Tensor& t) { return t.index_select(0, rows); });
  if (!position_table.defined()) return x;
  return x + position_table.index_select(0, positions.to(at::kLong) + position_offset).to(at::kFloat);
}

}  // namespace lime::torch_ops
