// Columns of packed weights by bf16, in terms of the step of linear_bf16-inl.h: what the pairs of
// linear_packed-inl.h add, from single columns. docs/reference/numerics.md defines the order.
//
// Included by linear_bf16-inl.h alone. A vector of weights has a pair of q of each of 16 rows, as there;
// 32 rows lie with even ones before odd ones.

namespace lime::cpu::bf16 {
namespace {

// Where code j of 32 begins: in which of the 16-bit words, and at which bit.
template <int kBits>
struct CodePlaces {
  alignas(64) uint16_t word[32], next[32], shift[32], back[32];
  constexpr CodePlaces() : word(), next(), shift(), back() {
    for (int j = 0; j < 32; ++j) {
      word[j] = static_cast<uint16_t>(j * kBits / 16), shift[j] = static_cast<uint16_t>(j * kBits % 16);
      next[j] = static_cast<uint16_t>(word[j] + 1), back[j] = static_cast<uint16_t>(16 - shift[j]);
    }
  }
};
template <int kBits>
constexpr CodePlaces<kBits> kCodePlaces;

// The q of 32 rows of a column from `row` on, a multiple of 32, as bf16.
template <int kBits>
HWY_INLINE __m512i ColumnWeights(const void* column, int64_t row) {
  constexpr int kBytes = 4 * kBits;
  const CodePlaces<kBits>& places = kCodePlaces<kBits>;
  const __m512i v = _mm512_maskz_loadu_epi8((uint64_t{1} << kBytes) - 1, static_cast<const char*>(column) + row / 32 * kBytes);
  const __m512i low = _mm512_srlv_epi16(_mm512_permutexvar_epi16(_mm512_load_si512(places.word), v), _mm512_load_si512(places.shift));
  const __m512i high = _mm512_sllv_epi16(_mm512_permutexvar_epi16(_mm512_load_si512(places.next), v), _mm512_load_si512(places.back));
  const __m512i code = _mm512_and_si512(_mm512_or_si512(low, high), _mm512_set1_epi16((1 << kBits) - 1));
  if constexpr (kBits == 8) {
    const auto half = [](__m256i codes) {
      return _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_castps_si512(_mm512_cvtepi32_ps(_mm512_cvtepu16_epi32(codes))), 16));
    };
    const __m256i lower = half(_mm512_castsi512_si256(code)), upper = half(_mm512_extracti64x4_epi64(code, 1));
    return _mm512_inserti64x4(_mm512_castsi256_si512(lower), upper, 1);
  } else {
    const __m512i table = _mm512_load_si512(kTable<Affine<kBits>>.q);
    if constexpr (kBits <= 4) return _mm512_permutexvar_epi16(code, table);
    return _mm512_permutex2var_epi16(table, code, _mm512_load_si512(kTable<Affine<kBits>>.q + 32));
  }
}

// kChunks times 32 rows, from row 32 * chunk of the tile: adds pairs to the sums of a group.
template <class Dot, int kBits, int kChunks>
HWY_NOINLINE void AddCodePairs(const ColumnTile& tile, std::span<const ColumnEntry> entries, int64_t chunk) {
  const int64_t row = tile.begin + chunk * kPlaneElements;
  float* const sums = tile.lanes + chunk * kPlaneElements;
  __m512 acc[kChunks][2];
  LIME_UNROLL for (int i = 0; i < 2 * kChunks; ++i) acc[i / 2][i % 2] = _mm512_loadu_ps(sums + 16 * i);
  for (const ColumnEntry& entry : entries) {
    const __m512i x = _mm512_set1_epi32(static_cast<int>(entry.x));
    LIME_UNROLL for (int c = 0; c < kChunks; ++c) {
      const __m512i a = ColumnWeights<kBits>(entry.column, row + c * kPlaneElements);
      const __m512i b = ColumnWeights<kBits>(entry.odd, row + c * kPlaneElements);
      acc[c][0] = Dot::Step(acc[c][0], _mm512_mask_blend_epi16(0xaaaaaaaa, a, _mm512_slli_epi32(b, 16)), x);
      acc[c][1] = Dot::Step(acc[c][1], _mm512_mask_blend_epi16(0xaaaaaaaa, _mm512_srli_epi32(a, 16), b), x);
    }
  }
  LIME_UNROLL for (int i = 0; i < 2 * kChunks; ++i) _mm512_storeu_ps(sums + 16 * i, acc[i / 2][i % 2]);
}

template <class Dot, int kBits>
void AddCodesOf(const ColumnTile& tile, std::span<const ColumnEntry> entries) {
  constexpr int kTileChunks = kMaxTileRows / kPlaneElements;
  if (tile.count == kMaxTileRows) return AddCodePairs<Dot, kBits, kTileChunks>(tile, entries, 0);
  for (int64_t chunk = 0; chunk * kPlaneElements < tile.count; ++chunk) AddCodePairs<Dot, kBits, 1>(tile, entries, chunk);
}

template <class Dot>
void AddCodes(const ColumnTile& tile, std::span<const ColumnEntry> entries) {
  switch (tile.matrix->bits) {
    case 3:
      return AddCodesOf<Dot, 3>(tile, entries);
    case 4:
      return AddCodesOf<Dot, 4>(tile, entries);
    case 6:
      return AddCodesOf<Dot, 6>(tile, entries);
    default:
      return AddCodesOf<Dot, 8>(tile, entries);
  }
}

// What PackPairs computes of the `size` columns of a group.
template <class Dot>
float SumOfGroup(const BF16* x, int64_t size) {
  __m512 lanes[4];
  LIME_UNROLL for (int i = 0; i < 4; ++i) {
    lanes[i] = _mm512_setzero_ps();
    if (i * kPlaneElements < size) lanes[i] = Dot::Step(lanes[i], _mm512_set1_epi16(0x3f80), _mm512_loadu_si512(x + i * kPlaneElements));
  }
  float sum[4];
  _mm_storeu_ps(sum, SumLanes(lanes));
  if (size == 32) return sum[0];
  return size == 64 ? sum[0] + sum[1] : (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

// acc + scale * sum + bias * x, and the sums become 0.
void EndGroup(const ColumnTile& tile, float x) {
  const __m512 sum_of_x = _mm512_set1_ps(x);
  for (int64_t i = 0; i < tile.count; i += 16) {
    float* const acc = tile.lanes + tile.stride + i;
    __m512 result = _mm512_fmadd_ps(_mm512_loadu_ps(tile.scales + i), _mm512_loadu_ps(tile.lanes + i), _mm512_loadu_ps(acc));
    result = _mm512_fmadd_ps(_mm512_loadu_ps(tile.scales + tile.stride + i), sum_of_x, result);
    _mm512_storeu_ps(acc, result);
    _mm512_storeu_ps(tile.lanes + i, _mm512_setzero_ps());
  }
}

}  // namespace
}  // namespace lime::cpu::bf16
