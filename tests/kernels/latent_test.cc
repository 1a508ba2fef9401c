// Attention over latents: the matrices against fp64, and the attention against pages that store the
// same values.
#include "kernels/cpu/latent.h"

#include <gtest/gtest.h>

#include <vector>

#include "kernels/cpu/attention.h"
#include "tests/kernels/cpu_test_util.h"

namespace lime::cpu {
namespace {

constexpr int64_t kRows = 3, kHeads = 5;
constexpr LatentAttentionConfig kSizes{.query_rank = 9, .rank = 37, .rotated = 6, .plain = 11, .value_dim = 18};

// Row n of a head's part of the matrix, column i.
double Up(const Array& up, int64_t head, int64_t n, int64_t i) {
  return up[(head * (kSizes.plain + kSizes.value_dim) + n) * kSizes.rank + i];
}

Array RandomUp(DType dtype) {
  return RandomArray(dtype, kHeads * (kSizes.plain + kSizes.value_dim) * kSizes.rank, 3);
}

TEST(LatentTest, AbsorbedKeysMatchFp64AndNeighboursComeApart) {
  constexpr int64_t kFrom = kSizes.plain + kSizes.rotated, kTo = kSizes.kv_cols();
  const std::vector<float> q = RandomFloats(kRows * kHeads * kFrom, 1);
  for (const DType dtype : kWorkingDTypes) {
    const Array up = RandomUp(dtype);
    ForEachTarget([&](const std::string& target) {
      ThreadPool pool(2);
      std::vector<float> out(kRows * kHeads * kTo, NAN);
      AbsorbKeys(pool, {.sizes = kSizes, .heads = kHeads, .rows = kRows, .up = up.ptr(), .dtype = dtype}, q.data(), out.data());
      for (int64_t at = 0; at < kRows * kHeads; ++at) {
        for (int64_t i = 0; i < kSizes.rotated; ++i) {
          const int64_t half = kSizes.rotated / 2;
          EXPECT_EQ(out[at * kTo + i], q[at * kFrom + kSizes.plain + 2 * (i % half) + i / half]) << i;
        }
        for (int64_t i = 0; i < kSizes.rank; ++i) {
          double sum = 0;
          for (int64_t n = 0; n < kSizes.plain; ++n) sum += q[at * kFrom + n] * Up(up, at % kHeads, n, i);
          EXPECT_NEAR(out[at * kTo + kSizes.rotated + i], sum, 1e-5 * (1 + std::abs(sum))) << target << " " << at << " " << i;
        }
      }
    });
  }
}

TEST(LatentTest, ExpandedValuesMatchFp64) {
  for (const DType dtype : kWorkingDTypes) {
    const Array up = RandomUp(dtype), sums = RandomArray(dtype, kRows * kHeads * kSizes.rank, 5);
    ForEachTarget([&](const std::string& target) {
      ThreadPool pool(2);
      Array out(dtype, kRows * kHeads * kSizes.value_dim);
      ExpandValues(pool, {.sizes = kSizes, .heads = kHeads, .rows = kRows, .up = up.ptr(), .dtype = dtype}, sums.ptr(), dtype, out.ptr());
      for (int64_t at = 0; at < kRows * kHeads; ++at) {
        for (int64_t n = 0; n < kSizes.value_dim; ++n) {
          double sum = 0;
          for (int64_t i = 0; i < kSizes.rank; ++i) sum += sums[at * kSizes.rank + i] * Up(up, at % kHeads, kSizes.plain + n, i);
          EXPECT_NEAR(out[at * kSizes.value_dim + n], sum, Tolerance(dtype, sum, 1e-5)) << target << " " << at << " " << n;
        }
      }
    });
  }
}

TEST(LatentTest, OrderedLatentsBeginWithTheRotatedDimensions) {
  ThreadPool pool(1);
  std::vector<float> kv(2 * kSizes.kv_cols()), out(kv.size());
  for (size_t i = 0; i < kv.size(); ++i) kv[i] = static_cast<float>(i);
  OrderLatents(pool, kSizes, 2, kv.data(), out.data());
  const std::vector<float> second(out.begin() + kSizes.kv_cols(), out.begin() + kSizes.kv_cols() + 8);
  EXPECT_EQ(second, (std::vector<float>{80, 82, 84, 81, 83, 85, 43, 44}));
}

// One sequence in pages, with V or without.
struct Pages {
  Pages(DType dtype, int64_t dim, int64_t latent_dim, int64_t positions) : dtype(dtype) {
    const int64_t pages = (positions + kPagePositions - 1) / kPagePositions;
    const Bytes bytes = KvPageBytes(dtype, 1, dim) / (latent_dim > 0 ? 2 : 1);
    memory.assign(static_cast<size_t>(pages * bytes), std::byte{0xff});
    for (int64_t page = 0; page < pages; ++page) table.push_back(static_cast<int32_t>(pages - 1 - page));
    view = {.base = memory.data(),
            .page_bytes = bytes,
            .dtype = dtype,
            .kv_heads = 1,
            .head_dim = dim,
            .page_table = table.data(),
            .table_stride = pages,
            .latent_dim = latent_dim};
  }
  DType dtype;
  std::vector<std::byte> memory;
  std::vector<int32_t> table;
  KvView view;
};

TEST(LatentTest, PagesWithoutValuesGiveTheBitsOfPagesThatStoreThem) {
  constexpr int64_t kDim = 53, kLatent = 37, kPositions = 300, kQueries = 10;
  for (const DType dtype : kWorkingDTypes) {
    const std::vector<float> k = RandomFloats(kPositions * kDim, 7), q = RandomFloats(kPositions * kQueries * kDim, 8);
    ForEachTarget([&](const std::string& target) {
      ThreadPool pool(2);
      AttentionWorkspace ws({.max_rows = kPositions, .heads = kQueries, .head_dim = kDim, .max_positions = kPositions});
      Pages with(dtype, kDim, 0, kPositions), without(dtype, kDim, kLatent, kPositions);
      std::vector<int32_t> slots(kPositions), positions;
      for (int32_t p = 0; p < kPositions; ++p) positions.push_back(p);
      const AttentionRows rows{slots.data(), positions.data(), kPositions};
      KvAppend(pool, with.view, rows, k.data(), k.data(), kDim);
      KvAppend(pool, without.view, rows, k.data(), nullptr, kDim);
      Array expected(dtype, kPositions * kQueries * kDim), out(dtype, kPositions * kQueries * kLatent);
      AttentionShape shape{.heads = kQueries, .q_stride = kQueries * kDim, .out_stride = kQueries * kDim, .scale = 0.3f};
      Attend(pool, ws, with.view, rows, q.data(), shape, expected.ptr());
      shape.out_stride = kQueries * kLatent;
      Attend(pool, ws, without.view, rows, q.data(), shape, out.ptr());
      int64_t different = 0;
      for (int64_t at = 0; at < kPositions * kQueries; ++at)
        for (int64_t d = 0; d < kLatent; ++d) different += out[at * kLatent + d] != expected[at * kDim + kDim - kLatent + d];
      EXPECT_EQ(different, 0) << target << " " << DTypeName(dtype);
    });
  }
}

}  // namespace
}  // namespace lime::cpu
