#include "kernels/cpu/delta_rule.h"

#include <algorithm>
#include <cmath>

#include "kernels/cpu/base/hwy_targets.h"
#include "kernels/cpu/delta_call.h"
#include "planner/base/check.h"
#include "planner/base/float_bits.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/delta_rule.cc"
#include <hwy/foreach_target.h>  // IWYU pragma: keep

#include "kernels/cpu/row_lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lime::cpu::HWY_NAMESPACE {
namespace {

// ---- Convolution

// Filters of `cols` columns as [conv_width][kConvCols] fp32.
void TransposeFilters(const Values& filters, int64_t first, int64_t cols, int64_t width, float* taps) {
  WithWorkingType(filters.dtype, [&](auto type) HWY_ATTR {
    const auto* filter = static_cast<const decltype(type)*>(filters.data) + first * width;
    for (int64_t c = 0; c < cols; ++c)
      for (int64_t j = 0; j < width; ++j) taps[j * kConvCols + c] = ToFloat(filter[c * width + j]);
  });
}

// Columns [first, first + cols) of one run.
void ConvolveColumns(const LinearAttentionConfig& config, const SequenceRows& run, const Values& filters, int64_t first, int64_t cols,
                     float* x) {
  alignas(64) float taps[kMaxConvWidth * kConvCols] = {};
  alignas(64) float window[kMaxConvWidth * kConvCols] = {};  // inputs [conv_width][kConvCols], oldest first
  const int64_t width = config.conv_width, all = config.conv_cols();
  TransposeFilters(filters, first, cols, width, taps);
  for (int64_t j = 0; j + 1 < width && !run.first; ++j) std::copy_n(run.inputs + j * all + first, cols, window + j * kConvCols);
  for (int64_t row = run.begin; row < run.end; ++row) {
    float* const at = x + row * all + first;
    std::copy_n(at, cols, window + (width - 1) * kConvCols);
    for (int64_t c = 0; c < cols; c += kLanes) {
      F32x16 sum = Zero();
      for (int64_t j = 0; j < width; ++j) {
        const F32x16 input = Load(window + j * kConvCols + c);
        sum = MulAdd(Load(taps + j * kConvCols + c), input, sum);
        if (j > 0) Store(input, window + (j - 1) * kConvCols + c);
      }
      StoreGroup(Silu(sum), at, c, cols);
    }
  }
  for (int64_t j = 0; j + 1 < width; ++j) std::copy_n(window + j * kConvCols, cols, run.inputs + j * all + first);
}

// x = x * (scale / |x|).
HWY_INLINE void MakeUnit(float* x, int64_t n, float scale) {
  const F32x16 factor = Set(1.0f / std::sqrt(SumOfSquares(x, n) + 1e-6f) * scale);
  for (int64_t i = 0; i < n; i += kLanes) StoreGroup(Mul(LoadGroup(x, i, n), factor), x, i, n);
}

// q, then k, of one row.
void MakeUnits(const LinearAttentionConfig& config, float* x) {
  const float scale = 1.0f / std::sqrt(static_cast<float>(config.key_dim));
  for (int64_t head = 0; head < 2 * config.key_heads; ++head, x += config.key_dim)
    MakeUnit(x, config.key_dim, head < config.key_heads ? scale : 1.0f);
}

// ---- Gates of one row

void GateRow(int64_t heads, const Values& decay_log, const Values& decay_bias, float* decay, float* beta) {
  for (int64_t i = 0; i < heads; i += kLanes) {
    const F32x16 time = Softplus(Add(LoadGroup(decay, i, heads), LoadAny(decay_bias.data, decay_bias.dtype, i, heads)));
    const F32x16 rate = Exp(LoadAny(decay_log.data, decay_log.dtype, i, heads));
    StoreGroup(Exp(Neg(Mul(rate, time))), decay, i, heads);
    StoreGroup(Sigmoid(LoadGroup(beta, i, heads)), beta, i, heads);
  }
}

// ---- Delta rule

// G groups of 16 columns of one head's state in memory, [G][key_dim][width]. kPartial: one group of
// width < 16.
template <int G, bool kPartial>
struct StateColumns {
  float* data;
  int64_t key_dim;
  int64_t width;

  HWY_INLINE F32x16 Get(int g, int64_t d) const { return kPartial ? LoadFirst(data + d * width, width) : Load(At(g, d)); }
  HWY_INLINE void Put(F32x16 s, int g, int64_t d) const {
    if constexpr (kPartial) {
      StoreFirst(s, data + d * width, width);
    } else {
      Store(s, At(g, d));
    }
  }

 private:
  float* At(int g, int64_t d) const { return data + (g * key_dim + d) * kLanes; }
};

// What a row of the batch has for one value head.
struct DeltaRow {
  const float* q;
  const float* k;
  float* v;  // the columns' first; o afterwards
  float decay;
  float beta;
};

HWY_INLINE DeltaRow RowOf(const DeltaCall& c, int64_t row, int64_t head, int64_t column) {
  const LinearAttentionConfig& config = c.config;
  float* const x = c.x + row * config.conv_cols();
  const int64_t key_head = head / (config.value_heads / config.key_heads);
  const int64_t gate = row * config.value_heads + head;
  return {.q = x + key_head * config.key_dim,
          .k = x + config.key_cols() + key_head * config.key_dim,
          .v = x + 2 * config.key_cols() + head * config.value_dim + column,
          .decay = c.decay[gate],
          .beta = c.beta[gate]};
}

// Predictions of G groups of columns, S^T k.
template <int G>
struct Predictions {
  F32x16 p[G];
};

// Lets the state decay for the row.
template <int G, bool kPartial>
HWY_INLINE Predictions<G> Decay(const StateColumns<G, kPartial>& state, const DeltaRow& row) {
  Predictions<G> sum;
  const F32x16 decay = Set(row.decay);
  for (int g = 0; g < G; ++g) sum.p[g] = Zero();
  for (int64_t d = 0; d < state.key_dim; ++d) {
    const F32x16 k = Set(row.k[d]);
#pragma GCC unroll 4
    for (int g = 0; g < G; ++g) {
      const F32x16 s = Mul(state.Get(g, d), decay);
      sum.p[g] = MulAdd(k, s, sum.p[g]);
      state.Put(s, g, d);
    }
  }
  return sum;
}

// Adds the row's k u^T to the state that Decay has left, and writes o. kNext: Decay for `next` in
// the same pass.
template <int G, bool kPartial, bool kNext>
HWY_INLINE Predictions<G> Update(const StateColumns<G, kPartial>& state, const DeltaRow& row, const DeltaRow& next,
                                 const Predictions<G>& predicted) {
  F32x16 u[G], o[G];
  Predictions<G> sum;
#pragma GCC unroll 4
  for (int g = 0; g < G; ++g) {
    const F32x16 v = kPartial ? LoadFirst(row.v, state.width) : Load(row.v + g * kLanes);
    u[g] = Mul(Set(row.beta), Sub(v, predicted.p[g]));
    o[g] = Zero();
    sum.p[g] = Zero();
  }
  const F32x16 decay = Set(next.decay);
  for (int64_t d = 0; d < state.key_dim; ++d) {
    const F32x16 k = Set(row.k[d]), q = Set(row.q[d]), next_k = Set(next.k[d]);
#pragma GCC unroll 4
    for (int g = 0; g < G; ++g) {
      F32x16 s = MulAdd(k, u[g], state.Get(g, d));
      o[g] = MulAdd(q, s, o[g]);
      if constexpr (kNext) {
        s = Mul(s, decay);
        sum.p[g] = MulAdd(next_k, s, sum.p[g]);
      }
      state.Put(s, g, d);
    }
  }
#pragma GCC unroll 4
  for (int g = 0; g < G; ++g) {
    if constexpr (kPartial) {
      StoreFirst(o[g], row.v, state.width);
    } else {
      Store(o[g], row.v + g * kLanes);
    }
  }
  return sum;
}

// All rows of a run, for the columns from `column` on.
template <int G, bool kPartial>
void ColumnsOfRun(const DeltaCall& c, const SequenceRows& run, int64_t head, int64_t column) {
  const int64_t key_dim = c.config.key_dim, value_dim = c.config.value_dim;
  const StateColumns<G, kPartial> state{
      .data = run.heads + (head * value_dim + column) * key_dim, .key_dim = key_dim, .width = kPartial ? value_dim - column : kLanes};
  if (run.first) std::fill_n(state.data, G * key_dim * state.width, 0.0f);
  DeltaRow row = RowOf(c, run.begin, head, column);
  Predictions<G> predicted = Decay(state, row);
  for (int64_t i = run.begin + 1; i < run.end; ++i) {
    const DeltaRow next = RowOf(c, i, head, column);
    predicted = Update<G, kPartial, true>(state, row, next, predicted);
    row = next;
  }
  Update<G, kPartial, false>(state, row, row, predicted);
}

// At most kDeltaGroups groups of columns from `column` on.
void DeltaColumns(const DeltaCall& c, const SequenceRows& run, int64_t head, int64_t column) {
  const int64_t end = std::min(c.config.value_dim, column + kDeltaGroups * kLanes);
  if (column + kDeltaGroups * kLanes <= end) return ColumnsOfRun<kDeltaGroups, false>(c, run, head, column);
  for (; column + kLanes <= end; column += kLanes) ColumnsOfRun<1, false>(c, run, head, column);
  if (column < end) ColumnsOfRun<1, true>(c, run, head, column);
}

// ---- Output of one row

void OutputRow(const LinearAttentionConfig& config, const float* o, const float* z, const Values& weight, float eps, void* out,
               DType out_dtype) {
  const int64_t n = config.value_dim;
  WithWorkingType(out_dtype, [&](auto type) HWY_ATTR {
    auto* y = static_cast<decltype(type)*>(out);
    for (int64_t head = 0; head < config.value_heads; ++head, o += n, z += n, y += n) {
      const F32x16 scale = Set(InverseRoot(SumOfSquares(o, n), n, eps));
      for (int64_t i = 0; i < n; i += kLanes) {
        const F32x16 normed = Mul(Mul(LoadGroup(o, i, n), scale), LoadAny(weight.data, weight.dtype, i, n));
        StoreGroup(Mul(normed, Silu(LoadGroup(z, i, n))), y, i, n);
      }
    }
  });
}

}  // namespace
}  // namespace lime::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lime::cpu {

HWY_EXPORT(ConvolveColumns);
HWY_EXPORT(MakeUnits);
HWY_EXPORT(GateRow);
HWY_EXPORT(DeltaColumns);
HWY_EXPORT(OutputRow);

namespace {

// Below this, the work is done before a parked thread wakes.
constexpr int64_t kTinyElements = 16 * 1024;

// Calls fn(run, part) for all of them. `elements`: processed by all calls together.
template <typename Fn>
void ForEachPart(ThreadPool& pool, std::span<const SequenceRows> runs, int64_t parts, int64_t elements, const Fn& fn) {
  const auto call = [&](int64_t i, int /*thread*/) { fn(runs[static_cast<size_t>(i / parts)], i % parts); };
  const int64_t tasks = std::ssize(runs) * parts;
  if (elements >= kTinyElements && pool.num_threads() > 1) return pool.ParallelFor(tasks, call);
  for (int64_t i = 0; i < tasks; ++i) call(i, 0);
}

int64_t RowsOf(std::span<const SequenceRows> runs) {
  int64_t rows = 0;
  for (const SequenceRows& run : runs) rows += run.end - run.begin;
  return rows;
}

}  // namespace

void ConvolveAndNormalise(ThreadPool& pool, const LinearAttentionConfig& config, std::span<const SequenceRows> runs, const Values& filters,
                          float* x) {
  LIME_CHECK(config.conv_width >= 1 && config.conv_width <= kMaxConvWidth) << config.conv_width;
  const int64_t rows = RowsOf(runs), cols = config.conv_cols();
  const int64_t parts = (cols + kConvCols - 1) / kConvCols;
  ForEachPart(pool, runs, parts, rows * cols, [&](const SequenceRows& run, int64_t part) {
    const int64_t first = part * kConvCols;
    HWY_DYNAMIC_DISPATCH(ConvolveColumns)(config, run, filters, first, std::min(kConvCols, cols - first), x);
  });
  if (runs.empty()) return;
  float* const from = x + runs.front().begin * cols;
  ParallelRows(pool, rows, 2 * config.key_cols(), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) HWY_DYNAMIC_DISPATCH(MakeUnits)(config, from + row * cols);
  });
}

void DeltaGates(ThreadPool& pool, int64_t rows, int64_t value_heads, const Values& decay_log, const Values& decay_bias, float* decay,
                float* beta) {
  ParallelRows(pool, rows, value_heads, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row)
      HWY_DYNAMIC_DISPATCH(GateRow)(value_heads, decay_log, decay_bias, decay + row * value_heads, beta + row * value_heads);
  });
}

void DeltaRule(ThreadPool& pool, const LinearAttentionConfig& config, std::span<const SequenceRows> runs, const float* decay,
               const float* beta, float* x) {
  constexpr int64_t kCols = 16 * kDeltaGroups;
  const DeltaCall call{.config = config, .decay = decay, .beta = beta, .x = x};
  const int64_t per_head = (config.value_dim + kCols - 1) / kCols;
  ForEachPart(pool, runs, config.value_heads * per_head, RowsOf(runs) * DeltaHeadsFloats(config), [&](const SequenceRows& run, int64_t i) {
    HWY_DYNAMIC_DISPATCH(DeltaColumns)(call, run, i / per_head, i % per_head * kCols);
  });
}

void GatedDeltaOutput(ThreadPool& pool, const LinearAttentionConfig& config, int64_t rows, const float* x, const float* z,
                      const Values& weight, float eps, void* out, DType out_dtype) {
  const int64_t cols = config.value_cols(), row_bytes = cols * ElementBytes(out_dtype);
  ParallelRows(pool, rows, cols, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) HWY_DYNAMIC_DISPATCH(OutputRow)
    (config, x + row * config.conv_cols() + 2 * config.key_cols(), z + row * cols, weight, eps, static_cast<char*>(out) + row * row_bytes,
     out_dtype);
  });
}

}  // namespace lime::cpu
#endif  // HWY_ONCE
