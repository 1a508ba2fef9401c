// Sums of columns and of single rows against the dense kernels, bit for bit.
#include "kernels/cpu/linear/linear_columns.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "kernels/cpu/linear/linear_bf16.h"
#include "tests/cases.h"
#include "tests/kernels/cpu_test_util.h"
#include "tests/kernels/strips.h"
#include "tests/skips.h"

namespace lime::cpu {
namespace {

using ::testing::HasSubstr;

struct Format {
  DType dtype = DType::kBF16;    // of dense weights; kU32: packed
  DType working = DType::kBF16;  // of x, scales and the bias
  int bits = 0, group_size = 0;
};

// A matrix of random weights, and the memory that it points to.
class Weights {
 public:
  Weights(const Format& format, int64_t rows, int64_t cols, uint32_t seed)
      : data_(static_cast<size_t>(rows * (format.bits > 0 ? (cols * format.bits + 31) / 32 * 4 : cols * 4)) + 4),
        scales_(RandomArray(format.working, rows * std::max<int64_t>(1, format.bits > 0 ? cols / format.group_size : 1), seed + 1, 0.05F)),
        biases_(RandomArray(format.working, scales_.size(), seed + 2, 0.3F)),
        bias_(RandomArray(format.working, rows, seed + 3)) {
    matrix_ = {.rows = rows, .cols = cols, .dtype = format.dtype, .data = data_.data()};
    if (format.bits == 0) {
      const Array weights = RandomArray(format.dtype, rows * cols, seed);
      std::ranges::copy(weights.data, data_.begin());
      return;
    }
    std::mt19937 random(seed);
    for (std::byte& byte : data_) byte = static_cast<std::byte>(random());
    matrix_.bits = format.bits, matrix_.group_size = format.group_size, matrix_.scale_dtype = format.working;
    matrix_.scales = scales_.ptr(), matrix_.biases = biases_.ptr();
  }

  const Matrix& matrix() const { return matrix_; }
  const void* bias() const { return bias_.ptr(); }

 private:
  std::vector<std::byte> data_;
  Array scales_, biases_, bias_;
  Matrix matrix_;
};

enum class Result : uint8_t { kOut, kBias, kAddTo };

struct Setting {
  Numerics numerics = Numerics::kPortable;
  int threads = 1;
  Result result = Result::kOut;
};

// x: [tokens, cols]. Of each row of it, the given share is not zero.
Array SparseX(DType dtype, int64_t tokens, int64_t cols, double share, uint32_t seed) {
  Array x = RandomArray(dtype, tokens * cols, seed);
  std::mt19937 random(seed);
  std::bernoulli_distribution is_active(share);
  for (int64_t i = 0; i < x.size(); ++i) {
    if (!is_active(random)) x.Set(i, random() % 2 == 0 ? -0.0F : 0.0F);
  }
  return x;
}

// What a call writes: [tokens, rows + 1] of floats or of the working dtype.
class Output {
 public:
  Output(Result result, const Weights& weights, DType working, int64_t tokens)
      : floats_(DType::kF32, tokens * (weights.matrix().rows + 1)), sums_(RandomArray(working, floats_.size(), 77)) {
    task = {.weight = &weights.matrix(), .out_stride = weights.matrix().rows + 1};
    if (result != Result::kOut) task.bias = weights.bias();
    if (result == Result::kAddTo) {
      task.add_to = sums_.ptr(), task.add_scale = 0.75F;
    } else {
      task.out = static_cast<float*>(floats_.ptr());
    }
  }
  std::vector<std::byte> bits() const { return task.out != nullptr ? floats_.data : sums_.data; }

  LinearTask task;

 private:
  Array floats_, sums_;
};

std::vector<std::byte> Dense(const Weights& weights, const Array& x, int64_t tokens, const Setting& setting) {
  const int64_t cols = weights.matrix().cols;
  ThreadPool pool(setting.threads);
  LinearWorkspace ws(setting.threads, tokens, cols, setting.numerics);
  Output output(setting.result, weights, x.dtype, tokens);
  Linear(pool, ws, x.ptr(), x.dtype, tokens, cols, {&output.task, 1});
  return output.bits();
}

// The columns for which some row of x is not zero.
std::vector<int32_t> Active(const Array& x, int64_t tokens, int64_t cols) {
  std::vector<int32_t> active;
  for (int64_t k = 0; k < cols; ++k) {
    bool is_active = false;
    for (int64_t t = 0; t < tokens; ++t) is_active = is_active || x[t * cols + k] != 0;  // NaN is
    if (is_active) active.push_back(static_cast<int32_t>(k));
  }
  return active;
}

StripWorkspace::Options MemoryFor(const Matrix& m, int64_t tokens, const Setting& setting) {
  return {.num_threads = setting.threads,
          .max_tokens = tokens,
          .max_row_cols = m.cols,
          .max_rows = m.rows,
          .max_columns = m.cols,
          .numerics = setting.numerics};
}

// Adds the columns in several calls, each of at most `most` of them, and frees their memory after each.
std::vector<std::byte> Sparse(const Weights& weights, const Array& x, int64_t tokens, const Setting& setting, int64_t most) {
  const Matrix& m = weights.matrix();
  const std::vector<int32_t> active = Active(x, tokens, m.cols);
  ThreadPool pool(setting.threads);
  StripWorkspace ws(MemoryFor(m, tokens, setting));
  EXPECT_EQ(ws.bytes(), StripWorkspace::BytesFor(MemoryFor(m, tokens, setting)));
  Output output(setting.result, weights, x.dtype, tokens);
  std::mt19937 random(static_cast<uint32_t>(most));
  Matrix format = m;  // its weights are not read
  format.data = nullptr;
  BeginColumns(ws, format, x.dtype, tokens);
  for (size_t begin = 0; begin < active.size();) {
    const size_t end = std::min(active.size(), begin + 1 + random() % static_cast<uint32_t>(most));
    std::vector<std::vector<uint32_t>> memory;
    std::vector<Strip> columns;
    const int64_t stride = std::ssize(active) + 3;
    Array of_columns(x.dtype, tokens * stride);
    for (size_t i = begin; i < end; ++i) {
      memory.push_back(ColumnOf(m, active[i]));
      columns.push_back({.index = active[i], .data = memory.back().data()});
      for (int64_t t = 0; t < tokens; ++t) {
        const int64_t bytes = ElementBytes(x.dtype);
        std::copy_n(x.data.begin() + (t * m.cols + active[i]) * bytes, bytes,
                    of_columns.data.begin() + (t * stride + static_cast<int64_t>(i - begin)) * bytes);
      }
    }
    AddColumns(pool, ws, columns, of_columns.ptr(), stride, end < active.size() ? active[end] : -1);
    for (std::vector<uint32_t>& column : memory) std::ranges::fill(column, 0xffffffffU);  // freed: NaN
    begin = end;
  }
  FinishColumns(pool, ws, output.task);
  return output.bits();
}

std::vector<Numerics> NumericsHere() {
  std::vector<Numerics> all = {Numerics::kPortable};
  if (EmulatedBf16() != nullptr) all.push_back(Numerics::kEmulatedBf16);
  if (HardwareBf16() != nullptr) all.push_back(Numerics::kBf16Dot);
  return all;
}

std::vector<Format> DenseFormats() {
  std::vector<Format> formats;
  for (const DType dtype : kWorkingDTypes) formats.push_back({.dtype = dtype, .working = dtype});
  formats.push_back({.dtype = DType::kF32, .working = DType::kBF16});
  return formats;
}

std::vector<Format> PackedFormats() {
  std::vector<Format> formats;
  int i = 0;
  for (const int bits : {3, 4, 6, 8}) {
    for (const int group_size : {32, 64, 128}) {
      formats.push_back({.dtype = DType::kU32, .working = DType::kBF16, .bits = bits, .group_size = group_size});
      if (const DType other = kWorkingDTypes[i++ % 3]; other != DType::kBF16)
        formats.push_back({.dtype = DType::kU32, .working = other, .bits = bits, .group_size = group_size});
    }
  }
  return formats;
}

std::string NameOf(const Format& format) {
  return std::string(DTypeName(format.dtype)) + " " + std::to_string(format.bits) + " bits in groups of " +
         std::to_string(format.group_size) + ", x in " + std::string(DTypeName(format.working));
}

void ExpectDenseBits(const Weights& weights, const Array& x, int64_t tokens, const Setting& setting) {
  const std::vector<std::byte> dense = Dense(weights, x, tokens, setting);
  for (const int64_t most : {int64_t{1}, int64_t{3}, int64_t{200}, weights.matrix().cols})
    ASSERT_EQ(Sparse(weights, x, tokens, setting, most), dense) << "calls of at most " << most << " columns";
}

TEST(LinearColumnsTest, HaveTheBitsOfDenseLayers) {
  for (int seed = 0; seed < Cases(60, 1500); ++seed) {
    std::mt19937 random(static_cast<uint32_t>(seed));
    const std::vector<Format> formats = DenseFormats();
    const Format format = formats[random() % formats.size()];
    const std::vector<Numerics> numerics = NumericsHere();
    const Setting setting{.numerics = numerics[random() % numerics.size()],
                          .threads = 1 + static_cast<int>(random() % 3),
                          .result = static_cast<Result>(random() % 3)};
    const int64_t rows = 1 + random() % (random() % 2 == 0 ? 70 : 400), cols = 1 + random() % (random() % 2 == 0 ? 300 : 5000);
    const int64_t tokens = 1 + random() % 4;
    constexpr double kShares[] = {0, 0.003, 0.03, 0.3, 1};
    SCOPED_TRACE(NameOf(format) + ", seed " + std::to_string(seed));
    const Weights weights(format, rows, cols, static_cast<uint32_t>(seed));
    ExpectDenseBits(weights, SparseX(format.working, tokens, cols, kShares[random() % 5], static_cast<uint32_t>(seed)), tokens, setting);
    if (HasFatalFailure()) return;
  }
}

TEST(LinearColumnsTest, HaveTheBitsOfPackedLayers) {
  for (const Format& format : PackedFormats()) {
    SCOPED_TRACE(NameOf(format));
    const int64_t rows = format.group_size == 32 ? 32 : 160, cols = format.group_size == 64 ? 2304 : 384;
    const Weights weights(format, rows, cols, 5);
    for (const Numerics numerics : NumericsHere()) {
      for (const double share : {0.0, 0.03, 0.4, 1.0}) {
        ExpectDenseBits(weights, SparseX(format.working, 3, cols, share, 9), 3,
                        {.numerics = numerics, .threads = 2, .result = Result::kAddTo});
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST(LinearColumnsTest, HaveTheSameBitsOnEveryInstructionSet) {
  for (const Format& format : {Format{}, Format{.dtype = DType::kF16, .working = DType::kF16},
                               Format{.dtype = DType::kU32, .working = DType::kF16, .bits = 3, .group_size = 64},
                               Format{.dtype = DType::kU32, .working = DType::kF16, .bits = 4, .group_size = 64}}) {
    SCOPED_TRACE(NameOf(format));
    const Weights weights(format, 288, 2304, 3);
    const Array x = SparseX(format.working, 2, 2304, 0.1, 4);
    const std::vector<std::byte> dense = Dense(weights, x, 2, {});
    ForEachTarget([&](const std::string& target) { EXPECT_EQ(Sparse(weights, x, 2, {}, 100), dense) << target; });
  }
}

// The mistake that no tolerance shows: lanes by the position among the active columns. The sums of
// such columns, dense, have other bits. So the tests above would fail.
TEST(LinearColumnsTest, LanesByPositionHaveOtherBits) {
  for (const Numerics numerics : NumericsHere()) {
    const Weights weights({}, 300, 700, 1);
    const Array x = SparseX(DType::kBF16, 1, 700, 0.2, 2);
    const std::vector<int32_t> active = Active(x, 1, 700);
    const Matrix& all = weights.matrix();
    std::vector<uint16_t> gathered, of_x;
    for (const int32_t k : active) of_x.push_back(reinterpret_cast<const uint16_t*>(x.ptr())[k]);
    for (int64_t row = 0; row < all.rows; ++row) {
      for (const int32_t k : active) gathered.push_back(static_cast<const uint16_t*>(all.data)[row * all.cols + k]);
    }
    const Matrix matrix{.rows = all.rows, .cols = std::ssize(active), .dtype = DType::kBF16, .data = gathered.data()};
    ThreadPool pool(1);
    LinearWorkspace ws(1, 1, matrix.cols, numerics);
    std::vector<float> sums(300), dense(300);
    const LinearTask task{.weight = &matrix, .out = sums.data(), .out_stride = 300},
        of_all{.weight = &all, .out = dense.data(), .out_stride = 300};
    Linear(pool, ws, of_x.data(), DType::kBF16, 1, matrix.cols, {&task, 1});
    LinearWorkspace of_dense(1, 1, 700, numerics);
    Linear(pool, of_dense, x.ptr(), DType::kBF16, 1, 700, {&of_all, 1});
    int others = 0;
    for (size_t i = 0; i < 300; ++i) others += sums[i] != dense[i] ? 1 : 0;
    EXPECT_GT(others, 60) << NumericsId(numerics);
  }
}

// Products that round to -0, beside columns that are left out and would be +0.
TEST(LinearColumnsTest, NoSumIsNegativeZero) {
  for (const Numerics numerics : NumericsHere()) {
    for (const DType dtype : {DType::kBF16, DType::kF32}) {
      Array w(dtype, 2 * 2000), x(dtype, 2000);
      for (int64_t k = 0; k < w.size(); ++k) w.Set(k, -0x1p-100F);
      for (int64_t k = 0; k < 2000; ++k) x.Set(k, k < 1050 ? 0x1p-100F : 0.0F);
      const Matrix m{.rows = 2, .cols = 2000, .dtype = dtype, .data = w.ptr()};
      ThreadPool pool(1);
      LinearWorkspace ws(1, 1, 2000, numerics);
      StripWorkspace strips(MemoryFor(m, 1, {.numerics = numerics}));
      std::vector<float> dense(2, 1), sparse(2, 1);
      const LinearTask task{.weight = &m, .out = dense.data(), .out_stride = 2}, of_strips{.out = sparse.data(), .out_stride = 2};
      Linear(pool, ws, x.ptr(), dtype, 1, 2000, {&task, 1});
      const ColumnsOf columns(m);
      std::vector<Strip> active;
      active.reserve(1050);
      for (int32_t k = 0; k < 1050; ++k) active.push_back({.index = k, .data = columns[k]});
      BeginColumns(strips, m, dtype, 1);
      AddColumns(pool, strips, active, x.ptr(), 2000, -1);
      FinishColumns(pool, strips, of_strips);
      for (const std::vector<float>& sums : {dense, sparse}) {
        for (const float sum : sums) EXPECT_TRUE(sum == 0 && !std::signbit(sum)) << NumericsId(numerics) << " " << sum;
      }
    }
  }
}

TEST(LinearColumnsTest, NanAndInfinityOfXReachTheSums) {
  for (const Numerics numerics : NumericsHere()) {
    for (const Format& format : {Format{}, Format{.dtype = DType::kU32, .bits = 6, .group_size = 32}}) {
      for (const float value : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
        const int64_t rows = 64, cols = 160;
        const Weights weights(format, rows, cols, 1);
        Array x = SparseX(DType::kBF16, 2, cols, 0.1, 2);
        x.Set(cols + 64, value);  // of the second token
        const std::vector<std::byte> bits = Sparse(weights, x, 2, {.numerics = numerics}, 4);
        const auto* const sums = reinterpret_cast<const float*>(bits.data());
        for (int64_t row = 0; row < rows; ++row) {
          EXPECT_TRUE(std::isfinite(sums[row]));
          EXPECT_FALSE(std::isfinite(sums[rows + 1 + row])) << row;
        }
      }
    }
  }
}

TEST(LinearColumnsTest, WorkspacesServeOneSumAfterTheOther) {
  const Weights large({}, 200, 5000, 1), small({.dtype = DType::kF32, .working = DType::kBF16}, 33, 40, 2);
  const Weights packed({.dtype = DType::kU32, .bits = 4, .group_size = 64}, 96, 640, 3);
  ThreadPool pool(2);
  StripWorkspace ws(MemoryFor(large.matrix(), 3, {.threads = 2}));
  for (const Weights* weights : {&large, &small, &packed, &large, &packed}) {
    const Matrix& m = weights->matrix();
    const Array x = SparseX(DType::kBF16, 2, m.cols, 0.05, 3);
    Output output(Result::kBias, *weights, DType::kBF16, 2);
    const ColumnsOf columns(m);
    std::vector<Strip> all;
    all.reserve(static_cast<size_t>(m.cols));
    for (int32_t k = 0; k < m.cols; ++k) all.push_back({.index = k, .data = columns[k]});
    BeginColumns(ws, m, DType::kBF16, 2);
    AddColumns(pool, ws, all, x.ptr(), m.cols, -1);
    FinishColumns(pool, ws, output.task);
    EXPECT_EQ(output.bits(), Dense(*weights, x, 2, {.result = Result::kBias}));
  }
}

TEST(LinearColumnsTest, FormatsWithoutAKernelAreRefused) {
  Matrix m{.rows = 64, .cols = 64, .dtype = DType::kU8, .bits = 4, .group_size = 32, .scale_dtype = DType::kU8};
  EXPECT_THAT(std::string(CheckColumns(m).message()), HasSubstr("mxfp4 or FP8"));
  m = {.rows = 40, .cols = 64, .dtype = DType::kU32, .bits = 4, .group_size = 32};
  EXPECT_THAT(std::string(CheckColumns(m).message()), HasSubstr("need a multiple of 32"));
  m.rows = 64;
  EXPECT_TRUE(CheckColumns(m).ok());
}

TEST(LinearRowsTest, HaveTheBitsOfDenseLayers) {
  std::vector<Format> formats = DenseFormats();
  for (const Format& packed : PackedFormats()) formats.push_back(packed);
  for (const Numerics numerics : NumericsHere()) {
    for (const Format& format : formats) {
      SCOPED_TRACE(NameOf(format));
      const Weights weights(format, 200, format.bits > 0 ? 256 : 77, 3);
      const Matrix& m = weights.matrix();
      for (const int64_t tokens : {1, 3, 11}) {
        const Array x = RandomArray(format.working, tokens * m.cols, 6);
        const Setting setting{.numerics = numerics, .threads = 2, .result = Result::kBias};
        const std::vector<std::byte> bits = Dense(weights, x, tokens, setting);
        const auto* const dense = reinterpret_cast<const float*>(bits.data());
        std::vector<std::vector<std::byte>> memory;
        std::vector<Strip> rows;
        for (int32_t row = 1; row < 200; row += 1 + row % 7) {
          const auto* const data = static_cast<const std::byte*>(m.data) + row * m.RowBytes();
          memory.emplace_back(data, data + m.RowBytes());
          rows.push_back({.index = row, .data = memory.back().data()});
        }
        ThreadPool pool(2);
        LinearWorkspace ws(2, tokens, m.cols, numerics);
        StripWorkspace strips(MemoryFor(m, tokens, setting));
        Matrix like = m;
        like.data = nullptr;
        std::vector<float> out(static_cast<size_t>(tokens) * 200);
        LinearRows(pool, ws, strips, x.ptr(), format.working, tokens, like, weights.bias(), rows, out.data(), 200);
        for (int64_t t = 0; t < tokens; ++t) {
          for (size_t i = 0; i < rows.size(); ++i)
            ASSERT_EQ(out[static_cast<size_t>(t) * 200 + i], dense[t * 201 + rows[i].index]) << "token " << t << " row " << rows[i].index;
        }
      }
    }
  }
}

}  // namespace
}  // namespace lime::cpu
