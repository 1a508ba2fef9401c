// The registered operators: the CPU's against ATen's, what is refused, and that a call allocates nothing.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "kernels/cpu/attention.h"
#include "kernels/torch/ops.h"
#include "kernels/torch/ops_impl.h"

// ---- Every way to allocate, counted while `counting` is set (glibc lets a program put its own in front)

namespace {
std::atomic<bool> counting{false};
std::atomic<int64_t> allocations{0};
void Count() {
  if (counting.load(std::memory_order_relaxed)) allocations.fetch_add(1, std::memory_order_relaxed);
}
}  // namespace

extern "C" {
void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);
void* __libc_memalign(size_t, size_t);

void* malloc(size_t n) {
  return Count(), __libc_malloc(n);
}
void* calloc(size_t n, size_t size) {
  return Count(), __libc_calloc(n, size);
}
void* realloc(void* p, size_t n) {
  return Count(), __libc_realloc(p, n);
}
void* memalign(size_t alignment, size_t n) {
  return Count(), __libc_memalign(alignment, n);
}
void* aligned_alloc(size_t alignment, size_t n) {
  return Count(), __libc_memalign(alignment, n);
}
int posix_memalign(void** p, size_t alignment, size_t n) {
  Count();
  *p = __libc_memalign(alignment, n);
  return *p != nullptr ? 0 : 12;
}
}

namespace lime::ops {
namespace {

constexpr int64_t kHeads = 4, kKvHeads = 2, kHeadDim = 32, kHidden = kHeads * kHeadDim, kWide = 192, kVocab = 50, kContext = 600;
constexpr at::ScalarType kWorkingTypes[] = {at::kBFloat16, at::kHalf, at::kFloat};

double RelativeTolerance(at::ScalarType type) {
  return type == at::kBFloat16 ? 0x1p-7 : type == at::kHalf ? 0x1p-10 : 1e-4;
}

void ExpectClose(const at::Tensor& got, const at::Tensor& expected, const char* what) {
  ASSERT_EQ(got.scalar_type(), expected.scalar_type());
  const double tolerance = RelativeTolerance(got.scalar_type());
  EXPECT_TRUE(at::allclose(got.to(at::kFloat), expected.to(at::kFloat), tolerance, 2e-3 * std::min(1.0, tolerance * 100)))
      << what << " " << got.scalar_type() << ": differs by up to "
      << (got.to(at::kFloat) - expected.to(at::kFloat)).abs().max().item<float>();
}

at::Tensor Random(at::IntArrayRef sizes, at::ScalarType type) {
  return at::randn(sizes).to(type);
}
at::Tensor Ints(std::initializer_list<int32_t> values) {
  return at::tensor(std::vector<int32_t>(values), at::kInt);
}

LinearWeight Dense(int64_t rows, int64_t cols, at::ScalarType type, bool bias) {
  return {.weight = (at::randn({rows, cols}) / std::sqrt(static_cast<double>(cols))).to(type),
          .bias = bias ? Random({rows}, type) : at::Tensor()};
}

LinearWeight Packed(int64_t rows, int64_t cols, at::ScalarType type, int64_t bits, int64_t group_size) {
  LinearWeight w{.weight = at::randint(INT32_MIN, INT32_MAX, {rows, cols * bits / 32}, at::kLong).to(at::kInt)};
  w.scales = (at::rand({rows, cols / group_size}) * (0.2 / (1 << bits))).to(type);
  w.biases = (at::rand({rows, cols / group_size}) * -0.1).to(type);
  w.bits = bits;
  w.group_size = group_size;
  return w;
}

std::vector<at::Tensor> Parameters(const LinearWeight& w) {
  return {w.weight, w.bias, w.scales, w.biases};
}
std::vector<int64_t> Packing(const LinearWeight& w) {
  return {w.bits, w.group_size, w.row_begin};
}

class TorchOpsTest : public testing::Test {
 protected:
  TorchOpsTest()
      : context_({.num_threads = 2,
                  .max_rows = 64,
                  .max_cols = 256,
                  .heads = kHeads,
                  .head_dim = kHeadDim,
                  .max_positions = kContext,
                  .carries = true,
                  .attends_for_others = true}),
        scope_(context_) {
    at::manual_seed(1);
  }

  KvLayer MakeKv(at::ScalarType type) {
    const int64_t pages_per_sequence = kContext / 16 + 1;
    return {.pages = at::full({3 * pages_per_sequence, 2 * kKvHeads * 16 * kHeadDim}, NAN, at::kFloat).to(type),
            .page_table = at::randperm(3 * pages_per_sequence).to(at::kInt).view({3, pages_per_sequence}),
            .kv_heads = kKvHeads,
            .head_dim = kHeadDim};
  }

  at::AutoDispatchBelowAutograd below_autograd_;
  ComputeContext context_;
  ContextScope scope_;
};

// Rows of a layer as they arrive: the same bits in their columns, and nothing in the others.
TEST_F(TorchOpsTest, SomeRowsOfALayerFillTheirColumnsAlone) {
  for (at::ScalarType type : kWorkingTypes) {
    std::vector<LinearWeight> weights = {Dense(77, 256, type, false), Dense(48, 256, type, true)};
    for (int64_t bits : {3, 4, 6, 8}) weights.push_back(Packed(40, 256, type, bits, 64));
    for (const LinearWeight& whole : weights) {
      const int64_t all = whole.weight.size(0);
      for (const auto& [begin, end] : {std::pair<int64_t, int64_t>{0, 9}, {9, 33}, {33, all}}) {
        LinearWeight part = whole;
        part.row_begin = begin;
        part.weight = whole.weight.slice(0, begin, end).contiguous();
        if (whole.bits > 0) part.scales = whole.scales.slice(0, begin, end).contiguous();
        if (whole.bits > 0) part.biases = whole.biases.slice(0, begin, end).contiguous();
        for (int64_t rows : {1, 5, 33}) {
          const at::Tensor x = Random({rows, 256}, type), before = at::rand({rows, all});
          at::Tensor expected = at::empty({rows, all}), out = before.clone(), aten_out = before.clone();
          LinearOut(x, whole, expected);
          LinearOut(x, part, out);
          EXPECT_TRUE(at::equal(out.slice(1, begin, end), expected.slice(1, begin, end))) << begin;
          EXPECT_TRUE(at::equal(out.slice(1, 0, begin), before.slice(1, 0, begin)));
          EXPECT_TRUE(at::equal(out.slice(1, end), before.slice(1, end)));
          aten::LinearManyOut(x, Parameters(part), Packing(part), {aten_out});
          ExpectClose(out, aten_out, "linear_out");
          const at::Tensor y_before = Random({rows, all}, type);
          at::Tensor y = y_before.clone(), y_aten = y_before.clone();
          LinearAddTo(x, part, y);
          aten::LinearAdd(y_aten, x, Parameters(part), Packing(part));
          ExpectClose(y, y_aten, "linear_add_");
          EXPECT_TRUE(at::equal(y.slice(1, end), y_before.slice(1, end)));
        }
      }
    }
  }
}

TEST_F(TorchOpsTest, LinearMatchesAtenForDenseAndPackedWeights) {
  for (at::ScalarType type : kWorkingTypes) {
    std::vector<LinearWeight> weights = {Dense(77, 256, type, false), Dense(48, 256, type, true)};
    for (int64_t bits : {3, 4, 6, 8}) weights.push_back(Packed(40, 256, type, bits, 64));
    for (const LinearWeight& w : weights) {
      for (int64_t rows : {1, 5, 33}) {
        const at::Tensor x = Random({rows, 256}, type);
        at::Tensor out = at::empty({rows, w.weight.size(0)}), expected = at::empty_like(out);
        LinearOut(x, w, out);
        aten::LinearManyOut(x, Parameters(w), Packing(w), {expected});
        ExpectClose(out, expected, "linear_out");
        at::Tensor y = Random({rows, w.weight.size(0)}, type), y_expected = y.clone();
        LinearAddTo(x, w, y);
        aten::LinearAdd(y_expected, x, Parameters(w), Packing(w));
        ExpectClose(y, y_expected, "linear_add_");
      }
    }
  }
}

TEST_F(TorchOpsTest, LayersThatShareTheirInputGiveTheBitsOfEachAlone) {
  const LinearWeight q = Dense(64, 128, at::kBFloat16, true), k = Dense(16, 128, at::kBFloat16, false),
                     v = Packed(24, 128, at::kBFloat16, 4, 32);
  const at::Tensor x = Random({6, 128}, at::kBFloat16);
  at::Tensor a = at::empty({6, 64}), b = at::empty({6, 16}), c = at::empty({6, 24});
  LinearManyOut(x, {&q, &k, &v}, {&a, &b, &c});
  for (const auto& [w, out] : {std::pair{&q, &a}, std::pair{&k, &b}, std::pair{&v, &c}}) {
    at::Tensor alone = at::empty_like(*out);
    LinearOut(x, *w, alone);
    EXPECT_TRUE(at::equal(alone, *out));
  }
}

TEST_F(TorchOpsTest, NormsMatchAten) {
  for (at::ScalarType type : kWorkingTypes) {
    const at::Tensor x = Random({9, 100}, type), weight = Random({100}, type), bias = Random({100}, type);
    at::Tensor out = at::empty_like(x), expected = at::empty_like(x);
    RmsNormOut(x, weight, 1e-5, out);
    aten::RmsNormOut(x, weight, 1e-5, expected);
    ExpectClose(out, expected, "rms_norm_out");
    for (bool affine : {true, false}) {
      LayerNormOut(x, affine ? weight : at::Tensor(), affine ? bias : at::Tensor(), 1e-5, out);
      aten::LayerNormOut(x, affine ? weight : at::Tensor(), affine ? bias : at::Tensor(), 1e-5, expected);
      ExpectClose(out, expected, "layer_norm_out");
    }
    at::Tensor qk = at::randn({9, 4 * 20}), qk_expected = qk.clone();
    HeadRmsNormInPlace(qk, weight.slice(0, 0, 20).contiguous(), 1e-6);
    aten::HeadRmsNorm(qk_expected, weight.slice(0, 0, 20), 1e-6);
    ExpectClose(qk, qk_expected, "head_rms_norm_");
  }
}

TEST_F(TorchOpsTest, RopeMatchesAten) {
  const RopeTables rope({}, kHeadDim, kContext);
  at::Tensor q = at::randn({4, kHidden}), expected = q.clone();
  const at::Tensor positions = Ints({0, 3, 599, 100});
  RopeInPlace(q, positions, rope);
  aten::Rope(expected, positions, rope.cos, rope.sin);
  ExpectClose(q, expected, "rope_");
}

TEST_F(TorchOpsTest, AppendedPagesAreTheSameBitsAndAttentionMatchesAten) {
  for (at::ScalarType type : kWorkingTypes) {
    KvLayer ours = MakeKv(type), theirs = ours;
    theirs.pages = ours.pages.clone();
    for (int64_t window : {0, 40}) {
      at::Tensor last_slots, last_positions;
      for (int32_t begin = 0; begin < 320; begin += 64) {  // sequence 0 in chunks, each with one row of sequence 2
        at::Tensor slots = at::zeros({64}, at::kInt), positions = at::arange(begin, begin + 64, at::kInt);
        slots[63] = 2;
        positions[63] = begin / 64;
        const at::Tensor k = at::randn({64, kKvHeads * kHeadDim}), v = at::randn({64, kKvHeads * kHeadDim});
        KvAppend(k, v, slots, positions, ours);
        aten::KvAppend(k, v, slots, positions, theirs.pages, theirs.page_table, kKvHeads);
        last_slots = slots.slice(0, 0, 63), last_positions = positions.slice(0, 0, 63);
        // The hole that the other sequence's row left.
        const at::Tensor hole_slot = Ints({0}), hole = Ints({begin + 63});
        KvAppend(k.slice(0, 0, 1), v.slice(0, 0, 1), hole_slot, hole, ours);
        aten::KvAppend(k.slice(0, 0, 1), v.slice(0, 0, 1), hole_slot, hole, theirs.pages, theirs.page_table, kKvHeads);
      }
      EXPECT_TRUE(at::equal(ours.pages.nan_to_num(), theirs.pages.nan_to_num())) << type;
      const at::Tensor q = at::randn({63, kHidden});
      at::Tensor out = at::empty({63, kHidden}, type), expected = at::empty_like(out);
      AttendOut(q, last_slots, last_positions, ours, window, out);
      aten::AttendOut(q, last_slots, last_positions, theirs.pages, theirs.page_table, kKvHeads, kHeadDim, window, expected);
      ExpectClose(out, expected, "attend_out");
    }
  }
}

TEST_F(TorchOpsTest, ActivationsMatchAten) {
  for (at::ScalarType type : kWorkingTypes) {
    for (Activation activation : {Activation::kSilu, Activation::kRelu}) {
      const at::Tensor gate = at::randn({5, 37}), up = at::randn({5, 37});
      at::Tensor out = at::empty({5, 37}, type), expected = at::empty_like(out);
      GatedActivationOut(gate, up, activation, out);
      aten::GatedActivationOut(gate, up, static_cast<int64_t>(activation), expected);
      ExpectClose(out, expected, "gated_activation_out");
      ActivationOut(gate, activation, out);
      aten::ActivationOut(gate, static_cast<int64_t>(activation), expected);
      ExpectClose(out, expected, "activation_out");
    }
  }
}

TEST_F(TorchOpsTest, EmbeddingAndGatheredRowsMatchAten) {
  for (at::ScalarType type : kWorkingTypes) {
    const at::Tensor tokens = Ints({7, 0, 49, 7}), positions = Ints({0, 1, 2, 20}), table = Random({30, 128}, type);
    std::vector<LinearWeight> weights = {Dense(kVocab, 128, type, false)};
    for (int64_t bits : {3, 4, 6, 8}) weights.push_back(Packed(kVocab, 128, type, bits, 32));
    for (const LinearWeight& w : weights) {
      for (const at::Tensor& learned : {at::Tensor(), table}) {
        at::Tensor out = at::empty({4, 128}, type), expected = at::empty_like(out);
        EmbedOut(tokens, w, positions, learned, 2, out);
        aten::EmbedOut(tokens, Parameters(w), Packing(w), positions, learned, 2, expected);
        ExpectClose(out, expected, "embed_out");
      }
    }
    at::Tensor out = at::empty({2, 128}, type), expected = at::empty_like(out);
    GatherRowsOut(table, Ints({29, 4}), out);
    aten::GatherRowsOut(table, Ints({29, 4}), expected);
    EXPECT_TRUE(at::equal(out, expected));
  }
}

TEST_F(TorchOpsTest, TopKMatchesAtenAlsoWhereLogitsAreEqual) {
  for (int64_t k : {1, 5, 64, 1003}) {
    const at::Tensor logits = at::randint(-20, 20, {3, 1003}, at::kFloat);  // many are equal
    at::Tensor values = at::empty({3, k}), ids = at::empty({3, k}, at::kInt);
    at::Tensor expected = at::empty_like(values), expected_ids = at::empty_like(ids);
    TopKOut(logits, values, ids);
    aten::TopKOut(logits, expected, expected_ids);
    EXPECT_TRUE(at::equal(values, expected)) << k;
    EXPECT_TRUE(at::equal(ids, expected_ids)) << k;
  }
  at::Tensor logits = at::zeros({1, 8}), values = at::empty({1, 9}), ids = at::empty({1, 9}, at::kInt);
  EXPECT_THROW(TopKOut(logits, values, ids), c10::Error);
  logits[0][3] = NAN;
  values = at::empty({1, 2}), ids = at::empty({1, 2}, at::kInt);
  EXPECT_THROW(TopKOut(logits, values, ids), c10::Error);
}

// The dispatcher chooses by device: a meta tensor stands for every device without kernels of its own.
TEST_F(TorchOpsTest, OtherDevicesTakeTheAtenImplementation) {
  const auto meta = at::TensorOptions().device(at::kMeta);
  const at::Tensor x = at::empty({3, 8}, meta), weight = at::empty({8}, meta);
  at::Tensor out = at::empty({3, 8}, meta);
  RmsNormOut(x, weight, 1e-5, out);
  LinearOut(x, {.weight = at::empty({8, 8}, meta)}, out);
  EXPECT_TRUE(out.is_meta());
}

TEST_F(TorchOpsTest, DisagreeingShapesDtypesAndIndicesAreRefused) {
  const at::Tensor x = at::randn({3, 64});
  at::Tensor out = at::empty({3, 64}), narrow = at::empty({3, 63}), half = at::empty({3, 64}, at::kHalf);
  EXPECT_THROW(RmsNormOut(x, at::ones({63}), 1e-5, out), c10::Error);
  EXPECT_THROW(RmsNormOut(x, at::ones({64}), 1e-5, half), c10::Error);
  EXPECT_THROW(LinearOut(x, {.weight = at::randn({64, 63})}, out), c10::Error);
  EXPECT_THROW(LinearOut(x, {.weight = at::randn({64, 64})}, narrow), c10::Error);
  EXPECT_THROW(LinearOut(x.t(), {.weight = at::randn({64, 3})}, out), c10::Error);
  EXPECT_THROW(EmbedOut(Ints({0, 1, 9}), {.weight = at::randn({9, 64})}, {}, {}, 0, out), c10::Error);
  EXPECT_THROW(GatherRowsOut(x, Ints({0, -1, 0}), out), c10::Error);
  at::Tensor qk = at::randn({3, 64});
  EXPECT_THROW(RopeInPlace(qk, Ints({0, 1, 10}), RopeTables({}, 32, 10)), c10::Error);
}

TEST(TorchOpsContextTest, CallingWithoutAContextIsAnError) {
  at::Tensor out = at::empty({1, 4});
  EXPECT_THROW(RmsNormOut(at::ones({1, 4}), at::ones({4}), 1e-5, out), c10::Error);
}

// One decoder layer's calls on tensors that exist.
struct Layer {
  explicit Layer(at::ScalarType type, KvLayer kv_layer)
      : norm(Random({kHidden}, type)),
        head_norm(Random({kHeadDim}, type)),
        qw(Dense(kHidden, kHidden, type, true)),
        kw(Dense(kKvHeads * kHeadDim, kHidden, type, false)),
        vw(kw),
        ow(Packed(kHidden, kHidden, type, 4, 32)),
        gw(Dense(kWide, kHidden, type, false)),
        uw(gw),
        dw(Dense(kHidden, kWide, type, false)),
        table(Dense(kVocab, kHidden, type, false)),
        kv(std::move(kv_layer)),
        x(Random({2, kHidden}, type)),
        normed(at::empty_like(x)),
        attended(at::empty_like(x)),
        mixed(at::empty({2, kWide}, type)),
        q(at::empty({2, kHidden})),
        k(at::empty({2, kKvHeads * kHeadDim})),
        v(at::empty_like(k)),
        gate(at::empty({2, kWide})),
        up(at::empty_like(gate)),
        place(at::zeros({16, 2 * kKvHeads * 16 * kHeadDim}, type)),
        places(at::full({1, 1}, reinterpret_cast<int64_t>(place.data_ptr()), at::kLong)),
        records(at::empty({2, kHeads * (2 + kHeadDim)})) {}

  void Run() {
    EmbedOut(tokens, table, positions, {}, 0, x);
    RmsNormOut(x, norm, 1e-5, normed);
    LayerNormOut(normed, norm, {}, 1e-5, normed);
    LinearManyOut(normed, {&qw, &kw, &vw}, {&q, &k, &v});
    HeadRmsNormInPlace(q, head_norm, 1e-5);
    RopeInPlace(q, positions, rope);
    RopeInPlace(k, positions, rope);
    KvAppend(k, v, slots, positions, kv);
    AttendOut(q, slots, positions, kv, 0, attended);
    AttendForOut(q, behind, places, kv, 0, records);
    TakeRecords(records, slots, positions, pieces.taken, kHeadDim, 0);
    AttendPiecesOut(q, slots, positions, kv, pieces, 0, attended);
    LinearAddTo(attended, ow, x);
    LinearManyOut(x, {&gw, &uw}, {&gate, &up});
    GatedActivationOut(gate, up, Activation::kSilu, mixed);
    ActivationOut(gate, Activation::kRelu, mixed);
    LinearAddTo(mixed, dw, x);
    GatherRowsOut(x, rows, normed);
  }

  at::Tensor norm, head_norm;
  LinearWeight qw, kw, vw, ow, gw, uw, dw, table;
  KvLayer kv;
  RopeTables rope{{}, kHeadDim, kContext};
  at::Tensor x, normed, attended, mixed, q, k, v, gate, up, place, places, records;
  at::Tensor tokens = Ints({3, 4}), slots = Ints({0, 1}), positions = Ints({0, 300}), rows = Ints({1, 0}), behind = Ints({300, 301});
  KvPieces pieces{.end = INT64_MAX, .taken = Ints({0, 1, 0})};
};

TEST_F(TorchOpsTest, CallsAllocateNothingOnceWarm) {
  for (at::ScalarType type : kWorkingTypes) {
    KvLayer kv = MakeKv(type);
    kv.pages.zero_();
    Layer layer(type, kv);
    layer.Run();
    allocations = 0;
    counting = true;
    for (int i = 0; i < 100; ++i) layer.Run();
    counting = false;
    EXPECT_EQ(allocations.load(), 0) << type;
  }
  counting = true;
  free(malloc(1));  // the count does count
  counting = false;
  EXPECT_EQ(allocations.load(), 1);
}

TEST_F(TorchOpsTest, PrintsWhatTheDispatcherCosts) {
  const at::Tensor x = at::randn({1, 16}), rows = Ints({0});
  at::Tensor out = at::empty({1, 16});
  const auto time = [](auto&& call) {
    constexpr int kCalls = 20000;
    double best = 1e30;
    for (int repeat = 0; repeat < 7; ++repeat) {
      const auto start = std::chrono::steady_clock::now();
      for (int i = 0; i < kCalls; ++i) call();
      best = std::min(best, std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - start).count() / kCalls);
    }
    return best;
  };
  const double direct = time([&] { cpu::GatherRowsOut(x, rows, out); });
  const double dispatched = time([&] { GatherRowsOut(x, rows, out); });
  std::printf("gather of one row: %.0f ns called directly, %.0f ns through the dispatcher\n", direct, dispatched);
  EXPECT_LT(dispatched - direct, 5000);
}

}  // namespace
}  // namespace lime::ops
