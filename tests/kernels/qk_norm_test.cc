// Norms over all heads of q and of k at once, on the backend "cpu".
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include "kernels/cpu_backend/cpu_backend.h"
#include "tests/kernels/random_floats.h"

namespace lime {
namespace {

constexpr int64_t kHidden = 32, kHeadDim = 16, kHeads = 4, kKvHeads = 2;
constexpr BlockId kBlock{BlockKind::kAttention, 0};

// One attention block without rotation, fp32, whose weights are all given.
struct OneBlock {
  ModelSpec spec;
  std::vector<std::vector<float>> weights;

  explicit OneBlock(bool norms) {
    ModelConfig& config = spec.config;
    config.hidden_size = kHidden, config.num_heads = kHeads, config.vocab_size = 4, config.max_positions = 64;
    config.layers = {{.num_kv_heads = kKvHeads, .head_dim = kHeadDim, .rope = -1}};
    config.qk_norm = config.qk_norm_all_heads = norms;
    spec.working_dtype = DType::kF32;
    spec.blocks = {{.id = kBlock}};
  }

  void Add(TensorRole role, std::vector<int64_t> shape, std::vector<float> values) {
    const Bytes bytes = std::ssize(values) * 4;
    spec.blocks[0].bytes += bytes;
    spec.blocks[0].tensors.push_back({.role = role, .info = {DType::kF32, std::move(shape), bytes}});
    weights.push_back(std::move(values));
  }

  // Queries of one row, then its K and V as they are in the first page.
  std::vector<float> QueriesAndPage(const std::vector<float>& x) const {
    const auto backend =
        cpu::OpenCpuBackend(spec, {.max_rows = 1, .max_sequences = 1, .context = 16, .num_kv_pages = 1, .attends_pieces = true}).value();
    BlockWeights bound;
    for (const std::vector<float>& tensor : weights) bound.tensors.push_back(reinterpret_cast<const std::byte*>(tensor.data()));
    EXPECT_TRUE(backend->BindBlock(spec.blocks[0], bound).ok());
    backend->SetPages(0, 0, std::vector<int32_t>{0});
    MicroBatch batch;
    batch.rows.push_back({});
    EXPECT_TRUE(backend->Begin(batch).ok());
    std::ranges::copy(std::as_bytes(std::span(x)), backend->Hidden().begin());
    for (const TensorRole role : {TensorRole::kQ, TensorRole::kK, TensorRole::kV}) {
      const size_t i = *spec.blocks[0].Find(role, TensorPart::kWeight);
      const RowsInMemory rows{.rows = {role, 0, spec.blocks[0].tensors[i].info.shape[0]}, .weight = bound.tensors[i]};
      EXPECT_TRUE(backend->ComputeRows(kBlock, rows).ok());
    }
    const std::span<const float> queries = backend->Queries(0).value();
    std::vector<float> result(queries.begin(), queries.end());
    const auto* page = reinterpret_cast<const float*>(backend->KvPage(0));
    result.insert(result.end(), page, page + spec.KvPageBytes() / 4);
    return result;
  }
};

// The norm of one row is a factor for each column. So a model without norms whose matrices have
// these factors gives the same queries and keys.
TEST(QkNormTest, NormsOverAllHeadsMultiplyEveryColumnByOneScaleAndItsWeight) {
  const std::vector<float> x = cpu::RandomFloats(kHidden, 1), ones(kHidden, 1.0F);
  OneBlock normed(true), plain(false);
  normed.Add(TensorRole::kNorm, {kHidden}, ones);
  plain.Add(TensorRole::kNorm, {kHidden}, ones);
  double squares = 0;
  for (const float value : x) squares += double{value} * value;
  const double scale_of_x = 1 / std::sqrt(squares / kHidden + 1e-5);
  std::vector<std::pair<TensorRole, std::vector<float>>> norms;
  uint32_t seed = 2;
  for (const auto& [role, heads, norm] :
       {std::tuple(TensorRole::kQ, kHeads, TensorRole::kQNorm), std::tuple(TensorRole::kK, kKvHeads, TensorRole::kKNorm)}) {
    const int64_t rows = heads * kHeadDim;
    std::vector<float> matrix = cpu::RandomFloats(rows * kHidden, seed++);
    const std::vector<float> weight = cpu::RandomFloats(rows, seed++);
    normed.Add(role, {rows, kHidden}, matrix);
    norms.emplace_back(norm, weight);
    double sum = 0;
    for (int64_t r = 0; r < rows; ++r) {
      double y = 0;
      for (int64_t k = 0; k < kHidden; ++k) y += scale_of_x * x[k] * matrix[r * kHidden + k];
      sum += y * y;
    }
    const double scale = 1 / std::sqrt(sum / static_cast<double>(rows) + 1e-5);
    for (int64_t i = 0; i < rows * kHidden; ++i) matrix[i] *= static_cast<float>(scale * weight[i / kHidden]);
    plain.Add(role, {rows, kHidden}, matrix);
  }
  const std::vector<float> v = cpu::RandomFloats(kKvHeads * kHeadDim * kHidden, 9);
  for (OneBlock* const block : {&normed, &plain}) block->Add(TensorRole::kV, {kKvHeads * kHeadDim, kHidden}, v);
  for (auto& [role, weight] : norms) normed.Add(role, {std::ssize(weight)}, weight);
  const std::vector<float> got = normed.QueriesAndPage(x), expected = plain.QueriesAndPage(x);
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], expected[i], 2e-5) << i;
  EXPECT_GT(*std::ranges::max_element(got), 0.5F);
}

}  // namespace
}  // namespace lime
