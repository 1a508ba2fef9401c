#include "kernels/cpu/zero_prover.h"

#include <algorithm>
#include <cstring>

#include "kernels/cpu/base/hwy_targets.h"
#include "planner/base/check.h"
#include "planner/base/float_bits.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/zero_prover.cc"
#include <hwy/foreach_target.h>  // IWYU pragma: keep

#include "kernels/cpu/base/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lime::cpu::HWY_NAMESPACE {
namespace {

constexpr int64_t kFoldBlocks = 2048 / kCodeBlock;

// Bits of a plane of a block, for its columns [first, first + kVecLanes).
HWY_INLINE hn::Mask<BitsTag> PlaneMask(const uint8_t* block, int plane, int first) {
  const BitsTag d;
  if constexpr (kVecLanes >= 8) {
    uint64_t word = 0;  // LoadMaskBits may read 8 bytes
    std::memcpy(&word, block + 16 + 4 * plane + first / 8, kVecLanes / 8);
    return hn::LoadMaskBits(d, reinterpret_cast<const uint8_t*>(&word));
  } else {
    uint32_t word;
    std::memcpy(&word, block + 16 + 4 * plane, sizeof(word));
    return hn::TestBit(hn::Set(d, word >> first), hn::Shl(hn::Set(d, 1u), hn::Iota(d, 0)));
  }
}

// Codes of the columns [first, first + kVecLanes) of a block, as numbers.
template <int kBits>
HWY_INLINE LaneVec DecodeVec(const uint8_t* block, int first) {
  constexpr uint32_t kTop = 1u << (kBits - 1);  // a code plus this is what the block has
  const BitsTag d;
  const hn::Rebind<uint8_t, LaneTag> d8;
  auto value = hn::PromoteTo(d, hn::LoadU(d8, block + (kBits == 8 ? first : first % 16)));
  if constexpr (kBits < 8) value = first < 16 ? hn::And(value, hn::Set(d, 15u)) : hn::ShiftRight<4>(value);
  constexpr int kPlanes = kBits < 8 ? kBits - 4 : 0;
  if constexpr (kPlanes > 1) value = hn::IfThenElse(PlaneMask(block, 0, first), hn::Add(value, hn::Set(d, 16u)), value);
  if constexpr (kPlanes > 2) value = hn::IfThenElse(PlaneMask(block, 1, first), hn::Add(value, hn::Set(d, 32u)), value);
  // The last plane has the bit of value kTop, which the sum with kTop cancels.
  auto code = hn::Sub(value, hn::Set(d, kTop));
  if constexpr (kPlanes > 0) code = hn::IfThenElse(PlaneMask(block, kPlanes - 1, first), value, code);
  return hn::ConvertTo(LaneTag(), hn::BitCast(IntTag(), code));
}

template <int kBits>
HWY_INLINE F32x16 Decode(const uint8_t* block, int first) {
  F32x16 r;
  LIME_EACH_VEC(i) r.v[i] = DecodeVec<kBits>(block, first + i * kVecLanes);
  return r;
}

template <int kBits>
float CodeDotOf(const uint8_t* codes, const float* x, int64_t blocks) {
  float sum = 0;
  for (int64_t begin = 0; begin < blocks; begin += kFoldBlocks) {
    F32x16 low = Zero(), high = Zero();  // lanes 0 to 15, and 16 to 31
    for (int64_t b = begin; b < std::min(begin + kFoldBlocks, blocks); ++b) {
      const uint8_t* const block = codes + b * 4 * kBits;
      low = MulAdd(Decode<kBits>(block, 0), Load(x + b * kCodeBlock), low);
      high = MulAdd(Decode<kBits>(block, 16), Load(x + b * kCodeBlock + 16), high);
    }
    sum += ReduceAdd(Add(low, high));
  }
  return sum;
}

float CodeDot(const uint8_t* codes, int bits, const float* x, int64_t blocks) {
  switch (bits) {
    case 4:
      return CodeDotOf<4>(codes, x, blocks);
    case 5:
      return CodeDotOf<5>(codes, x, blocks);
    case 6:
      return CodeDotOf<6>(codes, x, blocks);
    case 7:
      return CodeDotOf<7>(codes, x, blocks);
    default:
      return CodeDotOf<8>(codes, x, blocks);
  }
}

// The sum of term(i), in eight partial sums that the compiler may keep in vectors.
template <typename Term>
HWY_INLINE double SumOf(int64_t n, const Term& term) {
  double sums[8] = {};
  int64_t i = 0;
  for (; i + 8 <= n; i += 8)
    for (int l = 0; l < 8; ++l) sums[l] += term(i + l);
  for (; i < n; ++i) sums[i % 8] += term(i);
  return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
}

double KeptDot(const int8_t* kept, const double* along, int64_t n) {
  return SumOf(n, [&](int64_t i) { return static_cast<double>(kept[i]) * along[i]; });
}

double AxisDot(const BF16* axis, const double* rest, int64_t n) {
  return SumOf(n, [&](int64_t i) { return static_cast<double>(ToFloat(axis[i])) * rest[i]; });
}

// rest[k] -= axis[k] * along, k in [0, n).
void SubtractAxis(const BF16* axis, double along, int64_t n, double* rest) {
  for (int64_t k = 0; k < n; ++k) rest[k] -= static_cast<double>(ToFloat(axis[k])) * along;
}

}  // namespace
}  // namespace lime::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lime::cpu {

HWY_EXPORT(CodeDot);
HWY_EXPORT(KeptDot);
HWY_EXPORT(AxisDot);
HWY_EXPORT(SubtractAxis);

ProverWorkspace::ProverWorkspace(const Options& options)
    : options_(options),
      x_(static_cast<size_t>(options.max_tokens * PaddedCols(options))),
      rest_(static_cast<size_t>(options.max_tokens * options.max_cols)),
      along_(static_cast<size_t>(options.max_tokens * options.max_directions)),
      norms_(static_cast<size_t>(options.max_tokens)),
      unproven_(static_cast<size_t>(options.max_rows)) {}

Bytes ProverWorkspace::BytesFor(const Options& options) {
  const auto of_token = static_cast<Bytes>(PaddedCols(options) * static_cast<int64_t>(sizeof(float)) +
                                           (options.max_cols + options.max_directions) * static_cast<int64_t>(sizeof(double)) +
                                           static_cast<int64_t>(sizeof(InputNorms)));
  return options.max_tokens * of_token + options.max_rows;
}

namespace {

// Columns of `rest` that one task changes.
constexpr int64_t kColumnsAtOnce = 512;

void ReadInput(const ProvenLayer& layer, const void* x, DType x_dtype, int64_t token, ProverWorkspace& ws) {
  const DeciderView& copy = *layer.copy;
  float* const read = ws.x(token);
  double* const rest = ws.rest(token);
  WithWorkingType(x_dtype, [&](auto type) {
    const auto* const from = static_cast<const decltype(type)*>(x) + token * copy.cols;
    for (int64_t k = 0; k < copy.cols; ++k) read[k] = AsRead(ToFloat(from[k]), layer.order);
  });
  std::fill(read + copy.cols, read + RoundUp(copy.cols, kCodeBlock), 0.0f);
  for (int64_t k = 0; k < copy.cols; ++k) rest[k] = static_cast<double>(read[k]) - static_cast<double>(copy.mean[k]);
}

void Project(ThreadPool& pool, const DeciderView& copy, int64_t token, ProverWorkspace& ws) {
  double* const rest = ws.rest(token);
  double* const along = ws.along(token);
  ParallelRows(pool, copy.directions, copy.cols, [&](int64_t begin, int64_t end) {
    for (int64_t j = begin; j < end; ++j) along[j] = HWY_DYNAMIC_DISPATCH(AxisDot)(copy.axes + j * copy.cols, rest, copy.cols);
  });
  const int64_t parts = (copy.cols + kColumnsAtOnce - 1) / kColumnsAtOnce;
  ParallelRows(pool, parts, kColumnsAtOnce * copy.directions, [&](int64_t begin, int64_t end) {
    const int64_t first = begin * kColumnsAtOnce, count = std::min(end * kColumnsAtOnce, copy.cols) - first;
    for (int64_t j = 0; j < copy.directions; ++j)
      HWY_DYNAMIC_DISPATCH(SubtractAxis)(copy.axes + j * copy.cols + first, along[j], count, rest + first);
  });
}

}  // namespace

size_t FindUnproven(ThreadPool& pool, ProverWorkspace& ws, const ProvenLayer& layer, const void* x, DType x_dtype, int64_t tokens,
                    float threshold, int32_t* ids) {
  const DeciderView& copy = *layer.copy;
  const ProverWorkspace::Options& most = ws.options();
  LIME_CHECK(tokens <= most.max_tokens && copy.rows <= most.max_rows && copy.cols <= most.max_cols &&
             copy.directions <= most.max_directions)
      << tokens << " tokens, " << copy.rows << " rows, " << copy.cols << " columns, " << copy.directions << " directions";
  for (int64_t token = 0; token < tokens; ++token) {
    ReadInput(layer, x, x_dtype, token, ws);
    Project(pool, copy, token, ws);
    ws.norms(token) = NormsOf(copy, {ws.x(token), static_cast<size_t>(copy.cols)}, {ws.along(token), static_cast<size_t>(copy.directions)},
                              {ws.rest(token), static_cast<size_t>(copy.cols)});
  }
  const int64_t blocks = (copy.cols + kCodeBlock - 1) / kCodeBlock;
  WithWorkingType(x_dtype, [&](auto type) {
    const auto* const bias = static_cast<const decltype(type)*>(layer.bias);
    ParallelRows(pool, copy.rows, tokens * copy.cols, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const float of_row = bias == nullptr ? 0.0f : ToFloat(bias[row]);
        bool proven = true;
        for (int64_t token = 0; token < tokens && proven; ++token) {
          const double codes = HWY_DYNAMIC_DISPATCH(CodeDot)(copy.CodesOf(row), copy.bits, ws.x(token), blocks);
          const double kept = HWY_DYNAMIC_DISPATCH(KeptDot)(copy.kept + row * copy.directions, ws.along(token), copy.directions);
          proven = BoundOf(copy, layer.order, row, of_row, ws.norms(token), codes, kept).Proves(threshold);
        }
        ws.unproven()[row] = proven ? 0 : 1;
      }
    });
  });
  size_t count = 0;
  for (int64_t row = 0; row < copy.rows; ++row) {
    if (ws.unproven()[row] != 0) ids[count++] = static_cast<int32_t>(row);
  }
  return count;
}

}  // namespace lime::cpu
#endif  // HWY_ONCE
