#include "kernels/cpu/row_ops.h"

#include <algorithm>

#include "kernels/cpu/base/hwy_targets.h"
#include "planner/base/check.h"
#include "planner/base/float_bits.h"
#include "planner/base/small_floats.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/row_ops.cc"
#include <hwy/foreach_target.h>  // IWYU pragma: keep

#include "kernels/cpu/row_lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lime::cpu::HWY_NAMESPACE {
namespace {

// ---- Embedding

// Loads codes i .. i + n - 1 of a little-endian bit stream as floats. Reads only the bytes that
// hold these codes.
HWY_INLINE F32x16 LoadCodes(const uint8_t* stream, int bits, int64_t i, int64_t n) {
  alignas(64) float codes[kLanes] = {};
  for (int64_t k = 0; k < n; ++k) {
    const int64_t bit = (i + k) * bits;
    uint32_t window = stream[bit / 8];
    if (bit % 8 + bits > 8) window |= uint32_t{stream[bit / 8 + 1]} << 8;
    codes[k] = static_cast<float>((window >> (bit % 8)) & ((1u << bits) - 1));
  }
  return Load(codes);
}

// Elements i .. i + n - 1 of a row of mxfp4; i is even.
HWY_INLINE F32x16 LoadMxfp4(const Matrix& m, int64_t row, int64_t i, int64_t n) {
  const auto* codes = static_cast<const uint8_t*>(m.data) + row * m.RowBytes();
  const float scale = PowerOfCode(static_cast<const uint8_t*>(m.scales)[row * m.Groups() + i / m.group_size]);
  alignas(64) float values[kLanes] = {};
  for (int64_t k = 0; k < n; ++k) values[k] = scale * kFp4Values[codes[(i + k) / 2] >> ((i + k) % 2 * 4) & 15];
  return Load(values);
}

// The 16 elements lie within one group of weights, since group_size is a multiple of 16.
HWY_INLINE F32x16 LoadPacked(const Matrix& m, int64_t row, int64_t i, int64_t n) {
  if (m.dtype == DType::kU8) return LoadMxfp4(m, row, i, n);
  const auto* stream = static_cast<const uint8_t*>(m.data) + row * m.RowBytes();
  const int64_t group = row * (m.cols / m.group_size) + i / m.group_size;
  float scale = 0, bias = 0;
  WithWorkingType(m.scale_dtype, [&](auto type) HWY_ATTR {
    scale = ToFloat(static_cast<const decltype(type)*>(m.scales)[group]);
    bias = ToFloat(static_cast<const decltype(type)*>(m.biases)[group]);
  });
  return MulAdd(Set(scale), LoadCodes(stream, m.bits, i, n), Set(bias));
}

void EmbedRow(const Matrix& table, int64_t id, const void* position_row, float multiplier, void* out, DType out_dtype) {
  const void* dense = static_cast<const char*>(table.data) + id * table.cols * ElementBytes(table.dtype);
  for (int64_t i = 0; i < table.cols; i += kLanes) {
    F32x16 x =
        table.IsPacked() ? LoadPacked(table, id, i, std::min<int64_t>(kLanes, table.cols - i)) : LoadAny(dense, table.dtype, i, table.cols);
    if (position_row != nullptr) x = Add(x, LoadAny(position_row, out_dtype, i, table.cols));
    if (multiplier != 1.0f) x = Mul(x, Set(multiplier));
    WithWorkingType(out_dtype, [&](auto type) HWY_ATTR { StoreGroup(x, static_cast<decltype(type)*>(out), i, table.cols); });
  }
}

// ---- Norms

template <typename T>
HWY_INLINE float Sum(const T* x, int64_t width) {
  F32x16 low = Zero(), high = Zero();
  for (int64_t i = 0; i < width; i += 2 * kLanes) {
    low = Add(low, LoadGroup(x, i, width));
    if (i + kLanes < width) high = Add(high, LoadGroup(x, i + kLanes, width));
  }
  return ReduceAdd(Add(low, high));
}

// x - mean. Lanes beyond the row are zero, so they add nothing to the variance.
template <typename T>
HWY_INLINE F32x16 Centred(const T* row, int64_t i, int64_t width, F32x16 mean) {
  const F32x16 centred = Sub(LoadGroup(row, i, width), mean);
  if (i + kLanes <= width) return centred;
  float lanes[kLanes];
  Store(centred, lanes);
  return LoadFirst(lanes, width - i);
}

template <typename T>
HWY_INLINE float SumOfCentredSquares(const T* x, int64_t width, float mean) {
  F32x16 low = Zero(), high = Zero();
  const F32x16 m = Set(mean);
  for (int64_t i = 0; i < width; i += 2 * kLanes) {
    const F32x16 a = Centred(x, i, width, m);
    low = MulAdd(a, a, low);
    if (i + kLanes >= width) continue;
    const F32x16 b = Centred(x, i + kLanes, width, m);
    high = MulAdd(b, b, high);
  }
  return ReduceAdd(Add(low, high));
}

template <typename X, typename W>
HWY_INLINE void RmsNormRow(const X* x, const W* weight, float weight_offset, int64_t width, float eps, X* out) {
  const F32x16 scale = Set(InverseRoot(SumOfSquares(x, width), width, eps));
  for (int64_t i = 0; i < width; i += kLanes) {
    F32x16 w = weight == nullptr ? Set(1.0f) : LoadGroup(weight, i, width);
    if (weight_offset != 0) w = Add(w, Set(weight_offset));
    StoreGroup(Mul(Mul(LoadGroup(x, i, width), scale), w), out, i, width);
  }
}

template <typename W, typename X>
HWY_INLINE void RmsNormAddToRow(const float* y, const W* weight, float weight_offset, int64_t width, float eps, float multiplier,
                                float sum_scale, X* x) {
  const F32x16 scale = Set(InverseRoot(SumOfSquares(y, width), width, eps));
  for (int64_t i = 0; i < width; i += kLanes) {
    F32x16 w = LoadGroup(weight, i, width);
    if (weight_offset != 0) w = Add(w, Set(weight_offset));
    const F32x16 added = Mul(Mul(LoadGroup(y, i, width), scale), w);
    const F32x16 sum = MulAdd(added, Set(multiplier), LoadGroup(x, i, width));
    StoreGroup(Mul(sum, Set(sum_scale)), x, i, width);
  }
}

template <typename T, typename W>
HWY_INLINE void LayerNormRow(const T* x, const W* weight, const W* bias, int64_t width, float eps, T* out) {
  const float mean = Sum(x, width) / static_cast<float>(width);
  const F32x16 m = Set(mean), scale = Set(InverseRoot(SumOfCentredSquares(x, width, mean), width, eps));
  for (int64_t i = 0; i < width; i += kLanes) {
    F32x16 y = Mul(Sub(LoadGroup(x, i, width), m), scale);
    const F32x16 b = bias != nullptr ? LoadGroup(bias, i, width) : Zero();
    y = MulAdd(y, weight != nullptr ? LoadGroup(weight, i, width) : Set(1.0f), b);
    StoreGroup(y, out, i, width);
  }
}

// Calls fn with a value of the rows' type and a value of the weights' type.
template <typename Fn>
HWY_INLINE void WithNormTypes(const NormShape& s, const Fn& fn) {
  WithWorkingType(s.dtype, [&](auto x) HWY_ATTR { WithWorkingType(s.weight_dtype, [&](auto weight) HWY_ATTR { fn(x, weight); }); });
}

void RmsNormRows(const NormShape& s, const void* x, const void* weight, float eps, void* out, int64_t begin, int64_t end) {
  WithNormTypes(s, [&](auto x_type, auto weight_type) HWY_ATTR {
    using T = decltype(x_type);
    using W = decltype(weight_type);
    for (int64_t row = begin; row < end; ++row)
      RmsNormRow(static_cast<const T*>(x) + row * s.x_stride, static_cast<const W*>(weight), s.weight_offset, s.width, eps,
                 static_cast<T*>(out) + row * s.out_stride);
  });
}

void RmsNormAddToRows(const NormShape& s, const float* y, const void* weight, float eps, float multiplier, void* x, float scale,
                      int64_t begin, int64_t end) {
  WithNormTypes(s, [&](auto x_type, auto weight_type) HWY_ATTR {
    using T = decltype(x_type);
    using W = decltype(weight_type);
    for (int64_t row = begin; row < end; ++row)
      RmsNormAddToRow(y + row * s.x_stride, static_cast<const W*>(weight), s.weight_offset, s.width, eps, multiplier, scale,
                      static_cast<T*>(x) + row * s.out_stride);
  });
}

void LayerNormRows(const NormShape& s, const void* x, const void* weight, const void* bias, float eps, void* out, int64_t begin,
                   int64_t end) {
  WithNormTypes(s, [&](auto x_type, auto weight_type) HWY_ATTR {
    using T = decltype(x_type);
    using W = decltype(weight_type);
    for (int64_t row = begin; row < end; ++row)
      LayerNormRow(static_cast<const T*>(x) + row * s.x_stride, static_cast<const W*>(weight), static_cast<const W*>(bias), s.width, eps,
                   static_cast<T*>(out) + row * s.out_stride);
  });
}

void HeadRmsNormRow(const HeadShape& s, float* x, const void* weight, DType weight_dtype, float eps, float weight_offset) {
  WithWorkingType(weight_dtype, [&](auto type) HWY_ATTR {
    using W = decltype(type);
    for (int64_t head = 0; head < s.heads; ++head, x += s.head_dim)
      RmsNormRow(x, static_cast<const W*>(weight), weight_offset, s.head_dim, eps, x);
  });
}

// ---- Rotation

HWY_INLINE void Rotate(F32x16& a, F32x16& b, F32x16 c, F32x16 s) {
  const F32x16 first = MulAdd(a, c, Neg(Mul(b, s)));
  b = MulAdd(b, c, Mul(a, s));
  a = first;
}

void RotateHeads(const HeadShape& s, float* x, const float* cos, const float* sin, int64_t half) {
  for (int64_t head = 0; head < s.heads; ++head, x += s.head_dim) {
    int64_t d = 0;
    for (; d + kLanes <= half; d += kLanes) {
      F32x16 a = Load(x + d), b = Load(x + half + d);
      Rotate(a, b, Load(cos + d), Load(sin + d));
      Store(a, x + d);
      Store(b, x + half + d);
    }
    if (d == half) continue;
    const int64_t n = half - d;
    F32x16 a = LoadFirst(x + d, n), b = LoadFirst(x + half + d, n);
    Rotate(a, b, LoadFirst(cos + d, n), LoadFirst(sin + d, n));
    StoreFirst(a, x + d, n);
    StoreFirst(b, x + half + d, n);
  }
}

void ScaleRow(float* x, int64_t n, float factor) {
  for (int64_t i = 0; i < n; i += kLanes) StoreGroup(Mul(LoadGroup(x, i, n), Set(factor)), x, i, n);
}

// ---- Activation

struct SiluOf {
  HWY_INLINE F32x16 operator()(F32x16 x) const { return Silu(x); }
};

struct ReluOf {
  HWY_INLINE F32x16 operator()(F32x16 x) const { return ZeroIfNegative(x); }
};

struct GeluOf {
  HWY_INLINE F32x16 operator()(F32x16 x) const { return Gelu(x); }
};

struct GeluTanhOf {
  HWY_INLINE F32x16 operator()(F32x16 x) const { return GeluTanh(x); }
};

// act(gate) * up.
template <typename Act>
struct Gated {
  HWY_INLINE F32x16 operator()(F32x16 gate, F32x16 up) const { return Mul(Act()(gate), up); }
};

// act(gate) alone.
template <typename Act>
struct Plain {
  HWY_INLINE F32x16 operator()(F32x16 gate, F32x16 /*up*/) const { return Act()(gate); }
};

struct ClampedSwiglu {
  F32x16 limit;
  HWY_INLINE F32x16 operator()(F32x16 gate, F32x16 up) const {
    const F32x16 g = Smaller(limit, gate), u = Greater(Neg(limit), Smaller(limit, up));
    return Mul(Add(u, Set(1.0f)), Mul(g, Sigmoid(Mul(g, Set(1.702f)))));
  }
};

struct FatRelu {
  F32x16 threshold;
  HWY_INLINE F32x16 operator()(F32x16 gate, F32x16 up) const { return Mul(ZeroUpTo(threshold, gate), up); }
};

struct DoubleRelu {
  HWY_INLINE F32x16 operator()(F32x16 gate, F32x16 up) const { return Mul(ZeroIfNegative(gate), ZeroIfNegative(up)); }
};

// Sixteen values of gate and up from a row of each. `up` is null for a plain activation.
struct TwoRows {
  const float* gate;
  const float* up;
  HWY_INLINE void Get(int64_t i, int64_t n, F32x16& g, F32x16& u) const {
    g = LoadGroup(gate, i, n);
    u = up != nullptr ? LoadGroup(up, i, n) : g;
  }
};

// From one row in which they alternate.
struct OneRow {
  const float* x;
  HWY_INLINE void Get(int64_t i, int64_t n, F32x16& g, F32x16& u) const {
    alignas(64) float gate[kLanes] = {}, up[kLanes] = {};
    for (int64_t k = 0; k < std::min<int64_t>(kLanes, n - i); ++k) gate[k] = x[2 * (i + k)], up[k] = x[2 * (i + k) + 1];
    g = Load(gate), u = Load(up);
  }
};

template <typename Act, typename Source, typename T>
HWY_INLINE void Row(const Act& act, const Source& source, int64_t n, T* out) {
  for (int64_t i = 0; i < n; i += kLanes) {
    F32x16 gate, up;
    source.Get(i, n, gate, up);
    StoreGroup(act(gate, up), out, i, n);
  }
}

// Calls fn with the functor of gate and up.
template <template <typename> class Form, typename Fn>
HWY_INLINE void WithActivation(Activation activation, float limit, const Fn& fn) {
  switch (activation) {
    case Activation::kSilu:
      return fn(Form<SiluOf>());
    case Activation::kRelu:
      return fn(Form<ReluOf>());
    case Activation::kGelu:
      return fn(Form<GeluOf>());
    case Activation::kGeluTanh:
      return fn(Form<GeluTanhOf>());
    case Activation::kClampedSwiglu:
      return fn(ClampedSwiglu{Set(limit)});
    case Activation::kFatRelu:
      return fn(FatRelu{Set(limit)});
    case Activation::kDoubleRelu:
      return fn(DoubleRelu());
  }
}

void ActivationRow(Activation activation, float limit, const float* gate, const float* up, int64_t n, void* out, DType dtype) {
  WithWorkingType(dtype, [&](auto type) HWY_ATTR {
    const auto row = [&](const auto& act) HWY_ATTR { Row(act, TwoRows{gate, up}, n, static_cast<decltype(type)*>(out)); };
    up != nullptr ? WithActivation<Gated>(activation, limit, row) : WithActivation<Plain>(activation, limit, row);
  });
}

void AlternatingRow(Activation activation, float limit, const float* x, int64_t n, void* out, DType dtype) {
  WithWorkingType(dtype, [&](auto type) HWY_ATTR {
    WithActivation<Gated>(activation, limit, [&](const auto& act) HWY_ATTR { Row(act, OneRow{x}, n, static_cast<decltype(type)*>(out)); });
  });
}

void DivideRow(float* x, int64_t n, float divisor) {
  for (int64_t i = 0; i < n; i += kLanes) StoreGroup(Div(LoadGroup(x, i, n), Set(divisor)), x, i, n);
}

void CapRow(float* x, int64_t n, float cap) {
  for (int64_t i = 0; i < n; i += kLanes) StoreGroup(SoftCap(LoadGroup(x, i, n), cap), x, i, n);
}

}  // namespace
}  // namespace lime::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lime::cpu {
HWY_EXPORT(EmbedRow);

void EmbedTokens(ThreadPool& pool, const Matrix& table, const int32_t* ids, int64_t tokens, const LearnedPositions& learned, void* out,
                 DType out_dtype, int64_t out_stride, float multiplier) {
  const int64_t element = ElementBytes(out_dtype), row_bytes = table.cols * element;
  const bool copies = table.dtype == out_dtype && learned.table == nullptr && multiplier == 1.0f;
  ParallelRows(pool, tokens, table.cols, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      char* row = static_cast<char*>(out) + t * out_stride * element;
      if (copies) {
        std::memcpy(row, static_cast<const char*>(table.data) + ids[t] * row_bytes, row_bytes);
        continue;
      }
      const void* position_row = learned.table == nullptr
                                     ? nullptr
                                     : static_cast<const char*>(learned.table) + (learned.positions[t] + learned.offset) * row_bytes;
      HWY_DYNAMIC_DISPATCH(EmbedRow)(table, ids[t], position_row, multiplier, row, out_dtype);
    }
  });
}

HWY_EXPORT(RmsNormRows);
HWY_EXPORT(RmsNormAddToRows);
HWY_EXPORT(LayerNormRows);
HWY_EXPORT(HeadRmsNormRow);

void RmsNorm(ThreadPool& pool, const NormShape& shape, const void* x, const void* weight, float eps, void* out) {
  ParallelRows(pool, shape.rows, shape.width, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(RmsNormRows)(shape, x, weight, eps, out, begin, end);
  });
}

void RmsNormAddTo(ThreadPool& pool, const NormShape& shape, const float* y, const void* weight, float eps, float multiplier, void* x,
                  float scale) {
  ParallelRows(pool, shape.rows, shape.width, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(RmsNormAddToRows)(shape, y, weight, eps, multiplier, x, scale, begin, end);
  });
}

void LayerNorm(ThreadPool& pool, const NormShape& shape, const void* x, const void* weight, const void* bias, float eps, void* out) {
  ParallelRows(pool, shape.rows, shape.width, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(LayerNormRows)(shape, x, weight, bias, eps, out, begin, end);
  });
}

void HeadRmsNorm(ThreadPool& pool, const HeadShape& shape, float* x, const void* weight, DType weight_dtype, float eps,
                 float weight_offset) {
  ParallelRows(pool, shape.tokens, shape.heads * shape.head_dim, [&](int64_t begin, int64_t end) {
    for (int64_t token = begin; token < end; ++token)
      HWY_DYNAMIC_DISPATCH(HeadRmsNormRow)(shape, x + token * shape.stride, weight, weight_dtype, eps, weight_offset);
  });
}

HWY_EXPORT(RotateHeads);

void ApplyRope(ThreadPool& pool, const HeadShape& shape, float* x, const Rotations& rotations, const int32_t* positions) {
  const int64_t half = rotations.half;
  ParallelRows(pool, shape.tokens, 2 * shape.heads * half, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) HWY_DYNAMIC_DISPATCH(RotateHeads)
    (shape, x + t * shape.stride, rotations.cos + positions[t] * half, rotations.sin + positions[t] * half, half);
  });
}

HWY_EXPORT(ScaleRow);

void ScaleHeads(ThreadPool& pool, const HeadShape& shape, float* x, const float* factors, const int32_t* positions) {
  const int64_t n = shape.heads * shape.head_dim;
  ParallelRows(pool, shape.tokens, n, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) HWY_DYNAMIC_DISPATCH(ScaleRow)(x + t * shape.stride, n, factors[positions[t]]);
  });
}

HWY_EXPORT(ActivationRow);
HWY_EXPORT(AlternatingRow);

constexpr bool NeedsUp(Activation activation) {
  return activation == Activation::kClampedSwiglu || activation == Activation::kFatRelu || activation == Activation::kDoubleRelu;
}

void GatedActivation(ThreadPool& pool, Activation activation, const float* gate, const float* up, int64_t tokens, int64_t n,
                     int64_t in_stride, void* out, DType out_dtype, int64_t out_stride, float limit) {
  LIME_CHECK(up != nullptr || !NeedsUp(activation));
  const int64_t row_bytes = out_stride * ElementBytes(out_dtype);
  ParallelRows(pool, tokens, n, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) HWY_DYNAMIC_DISPATCH(ActivationRow)
    (activation, limit, gate + t * in_stride, up != nullptr ? up + t * in_stride : nullptr, n, static_cast<char*>(out) + t * row_bytes,
     out_dtype);
  });
}

void AlternatingActivation(ThreadPool& pool, Activation activation, const float* x, int64_t tokens, int64_t n, int64_t in_stride, void* out,
                           DType out_dtype, int64_t out_stride, float limit) {
  const int64_t row_bytes = out_stride * ElementBytes(out_dtype);
  ParallelRows(pool, tokens, n, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t)
      HWY_DYNAMIC_DISPATCH(AlternatingRow)(activation, limit, x + t * in_stride, n, static_cast<char*>(out) + t * row_bytes, out_dtype);
  });
}

HWY_EXPORT(DivideRow);

void DivideRows(ThreadPool& pool, float* x, int64_t rows, int64_t n, int64_t stride, float divisor) {
  ParallelRows(pool, rows, n, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) HWY_DYNAMIC_DISPATCH(DivideRow)(x + row * stride, n, divisor);
  });
}

HWY_EXPORT(CapRow);

void CapRows(ThreadPool& pool, float* x, int64_t rows, int64_t n, int64_t stride, float cap) {
  ParallelRows(pool, rows, n, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) HWY_DYNAMIC_DISPATCH(CapRow)(x + row * stride, n, cap);
  });
}

}  // namespace lime::cpu
#endif  // HWY_ONCE
