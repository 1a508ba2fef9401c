// The operators in ATen's own words, for every device without an implementation of its own, and as the tests' oracle. They promise a
// tolerance and not bits; they allocate as they please. Arithmetic in fp32, rounding where the CPU operators round.
#include <ATen/TensorIndexing.h>

#include <cmath>

#include "kernels/cpu/attention.h"
#include "kernels/torch/ops_impl.h"
#include "planner/plan/model_config.h"

namespace lime::ops::aten {
namespace {

using at::indexing::Slice;

// Packed words [rows, cols * bits / 32] int32 to codes [rows, cols]; a code may lie in two words.
at::Tensor Unpack(const at::Tensor& words, int64_t bits, int64_t cols) {
  const at::Tensor wide = words.to(at::kLong).bitwise_and(int64_t{0xffffffff});
  const at::Tensor next = at::cat({wide.slice(1, 1), at::zeros_like(wide.slice(1, 0, 1))}, 1);
  const at::Tensor pairs = wide.bitwise_or(at::bitwise_left_shift(next, 32));
  const at::Tensor first_bit = at::arange(cols, wide.options()) * bits;
  const at::Tensor word = at::floor_divide(first_bit, 32), shift = first_bit.bitwise_and(31);
  return at::bitwise_right_shift(pairs.index_select(1, word), shift).bitwise_and((int64_t{1} << bits) - 1);
}

// Rows of a weight in fp32; all of them where `rows` is undefined.
at::Tensor Weight(at::TensorList p, at::IntArrayRef packing, int64_t cols, const at::Tensor& rows = {}) {
  const auto take = [&](const at::Tensor& t) { return rows.defined() ? t.index_select(0, rows) : t; };
  if (packing[0] == 0) return take(p[0]).to(at::kFloat);
  const at::Tensor codes = Unpack(take(p[0]), packing[0], cols).to(at::kFloat);
  const auto spread = [&](const at::Tensor& t) { return take(t).to(at::kFloat).repeat_interleave(packing[1], 1); };
  return spread(p[2]) * codes + spread(p[3]);
}

at::Tensor Apply(const at::Tensor& x, at::TensorList p, at::IntArrayRef packing) {
  const at::Tensor y = at::matmul(x.to(at::kFloat), Weight(p, packing, x.size(1)).t());
  return p[1].defined() ? y + p[1].narrow(0, packing[2], y.size(1)).to(at::kFloat) : y;
}

// The columns of an output that the rows of a layer fill.
at::Tensor Columns(const at::Tensor& out, at::TensorList p, at::IntArrayRef packing) {
  return out.narrow(1, packing[2], p[0].size(0));
}

at::Tensor Activate(const at::Tensor& x, int64_t activation) {
  return activation == static_cast<int64_t>(Activation::kSilu) ? at::silu(x) : at::relu(x);
}

at::Tensor RmsScaled(const at::Tensor& x, double eps) {
  return x * at::rsqrt(x.pow(2).mean({-1}, /*keepdim=*/true) + eps);
}

// K [pages, kv_heads, head_dim, 16] and V [pages, kv_heads, 16, head_dim] of the pool.
struct KvParts {
  at::Tensor k, v;
};
KvParts Split(const at::Tensor& pages, int64_t kv_heads, int64_t head_dim) {
  const int64_t half = kv_heads * head_dim * lime::cpu::kPagePositions;
  return {pages.slice(1, 0, half).view({pages.size(0), kv_heads, head_dim, lime::cpu::kPagePositions}),
          pages.slice(1, half, 2 * half).view({pages.size(0), kv_heads, lime::cpu::kPagePositions, head_dim})};
}

// One row: softmax(q K / sqrt(head_dim)) V over the positions that it sees.   q: [heads, head_dim]; pages: this sequence's, in order.
at::Tensor AttendRow(const at::Tensor& q, const KvParts& kv, const at::Tensor& pages, int64_t begin, int64_t end) {
  const int64_t kv_heads = kv.k.size(1), head_dim = q.size(1);
  const at::Tensor used = pages.slice(0, 0, (end + lime::cpu::kPagePositions - 1) / lime::cpu::kPagePositions);
  const at::Tensor k =
      kv.k.index_select(0, used).permute({1, 2, 0, 3}).reshape({kv_heads, head_dim, -1}).slice(2, begin, end).to(at::kFloat);
  const at::Tensor v =
      kv.v.index_select(0, used).permute({1, 0, 2, 3}).reshape({kv_heads, -1, head_dim}).slice(1, begin, end).to(at::kFloat);
  const at::Tensor scores = at::matmul(q.view({kv_heads, -1, head_dim}), k) / std::sqrt(static_cast<double>(head_dim));
  return at::matmul(at::softmax(scores, -1), v).reshape({-1});
}

}  // namespace

void LinearManyOut(const at::Tensor& x, at::TensorList parameters, at::IntArrayRef packing, at::TensorList outs) {
  for (size_t i = 0; i < outs.size(); ++i) {
    const at::TensorList p = parameters.slice(i * kParametersPerLayer, kParametersPerLayer);
    const at::IntArrayRef numbers = packing.slice(i * kPackingPerLayer, kPackingPerLayer);
    Columns(outs[i], p, numbers).copy_(Apply(x, p, numbers));
  }
}

void LinearAdd(at::Tensor& y, const at::Tensor& x, at::TensorList parameters, at::IntArrayRef packing) {
  at::Tensor columns = Columns(y, parameters, packing);
  columns.copy_(columns.to(at::kFloat) + Apply(x, parameters, packing));
}

void RmsNormOut(const at::Tensor& x, const at::Tensor& weight, double eps, at::Tensor& out) {
  out.copy_(RmsScaled(x.to(at::kFloat), eps) * weight.to(at::kFloat));
}

void LayerNormOut(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, double eps, at::Tensor& out) {
  const auto wide = [](const at::Tensor& t) { return t.defined() ? t.to(at::kFloat) : t; };
  out.copy_(at::layer_norm(x.to(at::kFloat), {x.size(1)}, wide(weight), wide(bias), eps));
}

void HeadRmsNorm(at::Tensor& qk, const at::Tensor& weight, double eps) {
  const at::Tensor heads = qk.view({qk.size(0), -1, weight.numel()});
  qk.copy_((RmsScaled(heads, eps) * weight.to(at::kFloat)).view(qk.sizes()));
}

void Rope(at::Tensor& qk, const at::Tensor& positions, const at::Tensor& cos, const at::Tensor& sin) {
  const int64_t half = cos.size(1);
  const at::Tensor heads = qk.view({qk.size(0), -1, 2 * half}), rows = positions.to(at::kLong);
  const at::Tensor c = cos.index_select(0, rows).unsqueeze(1), s = sin.index_select(0, rows).unsqueeze(1);
  const at::Tensor a = heads.slice(2, 0, half), b = heads.slice(2, half);
  qk.copy_(at::cat({a * c - b * s, b * c + a * s}, 2).view(qk.sizes()));
}

void KvAppend(const at::Tensor& k, const at::Tensor& v, const at::Tensor& slots, const at::Tensor& positions, at::Tensor& pages,
              const at::Tensor& page_table, int64_t kv_heads) {
  const int64_t head_dim = k.size(1) / kv_heads;
  KvParts kv = Split(pages, kv_heads, head_dim);
  const at::Tensor where = positions.to(at::kLong), offset = at::remainder(where, lime::cpu::kPagePositions);
  const at::Tensor page = page_table.index({slots.to(at::kLong), at::floor_divide(where, lime::cpu::kPagePositions)}).to(at::kLong);
  const auto rows = [&](const at::Tensor& x) { return x.view({-1, kv_heads, head_dim}).to(pages.scalar_type()); };
  kv.k.index_put_({page, Slice(), Slice(), offset}, rows(k));
  kv.v.index_put_({page, Slice(), offset}, rows(v));
}

void AttendOut(const at::Tensor& q, const at::Tensor& slots, const at::Tensor& positions, const at::Tensor& pages,
               const at::Tensor& page_table, int64_t kv_heads, int64_t head_dim, int64_t window, at::Tensor& out) {
  const KvParts kv = Split(pages, kv_heads, head_dim);
  const at::Tensor host_slots = slots.cpu(), host_positions = positions.cpu();
  for (int64_t row = 0; row < q.size(0); ++row) {
    const int64_t end = host_positions.data_ptr<int32_t>()[row] + 1, begin = window > 0 ? std::max<int64_t>(0, end - window) : 0;
    const at::Tensor sequence = page_table.select(0, host_slots.data_ptr<int32_t>()[row]).to(at::kLong);
    out.select(0, row).copy_(AttendRow(q.select(0, row).view({-1, head_dim}), kv, sequence, begin, end));
  }
}

void GatedActivationOut(const at::Tensor& gate, const at::Tensor& up, int64_t activation, at::Tensor& out) {
  out.copy_(Activate(gate, activation) * up);
}

void ActivationOut(const at::Tensor& x, int64_t activation, at::Tensor& out) {
  out.copy_(Activate(x, activation));
}

void EmbedOut(const at::Tensor& tokens, at::TensorList parameters, at::IntArrayRef packing, const at::Tensor& positions,
              const at::Tensor& position_table, int64_t position_offset, at::Tensor& out) {
  at::Tensor x = Weight(parameters, packing, out.size(1), tokens.to(at::kLong));
  if (position_table.defined()) x = x + position_table.index_select(0, positions.to(at::kLong) + position_offset).to(at::kFloat);
  out.copy_(x);
}

void GatherRowsOut(const at::Tensor& x, const at::Tensor& rows, at::Tensor& out) {
  out.copy_(x.index_select(0, rows.to(at::kLong)));
}

void TopKOut(const at::Tensor& logits, at::Tensor& values, at::Tensor& ids) {
  TORCH_CHECK(!logits.isnan().any().item<bool>(), "a logit is NaN");
  const auto [sorted, order] = logits.sort(/*stable=*/true, /*dim=*/-1, /*descending=*/true);
  values.copy_(sorted.narrow(-1, 0, values.size(-1)));
  ids.copy_(order.narrow(-1, 0, ids.size(-1)));
}

}  // namespace lime::ops::aten
