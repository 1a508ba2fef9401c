// Embedding rows: dense, packed at every width, and with learned positions.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "kernels/cpu/row_ops.h"
#include "tests/kernels/cpu_test_util.h"

namespace lime::cpu {
namespace {

// Packs codes [rows, cols] into little-endian bit streams, each row whole uint32s.
std::vector<uint32_t> Pack(const std::vector<uint32_t>& codes, int64_t rows, int64_t cols, int bits) {
  const int64_t words = cols * bits / 32;
  std::vector<uint32_t> packed(rows * words);
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t k = 0; k < cols * bits; ++k) {
      const uint32_t bit = codes[row * cols + k / bits] >> (k % bits) & 1;
      packed[row * words + k / 32] |= bit << (k % 32);
    }
  }
  return packed;
}

TEST(EmbeddingTest, DenseRowsAreCopiedBitForBit) {
  for (DType dtype : kWorkingDTypes) {
    for (int threads : {1, 3}) {
      ThreadPool pool(threads);
      const int64_t rows = 11, cols = 1000;
      const Array table = RandomArray(dtype, rows * cols, 1);
      const std::vector<int32_t> ids = {10, 0, 3, 3, 10, 1, 2, 4, 5, 6, 7, 8, 9, 0, 0, 0, 0, 5};
      Array out(dtype, ids.size() * cols);
      EmbedTokens(pool, {.rows = rows, .cols = cols, .dtype = dtype, .data = table.ptr()}, ids.data(), ids.size(), {}, out.ptr(), dtype,
                  cols);
      const int64_t bytes = cols * ElementBytes(dtype);
      for (size_t t = 0; t < ids.size(); ++t)
        EXPECT_EQ(0, std::memcmp(out.data.data() + t * bytes, table.data.data() + ids[t] * bytes, bytes));
    }
  }
}

TEST(EmbeddingTest, PackedRowsAreScaleTimesCodePlusBiasOnEveryInstructionSet) {
  ThreadPool pool(2);
  for (int bits : {3, 4, 6, 8}) {
    for (int group_size : {32, 64, 128}) {
      for (DType dtype : kWorkingDTypes) {
        const int64_t rows = 5, cols = 256, groups = cols / group_size;
        std::mt19937 generator(bits);
        std::vector<uint32_t> codes(rows * cols);
        for (uint32_t& code : codes) code = generator() % (1u << bits);
        const std::vector<uint32_t> packed = Pack(codes, rows, cols, bits);
        const Array scales = RandomArray(dtype, rows * groups, 2, 0.1f), biases = RandomArray(dtype, rows * groups, 3);
        const Matrix table{.rows = rows,
                           .cols = cols,
                           .dtype = DType::kU32,
                           .data = packed.data(),
                           .bits = bits,
                           .group_size = group_size,
                           .scale_dtype = dtype,
                           .scales = scales.ptr(),
                           .biases = biases.ptr()};
        const std::vector<int32_t> ids = {4, 0, 2};
        ForEachTarget([&](const std::string& target) {
          Array out(dtype, ids.size() * cols);
          EmbedTokens(pool, table, ids.data(), ids.size(), {}, out.ptr(), dtype, cols);
          for (size_t t = 0; t < ids.size(); ++t) {
            for (int64_t c = 0; c < cols; ++c) {
              const int64_t group = ids[t] * groups + c / group_size;
              Array expected(dtype, 1);
              expected.Set(0, std::fma(scales[group], static_cast<float>(codes[ids[t] * cols + c]), biases[group]));
              EXPECT_EQ(out[t * cols + c], expected[0]) << target << " bits " << bits << " column " << c;
            }
          }
        });
      }
    }
  }
}

TEST(EmbeddingTest, LearnedPositionsAreAddedBeforeTheOnlyRounding) {
  ThreadPool pool(1);
  for (DType dtype : kWorkingDTypes) {
    const int64_t cols = 77;
    const Array table = RandomArray(dtype, 6 * cols, 4), positions = RandomArray(dtype, 12 * cols, 5);
    const std::vector<int32_t> ids = {5, 1}, at = {0, 9};
    Array out(dtype, 2 * cols);
    EmbedTokens(pool, {.rows = 6, .cols = cols, .dtype = dtype, .data = table.ptr()}, ids.data(), 2,
                {.table = positions.ptr(), .offset = 2, .positions = at.data()}, out.ptr(), dtype, cols);
    for (int64_t t = 0; t < 2; ++t) {
      for (int64_t c = 0; c < cols; ++c) {
        Array expected(dtype, 1);
        expected.Set(0, table[ids[t] * cols + c] + positions[(at[t] + 2) * cols + c]);
        EXPECT_EQ(out[t * cols + c], expected[0]);
      }
    }
  }
}

TEST(EmbeddingTest, AMultiplierIsAppliedBeforeTheOnlyRounding) {
  ThreadPool pool(1);
  for (DType dtype : kWorkingDTypes) {
    const int64_t cols = 77;
    const Array table = RandomArray(dtype, 6 * cols, 4);
    const std::vector<int32_t> ids = {5, 1};
    Array out(dtype, 2 * cols);
    EmbedTokens(pool, {.rows = 6, .cols = cols, .dtype = dtype, .data = table.ptr()}, ids.data(), 2, {}, out.ptr(), dtype, cols, 11.3f);
    for (int64_t t = 0; t < 2; ++t) {
      for (int64_t c = 0; c < cols; ++c) {
        Array expected(dtype, 1);
        expected.Set(0, table[ids[t] * cols + c] * 11.3f);
        EXPECT_EQ(out[t * cols + c], expected[0]);
      }
    }
  }
}

}  // namespace
}  // namespace lime::cpu
