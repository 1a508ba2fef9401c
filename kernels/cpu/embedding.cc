#include "kernels/cpu/embedding.h"

#include <algorithm>

#include "kernels/cpu/convert.h"
#include "kernels/cpu/hwy_targets.h"
#include "kernels/cpu/parallel_rows.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/embedding.cc"
#include <hwy/foreach_target.h>  // IWYU pragma: keep

#include "kernels/cpu/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lime::cpu::HWY_NAMESPACE {
namespace {

// Elements i .. i + n - 1, n <= 16, of a row in any working dtype.
HWY_INLINE F32x16 LoadAny(const void* row, DType dtype, int64_t i, int64_t n) {
  F32x16 x;
  WithWorkingType(dtype, [&](auto type) HWY_ATTR {
    const auto* p = static_cast<const decltype(type)*>(row) + i;
    x = n == kLanes ? Load(p) : LoadFirst(p, n);
  });
  return x;
}

// Codes i .. i + n - 1 of a little-endian bit stream, as floats. Reads whole bytes of the codes and nothing beyond them.
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

// A group of 16 lies within one group of weights: group_size is a multiple of 16.
HWY_INLINE F32x16 LoadPacked(const Matrix& m, int64_t row, int64_t i, int64_t n) {
  const auto* stream = static_cast<const uint8_t*>(m.data) + row * m.RowBytes();
  const int64_t group = row * (m.cols / m.group_size) + i / m.group_size;
  float scale = 0, bias = 0;
  WithWorkingType(m.scale_dtype, [&](auto type) HWY_ATTR {
    scale = ToFloat(static_cast<const decltype(type)*>(m.scales)[group]);
    bias = ToFloat(static_cast<const decltype(type)*>(m.biases)[group]);
  });
  return MulAdd(Set(scale), LoadCodes(stream, m.bits, i, n), Set(bias));
}

void EmbedRow(const Matrix& table, int64_t id, const void* position_row, void* out, DType out_dtype) {
  const void* dense = static_cast<const char*>(table.data) + id * table.cols * ElementBytes(table.dtype);
  for (int64_t i = 0; i < table.cols; i += kLanes) {
    const int64_t n = std::min<int64_t>(kLanes, table.cols - i);
    F32x16 x = table.dtype == DType::kU32 ? LoadPacked(table, id, i, n) : LoadAny(dense, table.dtype, i, n);
    if (position_row != nullptr) x = Add(x, LoadAny(position_row, out_dtype, i, n));
    WithWorkingType(out_dtype, [&](auto type) HWY_ATTR {
      auto* p = static_cast<decltype(type)*>(out) + i;
      if (n == kLanes) {
        Store(x, p);
      } else {
        StoreFirst(x, p, n);
      }
    });
  }
}

}  // namespace
}  // namespace lime::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lime::cpu {

HWY_EXPORT(EmbedRow);

void EmbedTokens(ThreadPool& pool, const Matrix& table, const int32_t* ids, int64_t tokens, const LearnedPositions& learned, void* out,
                 DType out_dtype, int64_t out_stride) {
  const int64_t element = ElementBytes(out_dtype), row_bytes = table.cols * element;
  const bool copies = table.dtype == out_dtype && learned.table == nullptr;
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
      HWY_DYNAMIC_DISPATCH(EmbedRow)(table, ids[t], position_row, row, out_dtype);
    }
  });
}

}  // namespace lime::cpu
#endif  // HWY_ONCE
