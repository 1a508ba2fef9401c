// Attention over paged KV: against fp64, and the same bits whatever shares the batch, the chunk, the threads or the CPU.
#include "kernels/cpu/attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>

#include "tests/kernels/cpu_test_util.h"

namespace lime::cpu {
namespace {

struct Geometry {
  DType dtype = DType::kBF16;
  int64_t heads = 4, kv_heads = 2, head_dim = 64, window = 0;
};

// A pool of pages in shuffled order, full of NaN where nothing was appended, and the K, V and Q of every (sequence, position).
class Cache {
 public:
  Cache(const Geometry& g, int64_t sequences, int64_t positions) : g_(g), positions_(positions), stride_(RoundUp(positions, 16) / 16 + 1) {
    std::vector<int32_t> ids(sequences * stride_);
    std::iota(ids.begin(), ids.end(), 0);
    std::shuffle(ids.begin(), ids.end(), std::mt19937(7));
    table_ = ids;
    page_bytes_ = KvPageBytes(g.dtype, g.kv_heads, g.head_dim) + 64;
    pages_.assign(ids.size() * page_bytes_, std::byte{0xff});
    const int64_t rows = sequences * positions;
    k_ = RandomFloats(rows * g.kv_heads * g.head_dim, 1, 2.0f);
    v_ = RandomFloats(rows * g.kv_heads * g.head_dim, 2);
    q_ = RandomFloats(rows * g.heads * g.head_dim, 3);
  }

  KvView View() {
    return {.base = pages_.data(),
            .page_bytes = page_bytes_,
            .dtype = g_.dtype,
            .kv_heads = g_.kv_heads,
            .head_dim = g_.head_dim,
            .page_table = table_.data(),
            .table_stride = stride_};
  }
  float* K(int32_t slot, int32_t position) { return &k_[(slot * positions_ + position) * g_.kv_heads * g_.head_dim]; }
  float* V(int32_t slot, int32_t position) { return &v_[(slot * positions_ + position) * g_.kv_heads * g_.head_dim]; }
  int32_t sequences() const { return static_cast<int32_t>(static_cast<int64_t>(table_.size()) / stride_); }
  // Takes a piece out of its pages, which then hold nothing but NaN.
  std::vector<std::byte> TakeAway(int32_t slot, int64_t piece) {
    std::vector<std::byte> taken;
    for (int64_t page = 16 * piece; page < 16 * (piece + 1); ++page) {
      const auto begin = pages_.begin() + table_[static_cast<size_t>(slot * stride_ + page)] * page_bytes_;
      taken.insert(taken.end(), begin, begin + page_bytes_);
      std::fill(begin, begin + page_bytes_, std::byte{0xff});
    }
    return taken;
  }
  const float* Q(int32_t slot, int32_t position) { return &q_[(slot * positions_ + position) * g_.heads * g_.head_dim]; }

 private:
  Geometry g_;
  int64_t positions_, stride_, page_bytes_;
  std::vector<int32_t> table_;
  std::vector<std::byte> pages_;
  std::vector<float> k_, v_, q_;
};

struct Row {
  int32_t slot, position;
};

// How one Attend is done in several calls: those up to the pieces in `ends`, in which pieces that are not in `away` come from their pages.
struct Calls {
  std::vector<int64_t> ends;
  std::map<std::pair<int32_t, int64_t>, const std::byte*> away;  // by slot and piece
};

// Appends and attends one micro-batch, and returns a row of raw bits for each of its rows.
std::vector<std::vector<std::byte>> Step(ThreadPool& pool, const Geometry& g, Cache& cache, const std::vector<Row>& rows,
                                         const Calls& calls = {}) {
  std::vector<int32_t> slots, positions;
  std::vector<float> k, v, q;
  const int64_t kv_width = g.kv_heads * g.head_dim, width = g.heads * g.head_dim;
  for (const Row& row : rows) {
    slots.push_back(row.slot);
    positions.push_back(row.position);
    k.insert(k.end(), cache.K(row.slot, row.position), cache.K(row.slot, row.position) + kv_width);
    v.insert(v.end(), cache.V(row.slot, row.position), cache.V(row.slot, row.position) + kv_width);
    q.insert(q.end(), cache.Q(row.slot, row.position), cache.Q(row.slot, row.position) + width);
  }
  const AttentionRows batch{slots.data(), positions.data(), static_cast<int64_t>(rows.size())};
  AttentionWorkspace ws(
      {.max_rows = batch.count, .heads = g.heads, .head_dim = g.head_dim, .max_positions = 1024, .carries = !calls.ends.empty()});
  Array out(g.dtype, batch.count * width);
  KvAppend(pool, cache.View(), batch, k.data(), v.data(), kv_width);
  const AttentionShape shape{
      .heads = g.heads, .q_stride = width, .out_stride = width, .window = g.window, .scale = 1 / std::sqrt(static_cast<float>(g.head_dim))};
  int64_t begin = 0;
  for (const int64_t end : calls.ends) {
    std::vector<const std::byte*> places;
    for (int32_t slot = 0; slot < cache.sequences(); ++slot)
      for (int64_t piece = begin; piece < end; ++piece) {
        const auto found = calls.away.find({slot, piece});
        places.push_back(found == calls.away.end() ? nullptr : found->second);
      }
    Attend(pool, ws, cache.View(), batch, q.data(), shape, out.ptr(), {.begin = begin, .end = end, .places = places.data()});
    begin = end;
  }
  Attend(pool, ws, cache.View(), batch, q.data(), shape, out.ptr(), {.begin = begin});
  std::vector<std::vector<std::byte>> result;
  const int64_t bytes = width * ElementBytes(g.dtype);
  for (int64_t row = 0; row < batch.count; ++row) result.emplace_back(out.data.begin() + row * bytes, out.data.begin() + (row + 1) * bytes);
  return result;
}

std::vector<Row> Range(int32_t slot, int32_t begin, int32_t end) {
  std::vector<Row> rows;
  for (int32_t p = begin; p < end; ++p) rows.push_back({slot, p});
  return rows;
}

double Rounded(DType dtype, float x) {
  Array one(dtype, 1);
  one.Set(0, x);
  return one[0];
}

// One head of one row in fp64, from K and V as the cache holds them.
std::vector<double> Oracle(const Geometry& g, Cache& cache, Row row, int64_t head) {
  const int64_t kv_head = head / (g.heads / g.kv_heads);
  const int64_t first = g.window > 0 ? std::max<int64_t>(0, row.position - g.window + 1) : 0;
  std::vector<double> out(g.head_dim), score;
  for (int64_t p = first; p <= row.position; ++p) {
    double s = 0;
    for (int64_t d = 0; d < g.head_dim; ++d)
      s += static_cast<double>(cache.Q(row.slot, row.position)[head * g.head_dim + d]) *
           Rounded(g.dtype, cache.K(row.slot, static_cast<int32_t>(p))[kv_head * g.head_dim + d]);
    score.push_back(s / std::sqrt(static_cast<double>(g.head_dim)));
  }
  const double max = *std::max_element(score.begin(), score.end());
  double sum = 0;
  for (double& s : score) sum += s = std::exp(s - max);
  for (int64_t p = first; p <= row.position; ++p)
    for (int64_t d = 0; d < g.head_dim; ++d)
      out[d] += score[p - first] / sum * Rounded(g.dtype, cache.V(row.slot, static_cast<int32_t>(p))[kv_head * g.head_dim + d]);
  return out;
}

void ExpectRow(const Geometry& g, Cache& cache, Row row, const std::vector<std::byte>& bits) {
  Array out(g.dtype, g.heads * g.head_dim);
  out.data = bits;
  for (int64_t head = 0; head < g.heads; ++head) {
    const std::vector<double> expected = Oracle(g, cache, row, head);
    for (int64_t d = 0; d < g.head_dim; ++d)
      ASSERT_NEAR(out[head * g.head_dim + d], expected[d], Tolerance(g.dtype, expected[d], 1e-5))
          << DTypeName(g.dtype) << " head_dim " << g.head_dim << " heads " << g.heads << "/" << g.kv_heads << " window " << g.window
          << " position " << row.position << " head " << head << " d " << d;
  }
}

TEST(AttentionTest, MatchesFp64InDecodeAndPrefill) {
  ThreadPool pool(2);
  const int64_t head_dims[] = {8, 64, 80, 96, 128, 256};
  const std::pair<int64_t, int64_t> heads[] = {{1, 1}, {4, 4}, {8, 2}, {7, 1}, {12, 1}};
  for (DType dtype : kWorkingDTypes) {
    for (int64_t head_dim : head_dims) {
      for (auto [num_heads, kv_heads] : heads) {
        if (head_dim > 96 && num_heads > 4) continue;
        for (int64_t window : {0, 20, 300}) {
          const Geometry g{dtype, num_heads, kv_heads, head_dim, window};
          Cache cache(g, 1, 530);
          const auto prefill = Step(pool, g, cache, Range(0, 0, 520));
          for (int32_t p : {0, 14, 16, 255, 256, 300, 519}) ExpectRow(g, cache, {0, p}, prefill[p]);
          ExpectRow(g, cache, {0, 520}, Step(pool, g, cache, {{0, 520}})[0]);
        }
      }
    }
  }
}

class AttentionBitsTest : public testing::TestWithParam<std::tuple<DType, int64_t, int64_t>> {};

// Token by token, alone, on one thread is the reference; nothing else may differ from it in a bit.
TEST_P(AttentionBitsTest, ChunksThreadsBatchesAndInstructionSetsChangeNoBit) {
  const auto [dtype, head_dim, window] = GetParam();
  const Geometry g{dtype, 6, 2, head_dim, window};
  const int32_t n = 290;
  std::vector<std::vector<std::byte>> expected;
  {
    ThreadPool pool(1);
    Cache cache(g, 1, n);
    for (int32_t p = 0; p < n; ++p) expected.push_back(Step(pool, g, cache, {{0, p}})[0]);
  }
  ForEachTarget([&](const std::string& target) {
    for (int threads : {1, 2, 3}) {
      for (int32_t chunk : {1, 7, 64, n}) {
        if (chunk == 1 && threads != 2) continue;
        ThreadPool pool(threads);
        Cache cache(g, 1, n);
        for (int32_t begin = 0; begin < n; begin += chunk) {
          const auto rows = Step(pool, g, cache, Range(0, begin, std::min(n, begin + chunk)));
          for (size_t i = 0; i < rows.size(); ++i)
            ASSERT_EQ(rows[i], expected[begin + i]) << target << " threads " << threads << " chunk " << chunk << " position " << begin + i;
        }
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(All, AttentionBitsTest,
                         testing::Combine(testing::ValuesIn(kWorkingDTypes), testing::Values(8, 64, 80), testing::Values(0, 100)));

TEST(AttentionTest, RowsOfABatchAreAsIfAlone) {
  const Geometry g{DType::kBF16, 8, 2, 64, 0};
  const int64_t context = 700;
  const auto prepared = [&] {
    Cache cache(g, 4, context);
    ThreadPool pool(2);
    Step(pool, g, cache, Range(0, 0, 600));
    Step(pool, g, cache, Range(1, 0, 3));
    Step(pool, g, cache, Range(2, 0, 257));
    return cache;
  };
  // Two decode rows, a chunk in the middle of a sequence, a decode row, and the start of a prompt.
  std::vector<Row> batch = {{0, 600}, {1, 3}};
  for (const Row& row : Range(2, 257, 290)) batch.push_back(row);
  for (const Row& row : Range(3, 0, 17)) batch.push_back(row);
  ThreadPool one(1);
  Cache alone = prepared();
  std::vector<std::vector<std::byte>> expected;
  for (const Row& row : batch) expected.push_back(Step(one, g, alone, {row})[0]);
  for (int threads : {1, 2, 3}) {
    ThreadPool pool(threads);
    Cache cache = prepared();
    EXPECT_EQ(Step(pool, g, cache, batch), expected) << threads << " threads";
  }
}

// A long context of one sequence is cut by pieces over the threads, on one thread it is not.
TEST(AttentionTest, SharingThePiecesOfOneRowChangesNoBit) {
  for (int64_t kv_heads : {1, 4}) {
    const Geometry g{DType::kF16, 4, kv_heads, 64, 0};
    Cache cache(g, 1, 1000);
    ThreadPool one(1), two(2), three(3);
    Step(two, g, cache, Range(0, 0, 999));
    const auto expected = Step(one, g, cache, {{0, 999}});
    EXPECT_EQ(Step(two, g, cache, {{0, 999}}), expected);
    EXPECT_EQ(Step(three, g, cache, {{0, 999}}), expected);
    ExpectRow(g, cache, {0, 999}, expected[0]);
  }
}

// Attended to in several calls, with pieces that have left their pages, alone and beside others, with windows that begin behind them.
TEST(AttentionTest, PiecesThatLieElsewhereAndSeveralCallsChangeNoBit) {
  const auto prepared = [](const Geometry& g) {
    Cache cache(g, 3, 1100);
    ThreadPool pool(2);
    Step(pool, g, cache, Range(0, 0, 1030));
    Step(pool, g, cache, Range(1, 0, 700));
    Step(pool, g, cache, Range(2, 0, 90));
    return cache;
  };
  std::vector<Row> batch = {{0, 1030}, {2, 90}};
  for (const Row& row : Range(1, 700, 790)) batch.push_back(row);  // into a piece that begins within
  for (const DType dtype : kWorkingDTypes) {
    for (const int64_t window : {0, 20, 300, 600}) {
      const Geometry g{dtype, 6, 2, 64, window};
      ThreadPool one(1);
      Cache whole = prepared(g);
      const auto expected = Step(one, g, whole, batch);
      for (const std::vector<int64_t>& ends : std::vector<std::vector<int64_t>>{{1}, {1, 2}, {2, 3}, {1, 2, 3, 4}, {4, 9}, {3, 9}}) {
        for (const int threads : {1, 3}) {
          ThreadPool pool(threads);
          Cache cache = prepared(g);
          Calls calls{.ends = ends, .away = {}};
          std::vector<std::vector<std::byte>> memory;
          for (const auto& [slot, piece] : std::vector<std::pair<int32_t, int64_t>>{{0, 0}, {0, 1}, {0, 3}, {1, 0}, {1, 1}}) {
            if (piece >= ends.back()) continue;
            memory.push_back(cache.TakeAway(slot, piece));
            calls.away[{slot, piece}] = memory.back().data();
          }
          EXPECT_EQ(Step(pool, g, cache, batch, calls), expected) << DTypeName(dtype) << " window " << window << ", " << ends.size()
                                                                  << " calls to " << ends.back() << ", " << threads << " threads";
        }
      }
    }
  }
}

// Positions that a row does not see must not touch it, not even as zero times NaN.
TEST(AttentionTest, LaterAndForgottenPositionsCannotSpoilARow) {
  for (int64_t window : {0, 30}) {
    const Geometry g{DType::kF32, 4, 1, 64, window};
    const int32_t n = 96, bad = 50;
    ThreadPool pool(2);
    Cache clean(g, 1, n), broken(g, 1, n);
    std::fill(broken.K(0, bad), broken.K(0, bad) + 64, std::numeric_limits<float>::quiet_NaN());
    std::fill(broken.V(0, bad), broken.V(0, bad) + 64, std::numeric_limits<float>::infinity());
    const auto expected = Step(pool, g, clean, Range(0, 0, n)), got = Step(pool, g, broken, Range(0, 0, n));
    for (int32_t p = 0; p < n; ++p) {
      const bool sees = p >= bad && (window == 0 || p < bad + window);
      Array row(DType::kF32, 4 * 64);
      row.data = got[p];
      if (sees) {
        EXPECT_TRUE(std::isnan(row[0])) << p;
      } else {
        EXPECT_EQ(got[p], expected[p]) << p;
      }
    }
  }
}

}  // namespace
}  // namespace lime::cpu
