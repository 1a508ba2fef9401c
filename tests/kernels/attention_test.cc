// Attention over paged KV: against fp64, and the same bits whatever shares the batch, the chunk,
// the threads or the CPU.
#include "kernels/cpu/attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <random>

#include "kernels/cpu/base/lanes-inl.h"
#include "tests/cases.h"
#include "tests/kernels/cpu_test_util.h"

namespace lime::cpu {
namespace {

struct Geometry {
  DType dtype = DType::kBF16;
  int64_t heads = 4, kv_heads = 2, head_dim = 64, window = 0;
  float cap = 0;
  AttentionSinks sinks = {};  // of fp32
};

// One for each head: below, among and above the scores.
constexpr float kSinks[] = {-3, 0, 2.5, 9, -40, 1, 0.25, -1, 4, 3, -2, 60};

// A pool of pages in shuffled order, full of NaN where nothing was appended, and the K, V and Q of
// every (sequence, position).
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
  std::vector<std::byte> MoveOut(int32_t slot, int64_t piece) {
    std::vector<std::byte> moved;
    for (int64_t page = 16 * piece; page < 16 * (piece + 1); ++page) {
      const auto begin = pages_.begin() + table_[static_cast<size_t>(slot * stride_ + page)] * page_bytes_;
      moved.insert(moved.end(), begin, begin + page_bytes_);
      std::fill(begin, begin + page_bytes_, std::byte{0xff});
    }
    return moved;
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

// How one Attend is done in several calls: those up to the pieces in `ends`, in which pieces that
// are not in `away` come from their pages.
struct Calls {
  std::vector<int64_t> ends;
  std::map<std::pair<int32_t, int64_t>, const std::byte*> away;  // by slot and piece
};

// A micro-batch as the kernels take it.
struct Batch {
  Batch(const Geometry& g, Cache& cache, const std::vector<Row>& from) {
    const int64_t kv_width = g.kv_heads * g.head_dim, width = g.heads * g.head_dim;
    for (const Row& row : from) {
      slots.push_back(row.slot);
      positions.push_back(row.position);
      k.insert(k.end(), cache.K(row.slot, row.position), cache.K(row.slot, row.position) + kv_width);
      v.insert(v.end(), cache.V(row.slot, row.position), cache.V(row.slot, row.position) + kv_width);
      q.insert(q.end(), cache.Q(row.slot, row.position), cache.Q(row.slot, row.position) + width);
    }
  }
  AttentionRows rows() const { return {slots.data(), positions.data(), static_cast<int64_t>(slots.size())}; }
  void Append(ThreadPool& pool, const Geometry& g, Cache& cache) const {
    KvAppend(pool, cache.View(), rows(), k.data(), v.data(), g.kv_heads * g.head_dim);
  }

  std::vector<int32_t> slots, positions;
  std::vector<float> k, v, q;
};

AttentionShape ShapeOf(const Geometry& g) {
  const int64_t width = g.heads * g.head_dim;
  return {.heads = g.heads,
          .q_stride = width,
          .out_stride = width,
          .window = g.window,
          .scale = 1 / std::sqrt(static_cast<float>(g.head_dim)),
          .cap = g.cap,
          .sinks = g.sinks};
}

// The raw bits of each row.
std::vector<std::vector<std::byte>> RowsOf(const Geometry& g, const Array& out) {
  std::vector<std::vector<std::byte>> result;
  const int64_t bytes = g.heads * g.head_dim * ElementBytes(g.dtype);
  for (auto row = out.data.begin(); row != out.data.end(); row += bytes) result.emplace_back(row, row + bytes);
  return result;
}

// Appends and attends one micro-batch, and returns a row of raw bits for each of its rows.
std::vector<std::vector<std::byte>> Step(ThreadPool& pool, const Geometry& g, Cache& cache, const std::vector<Row>& rows,
                                         const Calls& calls = {}, const AttentionGate& gate = {}) {
  const Batch inputs(g, cache, rows);
  const AttentionRows batch = inputs.rows();
  const std::vector<float>& q = inputs.q;
  AttentionWorkspace ws(
      {.max_rows = batch.count, .heads = g.heads, .head_dim = g.head_dim, .max_positions = 1024, .carries = !calls.ends.empty()});
  Array out(g.dtype, batch.count * g.heads * g.head_dim);
  inputs.Append(pool, g, cache);
  AttentionShape shape = ShapeOf(g);
  shape.gate = gate;
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
  return RowsOf(g, out);
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
    s /= std::sqrt(static_cast<double>(g.head_dim));
    score.push_back(g.cap > 0 ? g.cap * std::tanh(s / g.cap) : s);
  }
  double max = *std::max_element(score.begin(), score.end()), sum = 0;
  if (g.sinks.data != nullptr) {
    const double sink = static_cast<const float*>(g.sinks.data)[head];
    max = std::max(max, sink), sum = std::exp(sink - max);
  }
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
  int cases = 0;
  for (DType dtype : kWorkingDTypes) {
    for (int64_t head_dim : head_dims) {
      for (auto [num_heads, kv_heads] : heads) {
        if (head_dim > 96 && num_heads > 4) continue;
        for (int64_t window : {0, 20, 300}) {
          if (++cases % 8 != 0 && !ManyCases()) continue;
          Geometry g{dtype, num_heads, kv_heads, head_dim, window};
          if (cases % 16 == 0) g.sinks.data = kSinks;
          Cache cache(g, 1, 530);
          const auto prefill = Step(pool, g, cache, Range(0, 0, 520));
          for (int32_t p : {0, 14, 16, 255, 256, 300, 519}) ExpectRow(g, cache, {0, p}, prefill[p]);
          ExpectRow(g, cache, {0, 520}, Step(pool, g, cache, {{0, 520}})[0]);
        }
      }
    }
  }
}

// The scores have a deviation of two.
TEST(AttentionTest, CappedScoresMatchFp64) {
  ThreadPool pool(2);
  for (const float cap : {0.5f, 2.0f, 50.0f}) {
    const Geometry g{.dtype = DType::kF32, .window = 40, .cap = cap};
    Cache cache(g, 1, 300);
    const auto prefill = Step(pool, g, cache, Range(0, 0, 299));
    for (const int32_t p : {0, 16, 17, 255, 256, 298}) ExpectRow(g, cache, {0, p}, prefill[p]);
    ExpectRow(g, cache, {0, 299}, Step(pool, g, cache, {{0, 299}})[0]);
  }
}

class AttentionBitsTest : public testing::TestWithParam<std::tuple<DType, int64_t, int64_t>> {};

// Token by token, alone, on one thread is the reference; nothing else may differ from it in a bit.
TEST_P(AttentionBitsTest, ChunksThreadsBatchesAndInstructionSetsChangeNoBit) {
  const auto [dtype, head_dim, window] = GetParam();
  if (!ManyCases() && (head_dim == 64) != (window == 0)) GTEST_SKIP() << "under a sanitizer, half of the geometries are tried";
  const Geometry g{dtype, 6, 2, head_dim, window};
  const int32_t n = 290;
  std::vector<std::vector<std::byte>> expected;
  {
    ThreadPool pool(1);
    Cache cache(g, 1, n);
    for (int32_t p = 0; p < n; ++p) expected.push_back(Step(pool, g, cache, {{0, p}})[0]);
  }
  ForEachTarget([&](const std::string& target) {
    // The scalar code is the same source as the others and fifty times slower.
    const bool slow = kSanitized || target == hwy::TargetName(HWY_SCALAR) || target == hwy::TargetName(HWY_EMU128);
    for (int threads : {1, 2, 3}) {
      for (int32_t chunk : {1, 7, 64, n}) {
        if (chunk == 1 && threads != 2) continue;
        if (slow && !Soaking() && (threads != 2 || chunk == 1 || chunk == 64)) continue;
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
    for (const auto& [slot, end] : {std::pair{0, 600}, std::pair{1, 3}, std::pair{2, 257}})
      Batch(g, cache, Range(slot, 0, end)).Append(pool, g, cache);
    return cache;
  };
  // Two decode rows, a chunk in the middle of a sequence, a decode row, and the start of a prompt.
  std::vector<Row> batch = {{0, 600}, {1, 3}};
  for (const Row& row : Range(2, 257, 290)) batch.push_back(row);
  for (const Row& row : Range(3, 0, 17)) batch.push_back(row);
  ThreadPool one(1);
  Cache alone = prepared();
  std::vector<std::vector<std::byte>> expected(batch.size());
  for (size_t i = 0; i < batch.size(); ++i) expected[i] = Step(one, g, alone, {batch[i]})[0];
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

// Attended to in several calls, with pieces that have left their pages, alone and beside others,
// with windows that begin behind them.
TEST(AttentionTest, PiecesThatLieElsewhereAndSeveralCallsChangeNoBit) {
  const auto prepared = [](const Geometry& g) {
    Cache cache(g, 3, 1100);
    ThreadPool pool(2);
    for (const auto& [slot, end] : {std::pair{0, 1030}, std::pair{1, 700}, std::pair{2, 90}})
      Batch(g, cache, Range(slot, 0, end)).Append(pool, g, cache);
    return cache;
  };
  std::vector<Row> batch = {{0, 1030}, {2, 90}};
  for (const Row& row : Range(1, 700, 790)) batch.push_back(row);  // into a piece that begins within
  for (const DType dtype : kWorkingDTypes) {
    for (const int64_t window : {0, 20, 300, 600}) {
      if (window != 300 && !ManyCases()) continue;
      const Geometry g{dtype, 6, 2, 64, window};
      ThreadPool one(1);
      const Cache before = prepared(g);
      Cache whole = before;
      const auto expected = Step(one, g, whole, batch);
      for (const std::vector<int64_t>& ends : std::vector<std::vector<int64_t>>{{1}, {1, 2}, {2, 3}, {1, 2, 3, 4}, {4, 9}, {3, 9}}) {
        for (const int threads : {1, 3}) {
          ThreadPool pool(threads);
          Cache cache = before;
          Calls calls{.ends = ends, .away = {}};
          std::vector<std::vector<std::byte>> memory;
          for (const auto& [slot, piece] : std::vector<std::pair<int32_t, int64_t>>{{0, 0}, {0, 1}, {0, 3}, {1, 0}, {1, 1}}) {
            if (piece >= ends.back()) continue;
            memory.push_back(cache.MoveOut(slot, piece));
            calls.away[{slot, piece}] = memory.back().data();
          }
          EXPECT_EQ(Step(pool, g, cache, batch, calls), expected) << DTypeName(dtype) << " window " << window << ", " << ends.size()
                                                                  << " calls to " << ends.back() << ", " << threads << " threads";
        }
      }
    }
  }
}

// For every row and head a query, then a gate, as one linear layer computes them.
TEST(AttentionTest, AGateMultipliesTheResultBeforeTheOnlyRounding) {
  const Geometry wide{DType::kF32, 6, 2, 40, 0};
  std::vector<Row> batch = {{0, 600}, {2, 17}};
  for (const Row& row : Range(1, 290, 330)) batch.push_back(row);
  const int64_t count = static_cast<int64_t>(batch.size()), width = wide.heads * wide.head_dim;
  const std::vector<float> gates = RandomFloats(2 * count * width, 4, 3.0f);
  const AttentionGate gate{.data = gates.data() + wide.head_dim, .stride = 2 * width, .head_stride = 2 * wide.head_dim};
  const auto sigmoid = [](float x) { return 1 / (1 + HWY_NAMESPACE::ExpOne(-x)); };
  for (const DType dtype : kWorkingDTypes) {
    Geometry g = wide;
    g.dtype = dtype;
    const auto prepared = [&] {
      Cache cache(g, 3, 700);
      ThreadPool pool(1);
      for (const auto& [slot, end] : {std::pair{0, 600}, std::pair{1, 290}, std::pair{2, 17}})
        Batch(g, cache, Range(slot, 0, end)).Append(pool, g, cache);
      return cache;
    };
    ThreadPool pool(2);
    Cache plain_cache = prepared(), cache = prepared();
    const auto plain = Step(pool, g, plain_cache, batch), gated = Step(pool, g, cache, batch, {}, gate);
    for (const std::vector<int64_t>& ends : std::vector<std::vector<int64_t>>{{1}, {1, 2}, {2}}) {
      Cache again = prepared();
      EXPECT_EQ(Step(pool, g, again, batch, {.ends = ends, .away = {}}, gate), gated) << DTypeName(dtype);
    }
    for (size_t row = 0; row < batch.size(); ++row) {
      Array before(dtype, width), after(dtype, width);
      before.data = plain[row], after.data = gated[row];
      for (int64_t i = 0; i < width; ++i) {
        const int64_t head = i / g.head_dim, d = i % g.head_dim;
        const float factor = sigmoid(gate.data[static_cast<int64_t>(row) * gate.stride + head * gate.head_stride + d]);
        if (dtype == DType::kF32) {
          ASSERT_EQ(after[i], before[i] * factor) << "row " << row << " element " << i;
        } else {  // the plain result is rounded, too
          ASSERT_NEAR(after[i], before[i] * factor, 2 * Tolerance(dtype, before[i])) << "row " << row << " element " << i;
        }
      }
    }
  }
}

TEST(AttentionTest, SinksTakeTheirShareOfEveryRowOnce) {
  ThreadPool pool(2);
  for (const DType dtype : kWorkingDTypes) {
    for (const int64_t window : {0, 20}) {
      const Geometry plain{DType::kF32, 6, 2, 40, window};
      Geometry g = plain;
      Array sinks(dtype, g.heads);
      for (int64_t head = 0; head < g.heads; ++head) sinks.Set(head, kSinks[head]);
      g.sinks = {.data = sinks.ptr(), .dtype = dtype};
      Cache cache(g, 1, 700), plain_cache(plain, 1, 700);
      const auto whole = Step(pool, g, cache, Range(0, 0, 700));
      for (const std::vector<int64_t>& ends : std::vector<std::vector<int64_t>>{{1}, {1, 2}, {2}}) {
        Cache again(g, 1, 700);
        EXPECT_EQ(Step(pool, g, again, Range(0, 0, 700), {.ends = ends, .away = {}}), whole) << DTypeName(dtype) << " window " << window;
      }
      EXPECT_NE(whole, Step(pool, plain, plain_cache, Range(0, 0, 700)));
      g.sinks = {.data = kSinks};  // each is exact in every dtype
      for (const int32_t p : {0, 15, 256, 699}) ExpectRow(g, cache, {0, p}, whole[p]);
    }
  }
}

// The records of the rows of one slot after its first pieces, from a workspace that has no page
// table. Zeros where a row sees none of them: checked, and made NaN, since nobody looks at them.
std::vector<float> RecordsElsewhere(ThreadPool& pool, const Geometry& g, Cache& cache, const std::vector<Row>& rows,
                                    const std::vector<std::vector<std::byte>>& pieces) {
  const int64_t count = static_cast<int64_t>(rows.size()), end = static_cast<int64_t>(pieces.size());
  AttentionWorkspace ws({.max_rows = count, .heads = g.heads, .head_dim = g.head_dim, .max_positions = 1024, .carries = true});
  const Batch batch(g, cache, rows);
  AttentionRows alone = batch.rows();
  alone.slots = nullptr;
  KvView view = cache.View();
  view.base = nullptr, view.page_table = nullptr, view.table_stride = 0;
  std::vector<const std::byte*> places(pieces.size());
  std::ranges::transform(pieces, places.begin(), [](const auto& piece) { return piece.data(); });
  const int64_t width = PackedRecordFloats(g.heads, g.head_dim);
  std::vector<float> records(count * width, 7.0F);
  Attend(pool, ws, view, alone, batch.q.data(), ShapeOf(g), nullptr, {.end = end, .places = places.data()});
  GetCarried(ws, alone, ShapeOf(g), g.head_dim, end, records.data());
  for (int64_t row = 0; row < count; ++row) {
    if (g.window == 0 || rows[row].position - g.window + 1 < end * kPiecePositions) continue;
    const auto begin = records.begin() + row * width;
    EXPECT_EQ(std::count(begin, begin + width, 0.0F), width) << "row " << row;
    std::fill(begin, begin + width, std::numeric_limits<float>::quiet_NaN());
  }
  return records;
}

// Attends to one micro-batch of which the first `covered` pieces of each slot have left their pages
// and are attended to elsewhere.
std::vector<std::vector<std::byte>> StepWithRecords(ThreadPool& pool, const Geometry& g, Cache& cache, const std::vector<Row>& rows,
                                                    const std::vector<int32_t>& covered) {
  const Batch batch(g, cache, rows);
  batch.Append(pool, g, cache);
  const int64_t count = static_cast<int64_t>(rows.size()), width = PackedRecordFloats(g.heads, g.head_dim);
  std::vector<float> records(count * width, std::numeric_limits<float>::quiet_NaN());
  for (int32_t slot = 0; slot < cache.sequences(); ++slot) {
    std::vector<std::vector<std::byte>> pieces(covered[slot]);
    for (int32_t piece = 0; piece < covered[slot]; ++piece) pieces[piece] = cache.MoveOut(slot, piece);
    std::vector<Row> of_slot;
    std::vector<int64_t> at;
    for (int64_t row = 0; row < count; ++row) {
      if (rows[row].slot == slot) of_slot.push_back(rows[row]), at.push_back(row);
    }
    if (pieces.empty() || of_slot.empty()) continue;
    const std::vector<float> some = RecordsElsewhere(pool, g, cache, of_slot, pieces);
    for (size_t i = 0; i < at.size(); ++i)
      std::copy_n(some.begin() + static_cast<int64_t>(i) * width, width, records.begin() + at[i] * width);
  }
  AttentionWorkspace ws({.max_rows = count, .heads = g.heads, .head_dim = g.head_dim, .max_positions = 1024, .carries = true});
  Array out(g.dtype, count * g.heads * g.head_dim);
  SetCarried(ws, batch.rows(), ShapeOf(g), g.head_dim, covered.data(), records.data());
  Attend(pool, ws, cache.View(), batch.rows(), batch.q.data(), ShapeOf(g), out.ptr(), {.covered = covered.data()});
  return RowsOf(g, out);
}

TEST(AttentionTest, FirstPiecesAttendedToElsewhereChangeNoBit) {
  const std::tuple<int64_t, int64_t, int64_t> geometries[] = {{6, 2, 64}, {4, 4, 24}, {7, 1, 64}, {4, 1, 128}, {3, 3, 128}, {8, 2, 24}};
  const int64_t windows[] = {0, 0, 20, 300, 600};
  ThreadPool one(1), three(3);
  for (uint32_t seed = 0; seed < static_cast<uint32_t>(Cases(60, 240)); ++seed) {
    std::mt19937 random(seed);
    const auto below = [&](int64_t end) { return static_cast<int32_t>(random() % static_cast<uint64_t>(end)); };
    const auto [heads, kv_heads, head_dim] = geometries[below(std::size(geometries))];
    Geometry g{kWorkingDTypes[below(3)], heads, kv_heads, head_dim, windows[below(std::size(windows))]};
    if (seed % 2 != 0) g.sinks.data = kSinks;
    Cache cache(g, 3, 1100);
    std::vector<Row> rows;
    std::vector<int32_t> covered;
    for (int32_t slot = 0; slot < 3; ++slot) {
      const int32_t first = below(1030), count = below(2) == 0 ? 1 : 1 + below(60);
      Batch(g, cache, Range(slot, 0, first)).Append(one, g, cache);
      for (const Row& row : Range(slot, first, first + count)) rows.push_back(row);
      covered.push_back(seed % 10 == 0 ? 0 : below(first / 256 + 1));
    }
    const auto expected = Step(one, g, cache, rows);
    for (ThreadPool* pool : {&one, &three}) {
      Cache parted = cache;
      EXPECT_EQ(StepWithRecords(*pool, g, parted, rows, covered), expected)
          << "seed " << seed << ", " << DTypeName(g.dtype) << " " << heads << "/" << kv_heads << "x" << head_dim << " window " << g.window
          << ", covered " << covered[0] << " " << covered[1] << " " << covered[2] << ", " << pool->num_threads() << " threads";
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
