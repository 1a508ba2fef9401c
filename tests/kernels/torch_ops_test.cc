// The CPU's operators against ATen's.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "kernels/cpu/attention.h"
#include "kernels/cpu/linear/linear.h"
#include "kernels/cpu/rope.h"
#include "kernels/cpu/row_ops.h"
#include "kernels/torch/ops.h"

namespace lime::torch_ops {
namespace {

constexpr int64_t kHeads = 4, kKvHeads = 2, kHeadDim = 32, kHidden = kHeads * kHeadDim, kVocab = 50, kContext = 600, kMaxRows = 64;
constexpr at::ScalarType kWorkingTypes[] = {at::kBFloat16, at::kHalf, at::kFloat};

DType TypeOf(const at::Tensor& t) {
  switch (t.scalar_type()) {
    case at::kBFloat16:
      return DType::kBF16;
    case at::kHalf:
      return DType::kF16;
    case at::kInt:
      return DType::kU32;
    default:
      return DType::kF32;
  }
}

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

cpu::Matrix ToMatrix(const LinearWeight& w, int64_t cols) {
  cpu::Matrix m{.rows = w.weight.size(0), .cols = cols, .dtype = TypeOf(w.weight), .data = w.weight.data_ptr()};
  if (w.bits == 0) return m;
  m.bits = static_cast<int>(w.bits);
  m.group_size = static_cast<int>(w.group_size);
  m.scale_dtype = TypeOf(w.scales);
  m.scales = w.scales.data_ptr();
  m.biases = w.biases.data_ptr();
  return m;
}

const void* DataOrNull(const at::Tensor& t) {
  return t.defined() ? t.data_ptr() : nullptr;
}

class TorchOpsTest : public testing::Test {
 protected:
  TorchOpsTest() { at::manual_seed(1); }

  KvLayer MakeKv(at::ScalarType type) {
    const int64_t pages_per_sequence = kContext / 16 + 1;
    return {.pages = at::full({3 * pages_per_sequence, 2 * kKvHeads * 16 * kHeadDim}, NAN, at::kFloat).to(type),
            .page_table = at::randperm(3 * pages_per_sequence).to(at::kInt).view({3, pages_per_sequence}),
            .kv_heads = kKvHeads,
            .head_dim = kHeadDim};
  }

  static cpu::KvView ViewOf(const KvLayer& kv) {
    return {.base = static_cast<std::byte*>(kv.pages.data_ptr()),
            .page_bytes = static_cast<int64_t>(kv.pages.size(1) * kv.pages.element_size()),
            .dtype = TypeOf(kv.pages),
            .kv_heads = kv.kv_heads,
            .head_dim = kv.head_dim,
            .page_table = kv.page_table.data_ptr<int32_t>(),
            .table_stride = kv.page_table.size(1)};
  }

  static cpu::AttentionRows RowsOf(const at::Tensor& slots, const at::Tensor& positions) {
    return {.slots = slots.data_ptr<int32_t>(), .positions = positions.data_ptr<int32_t>(), .count = slots.size(0)};
  }

  // Rounded into the pages by both.
  void Append(const at::Tensor& k, const at::Tensor& v, const at::Tensor& slots, const at::Tensor& positions, const KvLayer& ours,
              const KvLayer& theirs) {
    cpu::KvAppend(pool_, ViewOf(ours), RowsOf(slots, positions), k.data_ptr<float>(), v.data_ptr<float>(), k.size(1));
    KvAppend(k, v, slots, positions, theirs);
  }

  cpu::ThreadPool pool_{2};
  cpu::LinearWorkspace linear_{2, kMaxRows, 256};
  cpu::AttentionWorkspace attention_{{.max_rows = kMaxRows, .heads = kHeads, .head_dim = kHeadDim, .max_positions = kContext}};
};

TEST_F(TorchOpsTest, LinearLayersOfDenseAndPackedWeightsAgree) {
  for (at::ScalarType type : kWorkingTypes) {
    std::vector<LinearWeight> weights = {Dense(77, 256, type, false), Dense(48, 256, type, true), Dense(1100, 256, type, true)};
    for (int64_t bits : {3, 4, 6, 8}) weights.push_back(Packed(40, 256, type, bits, 64));
    for (const LinearWeight& w : weights) {
      const cpu::Matrix matrix = ToMatrix(w, 256);
      for (int64_t rows : {1, 5, 33}) {
        const at::Tensor x = Random({rows, 256}, type), expected = Linear(x, w);
        at::Tensor out = at::empty_like(expected);
        cpu::LinearTask task{.weight = &matrix, .bias = DataOrNull(w.bias), .out = out.data_ptr<float>(), .out_stride = matrix.rows};
        cpu::Linear(pool_, linear_, x.data_ptr(), TypeOf(x), rows, 256, {&task, 1});
        ExpectClose(out, expected, "linear");
        const at::Tensor y = Random({rows, matrix.rows}, type);
        at::Tensor sum = y.clone();
        task.out = nullptr, task.add_to = sum.data_ptr();
        cpu::Linear(pool_, linear_, x.data_ptr(), TypeOf(x), rows, 256, {&task, 1});
        ExpectClose(sum, (y.to(at::kFloat) + expected).to(type), "linear, added");
      }
    }
  }
}

TEST_F(TorchOpsTest, NormsAgree) {
  for (at::ScalarType type : kWorkingTypes) {
    const at::Tensor x = Random({9, 100}, type), weight = Random({100}, type), bias = Random({100}, type);
    const cpu::NormShape shape{.rows = 9, .width = 100, .x_stride = 100, .out_stride = 100, .dtype = TypeOf(x), .weight_dtype = TypeOf(x)};
    at::Tensor out = at::empty_like(x);
    cpu::RmsNorm(pool_, shape, x.data_ptr(), weight.data_ptr(), 1e-5f, out.data_ptr());
    ExpectClose(out, RmsNorm(x, weight, 1e-5), "rms norm");
    for (const bool affine : {true, false}) {
      const at::Tensor w = affine ? weight : at::Tensor(), b = affine ? bias : at::Tensor();
      cpu::LayerNorm(pool_, shape, x.data_ptr(), DataOrNull(w), DataOrNull(b), 1e-5f, out.data_ptr());
      ExpectClose(out, LayerNorm(x, w, b, 1e-5), "layer norm");
    }
    at::Tensor qk = at::randn({9, 4 * 20});
    const at::Tensor head_weight = weight.slice(0, 0, 20).contiguous(), expected = HeadRmsNorm(qk, head_weight, 1e-6);
    cpu::HeadRmsNorm(pool_, {.tokens = 9, .heads = 4, .head_dim = 20, .stride = 80}, qk.data_ptr<float>(), head_weight.data_ptr(),
                     TypeOf(head_weight), 1e-6f);
    ExpectClose(qk, expected, "head rms norm");
  }
}

TEST_F(TorchOpsTest, RotationsAgree) {
  for (const int64_t dims : {kHeadDim, kHeadDim / 4 * 2}) {
    const cpu::RopeTable table({.dims = dims}, kContext);
    const auto view = [&](const float* data) { return at::from_blob(const_cast<float*>(data), {kContext, dims / 2}, at::kFloat); };
    at::Tensor q = at::randn({4, kHidden});
    const at::Tensor positions = Ints({0, 3, 599, 100}), expected = Rope(q, kHeadDim, positions, view(table.cos()), view(table.sin()));
    cpu::ApplyRope(pool_, {.tokens = 4, .heads = kHeads, .head_dim = kHeadDim, .stride = kHidden}, q.data_ptr<float>(),
                   {.cos = table.cos(), .sin = table.sin(), .half = table.half()}, positions.data_ptr<int32_t>());
    ExpectClose(q, expected, "rope");
  }
}

TEST_F(TorchOpsTest, AppendedPagesAreTheSameBitsAndAttentionAgrees) {
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
        Append(k, v, slots, positions, ours, theirs);
        last_slots = slots.slice(0, 0, 63), last_positions = positions.slice(0, 0, 63);
        // The hole that the other sequence's row left.
        Append(k.slice(0, 0, 1), v.slice(0, 0, 1), Ints({0}), Ints({begin + 63}), ours, theirs);
      }
      EXPECT_TRUE(at::equal(ours.pages.nan_to_num(), theirs.pages.nan_to_num())) << type;
      const at::Tensor q = at::randn({63, kHidden});
      at::Tensor out = at::empty({63, kHidden}, type);
      const cpu::AttentionShape shape{.heads = kHeads,
                                      .q_stride = kHidden,
                                      .out_stride = kHidden,
                                      .window = window,
                                      .scale = 1.0f / std::sqrt(static_cast<float>(kHeadDim))};
      cpu::Attend(pool_, attention_, ViewOf(ours), RowsOf(last_slots, last_positions), q.data_ptr<float>(), shape, out.data_ptr());
      ExpectClose(out, Attend(q, last_slots, last_positions, theirs, window), "attention");
    }
  }
}

TEST_F(TorchOpsTest, ActivationsAgree) {
  for (at::ScalarType type : kWorkingTypes) {
    for (const Activation activation : {Activation::kSilu, Activation::kRelu}) {
      const at::Tensor gate = at::randn({5, 37}), up = at::randn({5, 37});
      at::Tensor out = at::empty({5, 37}, type);
      cpu::GatedActivation(pool_, activation, gate.data_ptr<float>(), up.data_ptr<float>(), 5, 37, 37, out.data_ptr(), TypeOf(out), 37);
      ExpectClose(out, GatedActivation(gate, up, activation).to(type), "gated activation");
      cpu::GatedActivation(pool_, activation, gate.data_ptr<float>(), nullptr, 5, 37, 37, out.data_ptr(), TypeOf(out), 37);
      ExpectClose(out, PlainActivation(gate, activation).to(type), "activation");
    }
  }
}

TEST_F(TorchOpsTest, EmbeddingsAgree) {
  for (at::ScalarType type : kWorkingTypes) {
    const at::Tensor tokens = Ints({7, 0, 49, 7}), positions = Ints({0, 1, 2, 20}), table = Random({30, 128}, type);
    std::vector<LinearWeight> weights = {Dense(kVocab, 128, type, false)};
    for (int64_t bits : {3, 4, 6, 8}) weights.push_back(Packed(kVocab, 128, type, bits, 32));
    for (const LinearWeight& w : weights) {
      for (const at::Tensor& learned : {at::Tensor(), table}) {
        at::Tensor out = at::empty({4, 128}, type);
        const cpu::LearnedPositions at_positions{.table = DataOrNull(learned), .offset = 2, .positions = positions.data_ptr<int32_t>()};
        cpu::EmbedTokens(pool_, ToMatrix(w, 128), tokens.data_ptr<int32_t>(), 4, at_positions, out.data_ptr(), TypeOf(out), 128);
        ExpectClose(out, Embed(tokens, w, 128, positions, learned, 2).to(type), "embedding");
      }
    }
  }
}

}  // namespace
}  // namespace lime::torch_ops
