// GEMV and GEMM of packed weights by bf16, in terms of the step of linear_bf16-inl.h: every q of 3,
// 4, 6 or 8 bits, every fp4 and every fp8 is exact in bf16. docs/reference/numerics.md defines the order.
//
// Included by linear_bf16-inl.h alone. A vector of weights has a pair of q of each of 16 rows. So a
// group's sums need no addition of lanes, and one multiply-add scales the group's sums of 16 rows.

namespace lime::cpu::bf16 {
namespace {

constexpr int kBlockRows = 16;  // rows of a vector
// Tokens and blocks of rows of a GEMM tile: 24 accumulators, two vectors of weights, and x.
constexpr int kPackedTileTokens = 12, kTileBlocks = 2;
constexpr int kPairRows = kTileBlocks * kBlockRows;
constexpr int64_t kPairStepBytes = kTileBlocks * kVecBytes;
// Columns of a panel: half of a private cache.
constexpr int64_t kPanelColumns = kPanelChunks * kChunkElements;
// Columns that a tile processes before the next rows. The tile's x stays in L1.
constexpr int64_t kBlockColumns = 512;
// Packed x of 32 columns: the pairs, and sums over 32, 64 and 128 columns.
constexpr int kPackedChunkFloats = kPlaneElements / 2 + 2;
// With more tokens, the sums of one unit keep the CPU busy.
constexpr int kInterleavedTokens = 4;
constexpr int kScaleGroups = 8;             // groups whose scales are expanded at a time
constexpr int64_t kRowPrefetchBytes = 384;  // of a row, ahead of what is used

// The GEMM keeps accumulators, scales and biases in ThreadScratch::lanes.
static_assert(kMaxPanelRows * (kPackedTileTokens + 2 * kSumChunks) <= kMaxPanelRows * kMaxTileTokens * kChunk);

// Affine groups of kBits_ bits: scale * q + bias.
template <int kBits_>
struct Affine {
  static constexpr int kBits = kBits_;
  static constexpr bool kBiased = true;
};
// mxfp4 and fp8: scale * value.
struct Fp4 {
  static constexpr int kBits = 4;
  static constexpr bool kBiased = false;
};
struct Fp8 {
  static constexpr int kBits = 8;
  static constexpr bool kBiased = false;
};

// How a format's rows are read: in lines of four units. A unit has four dwords of a row. A dword has
// two words of `kWord` weights each: 16 bits, or 12 bits that SpreadLine spreads.
template <int kBits>
struct Unit {
  static constexpr int kWord = kBits <= 4 ? 4 : 2;
  static constexpr int kBytes = kBits * kWord;
  static constexpr bool kSpread = kBytes < 16;
  static constexpr int kColumns = 8 * kWord;
  static constexpr int kSteps = 4 * kWord;
  static constexpr int kLineBytes = 4 * kBytes, kLineColumns = 4 * kColumns;
};

// 12-byte units as units of 16 bytes.
HWY_INLINE __m512i SpreadLine(__m512i v) {
  const __m128i bytes = _mm_setr_epi8(0, 1, 1, 2, 3, 4, 4, 5, 6, 7, 7, 8, 9, 10, 10, 11);
  const __m512i units = _mm512_setr_epi32(0, 1, 2, 2, 3, 4, 5, 5, 6, 7, 8, 8, 9, 10, 11, 11);
  v = _mm512_shuffle_epi8(_mm512_permutexvar_epi32(units, v), _mm512_broadcast_i32x4(bytes));
  return _mm512_srlv_epi16(v, _mm512_set1_epi32(0x00040000));
}

// in[i]: a line of row 4i. out[unit]: that unit of the four rows.
HWY_INLINE void TransposeUnits(const __m512i (&in)[4], __m512i (&out)[4]) {
  const __m512i low01 = _mm512_shuffle_i32x4(in[0], in[1], 0x44), high01 = _mm512_shuffle_i32x4(in[0], in[1], 0xee);
  const __m512i low23 = _mm512_shuffle_i32x4(in[2], in[3], 0x44), high23 = _mm512_shuffle_i32x4(in[2], in[3], 0xee);
  out[0] = _mm512_shuffle_i32x4(low01, low23, 0x88);
  out[1] = _mm512_shuffle_i32x4(low01, low23, 0xdd);
  out[2] = _mm512_shuffle_i32x4(high01, high23, 0x88);
  out[3] = _mm512_shuffle_i32x4(high01, high23, 0xdd);
}

// in[i]: a unit of rows i, i + 4, i + 8 and i + 12. out[i]: the unit's dword i of rows 0 to 15.
HWY_INLINE void TransposeDwords(__m512i in0, __m512i in1, __m512i in2, __m512i in3, __m512i (&out)[4]) {
  const __m512i low01 = _mm512_unpacklo_epi32(in0, in1), high01 = _mm512_unpackhi_epi32(in0, in1);
  const __m512i low23 = _mm512_unpacklo_epi32(in2, in3), high23 = _mm512_unpackhi_epi32(in2, in3);
  out[0] = _mm512_unpacklo_epi64(low01, low23);
  out[1] = _mm512_unpackhi_epi64(low01, low23);
  out[2] = _mm512_unpacklo_epi64(high01, high23);
  out[3] = _mm512_unpackhi_epi64(high01, high23);
}

// A line of 16 rows: [i][unit] of rows i, i + 4, i + 8 and i + 12.
using Line = __m512i[4][4];

// words[i]: a unit's words 2i and 2i + 1 of 16 rows.
HWY_INLINE void UnitWords(const Line& line, int unit, __m512i (&words)[4]) {
  TransposeDwords(line[0][unit], line[1][unit], line[2][unit], line[3][unit], words);
}

// Calls fn(words) for the first `units` (at most 4) units of the line.
template <typename Fn>
HWY_INLINE void ForEachUnit(int64_t units, const Line& line, Fn&& fn) {
  __m512i words[4];
  UnitWords(line, 0, words), fn(words);
  if (units < 2) return;
  UnitWords(line, 1, words), fn(words);
  if (units < 3) return;
  UnitWords(line, 2, words), fn(words);
  if (units < 4) return;
  UnitWords(line, 3, words), fn(words);
}

// Reads `dwords` (at most 16) of each row.
HWY_INLINE void LoadLine(const char* rows, const int64_t* offsets, int64_t dwords, bool spread, Line& line) {
  const __mmask16 mask = static_cast<__mmask16>((1u << dwords) - 1);
  LIME_UNROLL for (int i = 0; i < 4; ++i) {
    __m512i row[4];
    LIME_UNROLL for (int r = 0; r < 4; ++r) {
      row[r] = _mm512_maskz_loadu_epi32(mask, rows + offsets[i + 4 * r]);
      if (spread) row[r] = SpreadLine(row[r]);
    }
    TransposeUnits(row, line[i]);
  }
}

// The upper half of an fp32 that is exact in bf16.
constexpr uint16_t Bf16Bits(float x) {
  return static_cast<uint16_t>(std::bit_cast<uint32_t>(x) >> 16);
}

// Values as bf16, for every index of a word's low bits.
template <class Code>
struct Table {
  alignas(64) uint16_t q[64];
  constexpr Table() : q() {
    for (uint32_t i = 0; i < 64; ++i) {
      const uint32_t code = i & ((1u << Code::kBits) - 1);
      q[i] = Bf16Bits(std::is_same_v<Code, Fp4> ? kFp4Values[code % 16] : static_cast<float>(code));
    }
  }
};
template <class Code>
constexpr Table<Code> kTable;

// The fp8 of one byte of each word (i = 0: the lower one), as bf16. A subnormal is looked up by its
// mantissa.
HWY_INLINE __m512i Fp8Weights(__m512i words, int i) {
  const __m512i codes = i == 0 ? words : _mm512_srli_epi16(words, 8), magnitude = _mm512_and_si512(codes, _mm512_set1_epi16(0x7f));
  alignas(64) static constexpr Table<Affine<3>> kMantissas;
  const __m512i ninth = _mm512_set1_epi16(9 << 7), mantissa = _mm512_and_si512(codes, _mm512_set1_epi16(7));
  const __m512i small = _mm512_sub_epi16(_mm512_permutexvar_epi16(mantissa, _mm512_load_si512(kMantissas.q)), ninth);
  const __m512i normal = _mm512_add_epi16(_mm512_slli_epi16(magnitude, 4), _mm512_set1_epi16(120 << 7));
  __m512i value = _mm512_mask_mov_epi16(normal, _mm512_cmplt_epu16_mask(magnitude, _mm512_set1_epi16(8)), small);
  value = _mm512_mask_mov_epi16(value, _mm512_cmpeq_epi16_mask(magnitude, _mm512_set1_epi16(0x7f)), _mm512_set1_epi16(0x7fc0));
  value = _mm512_mask_mov_epi16(value, _mm512_cmpeq_epi16_mask(magnitude, _mm512_setzero_si512()), _mm512_setzero_si512());
  const __m512i sign = _mm512_slli_epi16(_mm512_srli_epi16(_mm512_slli_epi16(codes, 8), 15), 15);
  return _mm512_or_si512(value, sign);
}

// Weight i of both words of each dword, as bf16.
template <class Code>
HWY_INLINE __m512i Weights(__m512i words, int i) {
  if constexpr (std::is_same_v<Code, Fp8>) {
    return Fp8Weights(words, i);
  } else if constexpr (Code::kBits == 8) {
    const auto byte = [&](int b) {
      if (b == 0) return _mm512_and_si512(words, _mm512_set1_epi32(0xff));
      if (b == 3) return _mm512_srli_epi32(words, 24);
      const __m128i of = _mm_setr_epi8(0, -1, -1, -1, 4, -1, -1, -1, 8, -1, -1, -1, 12, -1, -1, -1);
      return _mm512_shuffle_epi8(words, _mm512_broadcast_i32x4(_mm_add_epi8(of, _mm_set1_epi32(b))));
    };
    const __m512i low = _mm512_castps_si512(_mm512_cvtepi32_ps(byte(i))), high = _mm512_castps_si512(_mm512_cvtepi32_ps(byte(i + 2)));
    // The asm hides the constants: clang makes a shuffle of two vectors of this one, which is three instructions of
    // some CPUs.
    __m512i upper = _mm512_broadcast_i32x4(_mm_setr_epi8(2, 3, 2, 3, 6, 7, 6, 7, 10, 11, 10, 11, 14, 15, 14, 15));
    __mmask64 lower = 0x3333333333333333;
    asm("" : "+v"(upper), "+Yk"(lower));
    return _mm512_mask_shuffle_epi8(high, lower, low, upper);
  } else {
    // The instructions use the low 5 or 6 bits of an index.
    const __m512i index = i == 0 ? words : _mm512_srli_epi32(words, i * Code::kBits);
    const __m512i table = _mm512_load_si512(kTable<Code>.q);
    if constexpr (Code::kBits <= 4) return _mm512_permutexvar_epi16(index, table);
    return _mm512_permutex2var_epi16(table, index, _mm512_load_si512(kTable<Code>.q + 32));
  }
}

// x of `width` tokens: dwords [step][token], then the sums of x over 32, 64 and 128 columns:
// [group][token].
struct PackedX {
  int64_t cols, width;

  int64_t SumsAt(int64_t group_size) const {
    int64_t at = cols / 2;
    for (int64_t size = 32; size < group_size; size *= 2) at += cols / size;
    return at * width;
  }
};

// Packs `width` tokens from `token`; beyond the last token, it is repeated.
template <class Dot>
void PackPairs(const Activations& x, int64_t token, int64_t width, float* packed) {
  const __m128i pairs = x.order == LaneOrder::kPiecesOf8 ? _mm_setr_epi8(0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15)
                                                         : _mm_setr_epi8(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15);
  const __m512i order = _mm512_broadcast_i32x4(pairs), ones = _mm512_set1_epi16(0x3f80);
  const PackedX layout{x.cols, width};
  float* const sums[] = {packed + layout.SumsAt(32), packed + layout.SumsAt(64), packed + layout.SumsAt(128)};
  for (int64_t t = 0; t < width; ++t) {
    const BF16* row = static_cast<const BF16*>(x.data) + std::min(token + t, x.tokens - 1) * x.stride;
    float* out = packed + t;
    for (int64_t k = 0; k < x.cols; k += 4 * kPlaneElements) {
      __m512 lanes[4];
      LIME_UNROLL for (int i = 0; i < 4; ++i) {
        lanes[i] = _mm512_setzero_ps();
        if (k + i * kPlaneElements >= x.cols) continue;
        const __m512i v = _mm512_loadu_si512(row + k + i * kPlaneElements);
        lanes[i] = Dot::Step(lanes[i], ones, v);
        alignas(64) float dwords[16];
        _mm512_store_si512(dwords, _mm512_shuffle_epi8(v, order));
        for (int step = 0; step < 16; ++step, out += width) *out = dwords[step];
      }
      float sum[4];
      _mm_storeu_ps(sum, SumLanes(lanes));
      const int64_t at = k / kPlaneElements, count = std::min<int64_t>(4, x.cols / kPlaneElements - at);
      for (int64_t i = 0; i < count; ++i) sums[0][(at + i) * width + t] = sum[i];
      for (int64_t i = 0; i < count / 2; ++i) sums[1][(at / 2 + i) * width + t] = sum[2 * i] + sum[2 * i + 1];
      if (count == 4) sums[2][at / 4 * width + t] = (sum[0] + sum[1]) + (sum[2] + sum[3]);
    }
  }
}

template <class Dot>
void PackPairRows(const Activations& x, float* packed) {
  PackPairs<Dot>(x, 0, x.tokens, packed);
}

template <class Dot>
void PackPairTile(const Activations& x, int64_t tile, float* packed) {
  PackPairs<Dot>(x, tile * kPackedTileTokens, kPackedTileTokens, packed);
}

// 16 rows of a matrix; rows beyond `last` are that row again.
class RowBlock {
 public:
  RowBlock(const Matrix& m, int64_t row, int64_t last) : matrix_(&m), row_(row) {
    for (int i = 0; i < kBlockRows; ++i) rows_[i] = std::min(row + i, last) - row;
    for (int i = 0; i < kBlockRows; ++i) offsets_[i] = rows_[i] * m.RowBytes();
    data_ = static_cast<const char*>(m.data) + row * m.RowBytes();
  }

  // Reads a line of at most four of `units` units from column `col` on, and nothing behind them.
  template <int kBits>
  HWY_INLINE void Load(int64_t col, int64_t units, Line& line) const {
    using U = Unit<kBits>;
    LoadLine(data_ + col / U::kColumns * U::kBytes, offsets_, std::min<int64_t>(units, 4) * (U::kBytes / 4), U::kSpread, line);
  }

  // Expands scales and biases of `count` groups from `group`: [group][scales of 16 rows, biases].
  // `stride`: floats between two groups.
  template <class Code>
  HWY_INLINE void ExpandScales(int64_t group, int64_t count, float* out, int64_t stride) const {
    if constexpr (std::is_same_v<Code, Fp4>) return ExpandExponents(group, count, out, stride);
    if constexpr (std::is_same_v<Code, Fp8>) return ExpandShared(group, count, out, stride);
    Expand(matrix_->scales, group, count, out, stride);
    Expand(matrix_->biases, group, count, out + kBlockRows, stride);
  }

  // Prefetches what rows [first, first + kRows) need kRowPrefetchBytes behind column `col`. At the end of the rows,
  // that is the next block. Rows are prefetched one by one: in the order of memory, prefetches of the next block
  // waited for memory and held up the loads.
  template <int kBits, int kRows>
  HWY_INLINE void PrefetchRows(int64_t col, int first) const {
    using U = Unit<kBits>;
    const int64_t row_bytes = matrix_->RowBytes();
    int64_t at = col / U::kColumns * U::kBytes + kRowPrefetchBytes;
    if (at >= row_bytes) at += (kBlockRows - 1) * row_bytes;
    LIME_UNROLL for (int r = 0; r < kRows; ++r) __builtin_prefetch(data_ + offsets_[first + r] + at, 0, 3);
  }
  // Prefetches scales and biases of the next block of rows, in the order of memory.
  template <class Code>
  HWY_INLINE void PrefetchScales(int64_t group) const {
    if constexpr (!Code::kBiased) return;  // few bytes
    const int64_t groups = matrix_->cols / matrix_->group_size, row = row_ + kBlockRows;
    for (const void* values : {matrix_->scales, matrix_->biases}) {
      const char* p = static_cast<const char*>(values) + (row * groups + group * kBlockRows) * static_cast<int64_t>(sizeof(BF16));
      LIME_UNROLL for (int b = 0; b < kScaleGroups * kBlockRows * 2; b += 64) __builtin_prefetch(p + b, 0, 2);
    }
  }

 private:
  // dwords[i]: values 2i and 2i + 1 of the 16 rows, of 16 bits; load(i): eight values of row i.
  template <typename Load>
  HWY_INLINE void TransposeValues(Load&& load, __m512i (&dwords)[4]) const {
    __m512i four[4];
    LIME_UNROLL for (int i = 0; i < 4; ++i) {
      four[i] = _mm512_inserti32x4(_mm512_castsi128_si512(load(i)), load(i + 4), 1);
      four[i] = _mm512_inserti32x4(_mm512_inserti32x4(four[i], load(i + 8), 2), load(i + 12), 3);
    }
    TransposeDwords(four[0], four[1], four[2], four[3], dwords);
  }

  HWY_INLINE void Expand(const void* values, int64_t group, int64_t count, float* out, int64_t stride) const {
    const int64_t groups = matrix_->cols / matrix_->group_size;
    const BF16* from = static_cast<const BF16*>(values) + row_ * groups + group;
    for (; count > 0; count -= kScaleGroups, from += kScaleGroups) {
      const int64_t some = std::min<int64_t>(kScaleGroups, count);
      const __mmask32 mask = (1u << some) - 1;
      __m512i pairs[4];
      TransposeValues([&](int i) { return _mm512_castsi512_si128(_mm512_maskz_loadu_epi16(mask, from + rows_[i] * groups)); }, pairs);
      const __m512i odd = _mm512_set1_epi32(static_cast<int>(0xffff0000));
      LIME_UNROLL for (int g = 0; g < kScaleGroups; ++g, out += stride) {
        if (g < some) _mm512_store_si512(out, g % 2 == 0 ? _mm512_slli_epi32(pairs[g / 2], 16) : _mm512_and_si512(pairs[g / 2], odd));
      }
    }
  }

  // 2^(code - 127) of mxfp4. Code 0 is a subnormal, code 255 is NaN.
  static HWY_INLINE __m512i Powers(__m512i codes) {
    const __m512i power = _mm512_max_epu32(_mm512_slli_epi32(codes, 23), _mm512_set1_epi32(0x400000));
    return _mm512_mask_mov_epi32(power, _mm512_cmpeq_epi32_mask(codes, _mm512_set1_epi32(255)), _mm512_set1_epi32(0x7fc00000));
  }

  HWY_INLINE void ExpandExponents(int64_t group, int64_t count, float* out, int64_t stride) const {
    const int64_t groups = matrix_->cols / matrix_->group_size;
    const uint8_t* from = static_cast<const uint8_t*>(matrix_->scales) + row_ * groups + group;
    for (; count > 0; count -= kScaleGroups, from += kScaleGroups) {
      const int64_t some = std::min<int64_t>(kScaleGroups, count);
      const __mmask64 mask = (1u << some) - 1;
      __m512i pairs[4];
      TransposeValues(
          [&](int i) { return _mm_cvtepu8_epi16(_mm512_castsi512_si128(_mm512_maskz_loadu_epi8(mask, from + rows_[i] * groups))); }, pairs);
      LIME_UNROLL for (int g = 0; g < kScaleGroups; ++g, out += stride) {
        const __m512i pair = pairs[g / 2];
        if (g < some)
          _mm512_store_si512(out, Powers(g % 2 == 0 ? _mm512_and_si512(pair, _mm512_set1_epi32(0xff)) : _mm512_srli_epi32(pair, 16)));
      }
    }
  }

  // Scales of fp8. Most often all rows share one.
  HWY_INLINE void ExpandShared(int64_t group, int64_t count, float* out, int64_t stride) const {
    const Matrix& m = *matrix_;
    const int64_t step = m.scale_cols == 1 ? 0 : 1;
    int64_t at[kBlockRows];
    for (int i = 0; i < kBlockRows; ++i) at[i] = (m.first_row + row_ + rows_[i]) / m.scale_rows * m.scale_cols + group * step;
    const bool one = at[0] == at[kBlockRows - 1];
    WithWorkingType(m.scale_dtype, [&](auto type) {
      const auto* scales = static_cast<const decltype(type)*>(m.scales);
      for (int64_t g = 0; g < count; ++g, out += stride) {
        const float first = ToFloat(scales[at[0] + g * step]);
        for (int i = 0; i < kBlockRows; ++i) out[i] = one ? first : ToFloat(scales[at[i] + g * step]);
      }
    });
  }

  const Matrix* matrix_;
  int64_t row_;
  const char* data_;
  int64_t rows_[kBlockRows], offsets_[kBlockRows];  // from `row_` and `data_`
};

// acc + scale * sum + bias * x: what a group adds. scales: of 16 rows, then their biases.
template <class Code>
HWY_INLINE __m512 AddGroup(__m512 acc, const float* scales, __m512 sum, float x) {
  acc = _mm512_fmadd_ps(_mm512_load_ps(scales), sum, acc);
  if constexpr (!Code::kBiased) return acc;
  return _mm512_fmadd_ps(_mm512_load_ps(scales + kBlockRows), _mm512_set1_ps(x), acc);
}

HWY_INLINE __m512i Broadcast(const float* dword) {
  int bits;
  std::memcpy(&bits, dword, sizeof(bits));
  return _mm512_set1_epi32(bits);
}

// GEMV: a block of rows with all tokens: y[token * stride + row] of `rows` rows.
template <class Dot, class Code, int kTokens>
HWY_NOINLINE void DotBlock(const Matrix& m, const RowBlock& block, const float* x, float* y, int64_t stride, int64_t rows) {
  using U = Unit<Code::kBits>;
  const int64_t groups = m.Groups(), group_units = m.group_size / U::kColumns;
  const float* sums = x + PackedX{m.cols, kTokens}.SumsAt(m.group_size);
  alignas(64) float scales[kScaleGroups][2 * kBlockRows];
  __m512 acc[kTokens], sum[2][kTokens];
  LIME_UNROLL for (int t = 0; t < kTokens; ++t) acc[t] = sum[0][t] = sum[1][t] = _mm512_setzero_ps();
  int64_t group = 0, units_left = group_units;
  const auto finish = [&](int of) __attribute__((always_inline)) {
    const float* p = scales[group % kScaleGroups];
    LIME_UNROLL for (int t = 0; t < kTokens; ++t) {
      acc[t] = AddGroup<Code>(acc[t], p, sum[of][t], sums[t]);
      sum[of][t] = _mm512_setzero_ps();
    }
    ++group, sums += kTokens;
  };
  const auto step = [&](const __m512i(&words)[4], int s, const float* x_unit, int of) __attribute__((always_inline)) {
    const __m512i w = Weights<Code>(words[s / U::kWord], s % U::kWord);
    LIME_UNROLL for (int t = 0; t < kTokens; ++t) sum[of][t] = Dot::Step(sum[of][t], w, Broadcast(x_unit + s * kTokens + t));
  };
  constexpr int kUnitFloats = U::kSteps * kTokens;
  for (int64_t col = 0; col < m.cols; col += U::kLineColumns) {
    if (group % kScaleGroups == 0 && units_left == group_units) {
      block.template PrefetchScales<Code>(group);
      block.template ExpandScales<Code>(group, std::min<int64_t>(kScaleGroups, groups - group), scales[0], 2 * kBlockRows);
    }
    const int64_t units = (m.cols - col) / U::kColumns;
    Line line;
    block.template Load<Code::kBits>(col, units, line);
    if constexpr (kTokens <= kInterleavedTokens) {
      // Two units of different groups side by side: the steps of one sum wait for each other. `second_x`: units
      // from x to that of the second one.
      const auto two = [&](int first, const Line& other, int second, int second_x) __attribute__((always_inline)) {
        __m512i words[2][4];
        UnitWords(line, first, words[0]), UnitWords(other, second, words[1]);
        LIME_UNROLL for (int s = 0; s < U::kSteps; ++s) {
          step(words[0], s, x + first * kUnitFloats, 0);
          step(words[1], s, x + second_x * kUnitFloats, 1);
        }
      };
      // Of half of the rows: all at once would hold up the loads.
      const auto prefetch = [&](int64_t at, int half) __attribute__((always_inline)) {
        block.template PrefetchRows<Code::kBits, kBlockRows / 2>(at, half * kBlockRows / 2);
      };
      if (units >= 4 && group_units <= 2) {
        prefetch(col, 0);
        if (group_units == 1) {
          two(0, line, 1, 1), finish(0), finish(1);
          prefetch(col, 1);
          two(2, line, 3, 3), finish(0), finish(1);
        } else {
          two(0, line, 2, 2);
          prefetch(col, 1);
          two(1, line, 3, 3), finish(0), finish(1);
        }
        x += 4 * kUnitFloats;
        continue;
      }
      if (U::kWord == 2 && units >= 8 && group_units == 4) {
        const int64_t other_col = col + U::kLineColumns;
        Line other;
        block.template Load<Code::kBits>(other_col, 4, other);
        prefetch(col, 0), two(0, other, 0, 4);
        prefetch(col, 1), two(1, other, 1, 5);
        prefetch(other_col, 0), two(2, other, 2, 6);
        prefetch(other_col, 1), two(3, other, 3, 7);
        finish(0), finish(1);
        col = other_col, x += 8 * kUnitFloats;
        continue;
      }
    }
    int unit = 0;
    ForEachUnit(
        units, line, [&](const __m512i(&words)[4]) __attribute__((always_inline)) {
          block.template PrefetchRows<Code::kBits, kBlockRows / 4>(col, kBlockRows / 4 * unit++);
          LIME_UNROLL for (int s = 0; s < U::kSteps; ++s) step(words, s, x, 0);
          x += kUnitFloats;
          if (--units_left == 0) finish(0), units_left = group_units;
        });
  }
  if (units_left != group_units) finish(0);  // the last group of fp8 may be smaller
  const __mmask16 mask = rows >= kBlockRows ? 0xffff : static_cast<__mmask16>((1u << rows) - 1);
  LIME_UNROLL for (int t = 0; t < kTokens; ++t) _mm512_mask_storeu_ps(y + t * stride, mask, acc[t]);
}

template <class Dot, class Code, int kTokens>
void DotPackedRowsOf(const RowRange& rows, const float* packed, int64_t tokens, const ThreadScratch& scratch) {
  if constexpr (kTokens > 1) {
    if (tokens < kTokens) return DotPackedRowsOf<Dot, Code, kTokens - 1>(rows, packed, tokens, scratch);
  }
  const int64_t last = rows.begin + rows.count - 1;
  for (int64_t r = 0; r < rows.count; r += kBlockRows) {
    const RowBlock block(*rows.matrix, rows.begin + r, last);
    DotBlock<Dot, Code, kTokens>(*rows.matrix, block, packed, scratch.y + r, rows.count, rows.count - r);
  }
}

// Calls fn.operator()<code>() with the code of the matrix's weights.
template <typename Fn>
void WithCode(const Matrix& m, Fn&& fn) {
  if (m.dtype == DType::kU8) return fn.template operator()<Fp4>();
  if (m.dtype == DType::kF8E4M3) return fn.template operator()<Fp8>();
  switch (m.bits) {
    case 3:
      return fn.template operator()<Affine<3>>();
    case 4:
      return fn.template operator()<Affine<4>>();
    case 6:
      return fn.template operator()<Affine<6>>();
    default:
      return fn.template operator()<Affine<8>>();
  }
}

template <class Dot>
void DotPackedRows(const RowRange& rows, const float* packed, int64_t tokens, const ThreadScratch& scratch) {
  WithCode(*rows.matrix, [&]<class Code>() { DotPackedRowsOf<Dot, Code, kMaxGemvTokens>(rows, packed, tokens, scratch); });
}

// GEMM.

// A range of columns of all rows.
struct Columns {
  int64_t begin, count;
  bool last;

  int64_t Groups(const Matrix& m) const { return (count + m.group_size - 1) / m.group_size; }
};

// Unpacks rows: [pair of blocks][step][block][16 rows], and their scales and biases: [pair of
// blocks][group][block][scales of 16 rows, biases].
template <class Code>
void UnpackPanel(const RowRange& rows, const Columns& columns, char* panel, float* scales) {
  using U = Unit<Code::kBits>;
  const Matrix& m = *rows.matrix;
  const int64_t last = rows.begin + rows.count - 1, groups = columns.Groups(m);
  for (int64_t r = 0; r < rows.count; r += kPairRows) {
    for (int b = 0; b < kTileBlocks; ++b) {
      const RowBlock block(m, std::min(rows.begin + r + b * kBlockRows, last), last);
      block.template ExpandScales<Code>(columns.begin / m.group_size, groups, scales + b * 2 * kBlockRows, kTileBlocks * 2 * kBlockRows);
      char* out = panel + b * kVecBytes;
      for (int64_t k = 0; k < columns.count; k += U::kLineColumns) {
        const int64_t units = (columns.count - k) / U::kColumns;
        Line line;
        block.template Load<Code::kBits>(columns.begin + k, units, line);
        ForEachUnit(
            units, line, [&](const __m512i(&words)[4]) __attribute__((always_inline)) {
              LIME_UNROLL for (int s = 0; s < U::kSteps; ++s, out += kPairStepBytes) {
                _mm512_store_si512(out, Weights<Code>(words[s / U::kWord], s % U::kWord));
              }
            });
      }
    }
    panel += columns.count / 2 * kPairStepBytes;
    scales += groups * kTileBlocks * 2 * kBlockRows;
  }
}

// What a tile multiplies.
struct TileGroups {
  const float* x;     // [step][12 tokens]
  const float* sums;  // of x: [group][12 tokens]
  const char* w;      // [step][block][16 rows]
  const float* scales;
  int64_t steps, group_steps;  // of all groups; of each group but the last, which may be smaller
  bool first;                  // of the dot products
};

// Adds groups of kTokens tokens and a pair of blocks to acc[block][token].
template <class Dot, class Code, int kTokens>
HWY_NOINLINE void MultiplyPackedTile(const TileGroups& of, float* acc) {
  const float* x = of.x;
  const char* w = of.w;
  const float* scales = of.scales;
  for (int64_t g = 0; g * of.group_steps < of.steps; ++g, scales += kTileBlocks * 2 * kBlockRows) {
    const int64_t steps = std::min(of.group_steps, of.steps - g * of.group_steps);
    __m512 sum[kTileBlocks][kTokens];
    LIME_UNROLL for (int i = 0; i < kTileBlocks * kTokens; ++i) sum[i / kTokens][i % kTokens] = _mm512_setzero_ps();
    for (int64_t s = 0; s < steps; ++s, x += kPackedTileTokens, w += kPairStepBytes) {
      const __m512i upper = LoadVec(w), lower = LoadVec(w + kVecBytes);
      __builtin_prefetch(w + kStepsAhead * kPairStepBytes);
      __builtin_prefetch(w + kStepsAhead * kPairStepBytes + kVecBytes);
      LIME_UNROLL for (int t = 0; t < kTokens; ++t) {
        const __m512i token = Broadcast(x + t);
        sum[0][t] = Dot::Step(sum[0][t], upper, token);
        sum[1][t] = Dot::Step(sum[1][t], lower, token);
      }
    }
    LIME_UNROLL for (int b = 0; b < kTileBlocks; ++b) {
      LIME_UNROLL for (int t = 0; t < kTokens; ++t) {
        float* const p = acc + (b * kPackedTileTokens + t) * kBlockRows;
        const __m512 before = of.first && g == 0 ? _mm512_setzero_ps() : _mm512_load_ps(p);
        _mm512_store_ps(p, AddGroup<Code>(before, scales + b * 2 * kBlockRows, sum[b][t], of.sums[g * kPackedTileTokens + t]));
      }
    }
  }
}

constexpr int64_t kPairFloats = kTileBlocks * kPackedTileTokens * kBlockRows;  // accumulators

// Multiplies one tile of tokens with one range of columns of the whole panel. acc: [pair of
// blocks][kPairFloats].
template <class Dot, class Code, int kTokens>
void MultiplyPackedTileWithPanel(int64_t tokens, const Matrix& m, const float* x, const Columns& columns, int64_t pairs, const char* panel,
                                 const float* scales, float* acc) {
  if constexpr (kTokens > 1) {
    if (tokens < kTokens) return MultiplyPackedTileWithPanel<Dot, Code, kTokens - 1>(tokens, m, x, columns, pairs, panel, scales, acc);
  }
  const float* sums = x + PackedX{m.cols, kPackedTileTokens}.SumsAt(m.group_size);
  const int64_t group_floats = kTileBlocks * 2 * kBlockRows, group = m.group_size;
  for (int64_t k = 0; k < columns.count; k += kBlockColumns) {
    const int64_t begin = columns.begin + k, count = std::min(kBlockColumns, columns.count - k);
    for (int64_t p = 0; p < pairs; ++p) {
      const TileGroups tile{.x = x + begin / 2 * kPackedTileTokens,
                            .sums = sums + begin / group * kPackedTileTokens,
                            .w = panel + (p * columns.count + k) / 2 * kPairStepBytes,
                            .scales = scales + (p * columns.Groups(m) + k / group) * group_floats,
                            .steps = count / 2,
                            .group_steps = group / 2,
                            .first = begin == 0};
      MultiplyPackedTile<Dot, Code, kTokens>(tile, acc + p * kPairFloats);
    }
  }
}

template <class Dot, class Code>
void MultiplyPackedPanelOf(const RowRange& rows, const float* packed, int64_t tokens, const ThreadScratch& scratch,
                           void (*done)(void*, const TileResult&), void* context) {
  const Matrix& m = *rows.matrix;
  const int64_t pairs = (rows.count + kPairRows - 1) / kPairRows, stride = pairs * kPairRows;
  const int64_t token_floats = m.cols / kPlaneElements * kPackedChunkFloats;
  char* const panel = reinterpret_cast<char*>(scratch.panel);
  float* const scales = scratch.lanes;
  const int64_t panel_groups = Columns{0, std::min(m.cols, kPanelColumns), true}.Groups(m);
  float* const all_acc = scales + pairs * panel_groups * kTileBlocks * 2 * kBlockRows;
  // With one range of columns, all tiles use the same accumulators.
  const int64_t tile_acc = m.cols > kPanelColumns ? pairs * kPairFloats : 0;
  for (int64_t begin = 0; begin < m.cols; begin += kPanelColumns) {
    const Columns columns{begin, std::min(kPanelColumns, m.cols - begin), begin + kPanelColumns >= m.cols};
    UnpackPanel<Code>(rows, columns, panel, scales);
    float* acc = all_acc;
    for (int64_t token = 0; token < tokens; token += kPackedTileTokens, acc += tile_acc) {
      const int64_t count = std::min<int64_t>(kPackedTileTokens, tokens - token);
      MultiplyPackedTileWithPanel<Dot, Code, kPackedTileTokens>(count, m, packed + token * token_floats, columns, pairs, panel, scales,
                                                                acc);
      if (!columns.last) continue;
      for (int64_t b = 0; b < pairs * kTileBlocks; ++b) {
        for (int64_t t = 0; t < count; ++t) {
          _mm512_storeu_ps(scratch.y + t * stride + b * kBlockRows, _mm512_load_ps(acc + (b * kPackedTileTokens + t) * kBlockRows));
        }
      }
      done(context, {token, count, stride, scratch.y});
    }
  }
}

template <class Dot>
void MultiplyPackedPanel(const RowRange& rows, const float* packed, int64_t tokens, const ThreadScratch& scratch,
                         void (*done)(void*, const TileResult&), void* context) {
  WithCode(*rows.matrix, [&]<class Code>() { MultiplyPackedPanelOf<Dot, Code>(rows, packed, tokens, scratch, done, context); });
}

}  // namespace
}  // namespace lime::cpu::bf16
