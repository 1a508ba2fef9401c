#include "kernels/cpu/zero_prover.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "common/proven_zeros/rounded_up.h"
#include "kernels/cpu/base/hwy_targets.h"
#include "planner/base/check.h"
#include "planner/base/float_bits.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/zero_prover.cc"
#include <hwy/foreach_target.h>  // IWYU pragma: keep

#include "kernels/cpu/base/lanes-inl.h"

#ifndef LIME_EACH_CHAIN
#define LIME_EACH_CHAIN(i) _Pragma("GCC unroll 4") for (int i = 0; i < kChains; ++i)
#endif

HWY_BEFORE_NAMESPACE();
namespace lime::cpu::HWY_NAMESPACE {
namespace {

#if LIME_LANES_EMULATED
int64_t CodeDot(const uint8_t* codes, int bits, const int16_t* x, int64_t blocks) {
  const DeciderView row{.rows = 1, .cols = blocks * kCodeBlock, .bits = bits, .codes = codes};
  int64_t sum = 0;
  for (int64_t k = 0; k < row.cols; ++k) sum += int64_t{row.CodeAt(0, k)} * x[k];
  return sum;
}
#else
// Whole numbers of 16 bits: a block of codes fills one vector, or a few.
using WordTag = hn::CappedTag<int16_t, static_cast<size_t>(kCodeBlock)>;
using WordBitsTag = hn::RebindToUnsigned<WordTag>;
using WordBits = hn::Vec<WordBitsTag>;
constexpr int kWordLanes = hn::MaxLanes(WordTag());

// Blocks whose products are added in 32 bits. At least four lanes share them.
constexpr int64_t kFoldBlocks = 64;
static_assert(kFoldBlocks * kCodeBlock / 4 * (1 << (kMostCopyBits - 1)) * ProverWorkspace::kMostWord <=
              std::numeric_limits<int32_t>::max());

// The hardware does not prefetch beyond a page.
constexpr int64_t kPrefetchBytes = 2048;

// Bits of a plane of a block, for its columns [first, first + kWordLanes).
HWY_INLINE hn::Mask<WordBitsTag> PlaneMask(const uint8_t* block, int plane, int first) {
  uint64_t word = 0;  // LoadMaskBits may read 8 bytes
  std::memcpy(&word, block + 16 + 4 * plane + first / 8, kWordLanes / 8);
  return hn::LoadMaskBits(WordBitsTag(), reinterpret_cast<const uint8_t*>(&word));
}

// The low four bits, or all eight, of the columns [first, first + kWordLanes) of a block.
template <int kBits>
HWY_INLINE WordBits LowBits(const uint8_t* block, int first) {
  const WordBitsTag d;
  if constexpr (kBits == 8) return hn::PromoteTo(d, hn::LoadU(hn::Rebind<uint8_t, WordBitsTag>(), block + first));
  if constexpr (kWordLanes == kCodeBlock) {
    const hn::Half<WordBitsTag> half;
    const auto columns = hn::PromoteTo(half, hn::LoadU(hn::Rebind<uint8_t, decltype(half)>(), block));
    return hn::And(hn::Combine(d, hn::ShiftRight<4>(columns), columns), hn::Set(d, 15));
  } else {
    const auto columns = hn::PromoteTo(d, hn::LoadU(hn::Rebind<uint8_t, WordBitsTag>(), block + first % 16));
    return first < 16 ? hn::And(columns, hn::Set(d, 15)) : hn::ShiftRight<4>(columns);
  }
}

// Codes of these columns.
template <int kBits>
HWY_INLINE hn::Vec<WordTag> Decode(const uint8_t* block, int first) {
  constexpr uint16_t kTop = 1 << (kBits - 1);  // a code plus this is what the block has
  constexpr int kPlanes = kBits < 8 ? kBits - 4 : 0;
  const WordBitsTag d;
  WordBits value = LowBits<kBits>(block, first);
  if constexpr (kPlanes > 1) value = hn::IfThenElse(PlaneMask(block, 0, first), hn::Add(value, hn::Set(d, 16)), value);
  if constexpr (kPlanes > 2) value = hn::IfThenElse(PlaneMask(block, 1, first), hn::Add(value, hn::Set(d, 32)), value);
  // The last plane has the bit of value kTop, which the sum with kTop cancels.
  WordBits code = hn::Sub(value, hn::Set(d, kTop));
  if constexpr (kPlanes > 0) code = hn::IfThenElse(PlaneMask(block, kPlanes - 1, first), value, code);
  return hn::BitCast(WordTag(), code);
}

template <int kBits>
int64_t CodeDotOf(const uint8_t* codes, const int16_t* x, int64_t blocks) {
  constexpr int kChains = 4;  // of additions, side by side
  const WordTag d;
  const hn::RepartitionToWide<WordTag> d32;
  int64_t sum = 0;
  for (int64_t begin = 0; begin < blocks; begin += kFoldBlocks) {
    const int64_t end = std::min(begin + kFoldBlocks, blocks);
    hn::Vec<decltype(d32)> low[kChains], high[kChains];
    LIME_EACH_CHAIN(i) low[i] = high[i] = hn::Zero(d32);
    const auto add = [&](int64_t block, int chain) HWY_ATTR {
      _Pragma("GCC unroll 4") for (int first = 0; first < kCodeBlock; first += kWordLanes) {
        const auto words = hn::LoadU(d, x + block * kCodeBlock + first);
        low[chain] = hn::ReorderWidenMulAccumulate(d32, Decode<kBits>(codes + block * 4 * kBits, first), words, low[chain], high[chain]);
      }
    };
    int64_t block = begin;
    for (; block + kChains <= end; block += kChains) {
      for (int i = 0; i < kChains * 4 * kBits; i += 64) __builtin_prefetch(codes + block * 4 * kBits + kPrefetchBytes + i);
      LIME_EACH_CHAIN(i) add(block + i, i);
    }
    for (; block < end; ++block) add(block, 0);
    auto total = hn::Zero(d32);
    LIME_EACH_CHAIN(i) total = hn::Add(total, hn::Add(low[i], high[i]));
    // The sum of the lanes needs more than 32 bits.
    const int64_t upper = hn::GetLane(hn::SumOfLanes(d32, hn::ShiftRight<16>(total)));
    sum += upper * 0x10000 + hn::GetLane(hn::SumOfLanes(d32, hn::And(total, hn::Set(d32, 0xffff))));
  }
  return sum;
}

int64_t CodeDot(const uint8_t* codes, int bits, const int16_t* x, int64_t blocks) {
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
#endif

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
      x_(static_cast<size_t>(options.max_tokens * options.max_cols)),
      words_(static_cast<size_t>(options.max_tokens * PaddedCols(options))),
      steps_(static_cast<size_t>(options.max_tokens)),
      rest_(static_cast<size_t>(options.max_tokens * options.max_cols)),
      along_(static_cast<size_t>(options.max_tokens * options.max_directions)),
      norms_(static_cast<size_t>(options.max_tokens)),
      unproven_(static_cast<size_t>(options.max_rows)) {}

Bytes ProverWorkspace::BytesFor(const Options& options) {
  const auto of_token =
      static_cast<Bytes>(PaddedCols(options) * static_cast<int64_t>(sizeof(int16_t)) +
                         options.max_cols * static_cast<int64_t>(sizeof(float) + sizeof(double)) +
                         (options.max_directions + 1) * static_cast<int64_t>(sizeof(double)) + static_cast<int64_t>(sizeof(InputNorms)));
  return options.max_tokens * of_token + options.max_rows;
}

namespace {

// Columns of `rest` that one task changes.
constexpr int64_t kColumnsAtOnce = 512;

// Writes x as whole numbers times a step, which is a power of two: products of these are exact. Returns the
// norm of what they leave out of x. An x with NaN or infinity becomes zeros; its own norm keeps it from
// proving anything.
double WriteWords(int64_t cols, int64_t token, ProverWorkspace& ws) {
  const float* const x = ws.x(token);
  int16_t* const words = ws.words(token);
  double* const left = ws.rest(token);  // exact, too
  float most = 0;
  bool finite = true;
  for (int64_t k = 0; k < cols; ++k) finite = finite && std::isfinite(x[k]), most = std::max(most, std::abs(x[k]));
  const double step = finite && most > 0 ? std::ldexp(1.0, std::ilogb(most) + 1 - ProverWorkspace::kWordBits) : 1;
  constexpr double kMost = ProverWorkspace::kMostWord;
  for (int64_t k = 0; k < cols; ++k) {
    const double value = finite ? x[k] : 0;
    words[k] = static_cast<int16_t>(std::clamp(std::nearbyint(value / step), -kMost, kMost));
    left[k] = value - words[k] * step;
  }
  std::fill(words + cols, words + RoundUp(cols, kCodeBlock), int16_t{0});
  ws.step(token) = step;
  return NormAbove(std::span<const double>(left, static_cast<size_t>(cols)));
}

void ReadInput(const ProvenLayer& layer, const void* x, DType x_dtype, int64_t token, ProverWorkspace& ws) {
  const DeciderView& copy = *layer.copy;
  float* const read = ws.x(token);
  WithWorkingType(x_dtype, [&](auto type) {
    const auto* const from = static_cast<const decltype(type)*>(x) + token * copy.cols;
    for (int64_t k = 0; k < copy.cols; ++k) read[k] = AsRead(ToFloat(from[k]), layer.order);
  });
}

// The input without its mean.
void SubtractMean(const DeciderView& copy, int64_t token, ProverWorkspace& ws) {
  const float* const read = ws.x(token);
  double* const rest = ws.rest(token);
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
    const double left_out = WriteWords(copy.cols, token, ws);
    SubtractMean(copy, token, ws);
    Project(pool, copy, token, ws);
    ws.norms(token) = NormsOf(copy, {ws.x(token), static_cast<size_t>(copy.cols)}, {ws.along(token), static_cast<size_t>(copy.directions)},
                              {ws.rest(token), static_cast<size_t>(copy.cols)});
    ws.norms(token).product = left_out;
  }
  const int64_t blocks = (copy.cols + kCodeBlock - 1) / kCodeBlock;
  WithWorkingType(x_dtype, [&](auto type) {
    const auto* const bias = static_cast<const decltype(type)*>(layer.bias);
    ParallelRows(pool, copy.rows, tokens * copy.cols, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const float of_row = bias == nullptr ? 0.0f : ToFloat(bias[row]);
        bool proven = true;
        for (int64_t token = 0; token < tokens && proven; ++token) {
          const auto codes = static_cast<double>(HWY_DYNAMIC_DISPATCH(CodeDot)(copy.CodesOf(row), copy.bits, ws.words(token), blocks));
          const double kept = HWY_DYNAMIC_DISPATCH(KeptDot)(copy.kept + row * copy.directions, ws.along(token), copy.directions);
          proven = BoundOf(copy, layer.order, row, of_row, ws.norms(token), codes * ws.step(token), kept).Proves(threshold);
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
