// A model of two blocks with experts: its backends, the rows of its matrices, and its results in fp64.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "kernels/cpu_backend/cpu_backend.h"
#include "tests/kernels/random_experts.h"

namespace lime {

inline constexpr int64_t kMostRows = 48;

using Matrix64 = std::vector<std::vector<double>>;

class ExpertsModel {
 public:
  explicit ExpertsModel(const RandomExperts& options) : spec_(ExpertsSpec(options)), bits_(options.bits) {
    for (const BlockSpec& block : spec_.blocks)
      tensors_.push_back(RandomTensors(block, options.bits, 100 + 5000 * static_cast<uint32_t>(block.id.layer)));
  }

  const ModelSpec& spec() const { return spec_; }
  // Before the first backend is opened.
  ModelSpec& mutable_spec() { return spec_; }
  const ExpertsConfig& experts() const { return *spec_.config.experts; }

  BackendOptions Options(int threads) const {
    return {.num_threads = threads,
            .max_rows = kMostRows,
            .max_logit_rows = 1,
            .max_sequences = 1,
            .context = 64,
            .num_kv_pages = 8,
            .numerics = "emulated-bf16"};
  }

  // `in_memory(tensor)`: the tensor is bound. Small tensors always are.
  template <typename InMemory>
  std::unique_ptr<Backend> Open(int threads, const InMemory& in_memory) const {
    auto backend = cpu::OpenCpuBackend(spec_, Options(threads)).value();
    for (size_t block = 0; block < spec_.blocks.size(); ++block) {
      BlockWeights weights;
      for (size_t i = 0; i < tensors_[block].size(); ++i) {
        const TensorSpec& tensor = spec_.blocks[block].tensors[i];
        weights.tensors.push_back(IsPinned(tensor) || in_memory(tensor) ? tensors_[block][i].data() : nullptr);
      }
      EXPECT_TRUE(backend->BindBlock(spec_.blocks[block], weights).ok());
    }
    for (int64_t layer = 0; layer < 2; ++layer) backend->SetPages(0, layer, std::vector<int32_t>{0, 1, 2, 3});
    return backend;
  }
  std::unique_ptr<Backend> Open(int threads = 1) const {
    return Open(threads, [](const TensorSpec&) { return true; });
  }

  // Rows [begin, end) of a matrix of a block.
  RowsInMemory Rows(const BlockSpec& block, TensorRole role, int32_t expert, int64_t begin, int64_t end) const {
    const auto at = [&](TensorPart part) -> const std::byte* {
      const std::optional<size_t> i = block.Find(role, part, expert);
      if (!i) return nullptr;
      const TensorInfo& info = block.tensors[*i].info;
      return tensors_[static_cast<size_t>(block.id.layer)][*i].data() + begin * (info.bytes / info.shape[0]);
    };
    return {.rows = {role, begin, end, expert},
            .weight = at(TensorPart::kWeight),
            .scales = at(TensorPart::kScales),
            .biases = at(TensorPart::kGroupBiases)};
  }

  // Whole matrices of one expert, or of none, in order of use.
  std::vector<RowsInMemory> Matrices(const BlockSpec& block, int32_t expert) const {
    std::vector<RowsInMemory> matrices;
    for (const TensorSpec& tensor : block.tensors) {
      if (tensor.expert != expert || IsPinned(tensor) || tensor.part != TensorPart::kWeight) continue;
      matrices.push_back(Rows(block, tensor.role, expert, 0, tensor.info.shape[0]));
    }
    return matrices;
  }

  // ---- fp64

  // [rows][cols]; a vector has one column.
  Matrix64 Values(TensorRole role, int32_t expert = -1, TensorPart part = TensorPart::kWeight) const {
    const BlockSpec& block = spec_.blocks[0];
    const std::optional<size_t> i = block.Find(role, part, expert);
    if (!i) return {};
    const TensorInfo& info = block.tensors[*i].info;
    const int64_t rows = info.shape[0], per_row = info.bytes / ElementBytes(info.dtype) / rows;
    Matrix64 values(static_cast<size_t>(rows));
    if (info.dtype == DType::kU32) {
      const Matrix64 scales = Values(role, expert, TensorPart::kScales), biases = Values(role, expert, TensorPart::kGroupBiases);
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t k = 0; k < per_row * 32 / bits_; ++k) {
          uint32_t q = 0;
          for (int b = 0; b < bits_; ++b) {
            const int64_t bit = k * bits_ + b;
            q |= (static_cast<uint32_t>(tensors_[0][*i][static_cast<size_t>(r * per_row * 4 + bit / 8)]) >> (bit % 8) & 1U) << b;
          }
          const size_t row = static_cast<size_t>(r), group = static_cast<size_t>(k / 32);
          values[row].push_back(scales[row][group] * q + biases[row][group]);
        }
      }
      return values;
    }
    cpu::Array array(info.dtype, rows * per_row);
    array.data = tensors_[0][*i];
    for (int64_t k = 0; k < rows * per_row; ++k) values[static_cast<size_t>(k / per_row)].push_back(array[k]);
    return values;
  }

  std::vector<double> Multiply(TensorRole role, int32_t expert, const std::vector<double>& x) const {
    const Matrix64 w = Values(role, expert), bias = Values(role, expert, TensorPart::kBias);
    std::vector<double> y;
    for (size_t r = 0; r < w.size(); ++r) {
      y.push_back(bias.empty() ? 0 : bias[r][0]);
      for (size_t k = 0; k < x.size(); ++k) y.back() += w[r][k] * x[k];
    }
    return y;
  }

  double Act(double gate, double up) const {
    const double limit = spec_.config.activation_limit;
    if (spec_.config.activation == Activation::kSilu) return gate / (1 + std::exp(-gate)) * up;
    gate = std::min(gate, limit), up = std::clamp(up, -limit, limit);
    return (up + 1) * gate / (1 + std::exp(-1.702 * gate));
  }

  std::vector<double> Mlp(std::vector<double> gate, std::vector<double> up, TensorRole down, int32_t expert) const {
    for (size_t i = 0; i < gate.size(); ++i) gate[i] = Act(gate[i], up[i]);
    return Multiply(down, expert, gate);
  }

  std::vector<double> Expert(int32_t id, const std::vector<double>& x) const {
    if (!experts().alternates) return Mlp(Multiply(TensorRole::kGate, id, x), Multiply(TensorRole::kUp, id, x), TensorRole::kDown, id);
    std::vector<double> gate, up;
    const std::vector<double> both = Multiply(TensorRole::kGateUp, id, x);
    for (size_t i = 0; i < both.size(); i += 2) gate.push_back(both[i]), up.push_back(both[i + 1]);
    return Mlp(gate, up, TensorRole::kDown, id);
  }

  // Weights of the chosen experts, by id; the others are 0.
  std::vector<double> Route(std::vector<double> scores) const {
    const ExpertsConfig& e = experts();
    const size_t count = scores.size();
    double all = 0;
    for (double& s : scores) {
      if (e.scoring == RouterScoring::kSigmoid) s = 1 / (1 + std::exp(-s));
      if (e.scoring == RouterScoring::kSoftmax) all += s = std::exp(s);
    }
    if (e.scoring == RouterScoring::kSoftmax)
      for (double& s : scores) s /= all;
    std::vector<double> by = scores;
    const Matrix64 correction = Values(TensorRole::kRouterCorrection);
    for (size_t i = 0; i < count && !correction.empty(); ++i) by[i] += correction[i][0];
    const size_t size = count / static_cast<size_t>(e.groups);
    std::vector<std::pair<double, size_t>> groups, ids;
    for (size_t g = 0; g < static_cast<size_t>(e.groups); ++g) {
      std::vector<double> sorted(by.begin() + static_cast<ptrdiff_t>(g * size), by.begin() + static_cast<ptrdiff_t>((g + 1) * size));
      std::ranges::sort(sorted, std::greater<>());
      groups.emplace_back(-(sorted[0] + (size > 1 ? sorted[1] : 0)), g);
    }
    std::ranges::sort(groups);
    for (size_t g = 0; g < static_cast<size_t>(e.groups_kept); ++g)
      for (size_t i = groups[g].second * size; i < (groups[g].second + 1) * size; ++i) ids.emplace_back(-by[i], i);
    std::ranges::sort(ids);
    std::vector<double> weights(count);
    double sum = 0;
    for (size_t s = 0; s < static_cast<size_t>(e.per_token); ++s) {
      const size_t id = ids[s].second;
      sum += weights[id] = e.scoring == RouterScoring::kSoftmaxOfBest ? std::exp(scores[id]) : scores[id];
    }
    for (double& w : weights) w *= (e.normalized || e.scoring == RouterScoring::kSoftmaxOfBest ? 1 / sum : 1) * e.weight_factor;
    return weights;
  }

  std::vector<double> Normed(std::vector<double> x, TensorRole role) const {
    double squares = 0;
    for (const double v : x) squares += v * v;
    const Matrix64 norm = Values(role);
    for (size_t i = 0; i < x.size(); ++i)
      x[i] *= norm[i][0] / std::sqrt(squares / static_cast<double>(norm.size()) + spec_.config.norm_eps);
    return x;
  }

  // With ExpertsConfig::norms_apart.
  std::vector<double> ExactApart(const std::vector<double>& x) const {
    std::vector<double> scores = Multiply(TensorRole::kRouter, -1, Normed(x, TensorRole::kRouterNorm));
    for (double& score : scores) score /= std::sqrt(static_cast<double>(x.size()));
    const std::vector<double> weights = Route(scores), h = Normed(x, TensorRole::kNorm), shared = Normed(x, TensorRole::kSharedNorm);
    const Matrix64 scales = Values(TensorRole::kExpertScale);
    std::vector<double> sum(x.size()), y = x;
    for (size_t id = 0; id < weights.size(); ++id) {
      if (weights[id] == 0) continue;
      const std::vector<double> out = Expert(static_cast<int32_t>(id), h);
      for (size_t i = 0; i < sum.size(); ++i) sum[i] += weights[id] * scales[id][0] * out[i];
    }
    sum = Normed(sum, TensorRole::kExpertsAfterNorm);
    const std::vector<double> beside =
        Normed(Mlp(Multiply(TensorRole::kSharedGate, -1, shared), Multiply(TensorRole::kSharedUp, -1, shared), TensorRole::kSharedDown, -1),
               TensorRole::kSharedAfterNorm);
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += beside[i];
    sum = Normed(sum, TensorRole::kAfterNorm);
    const double factor = Values(TensorRole::kLayerScale)[0][0];
    for (size_t i = 0; i < y.size(); ++i) y[i] = factor * (y[i] + spec_.config.residual_multiplier * sum[i]);
    return y;
  }

  // One row after the first block.
  std::vector<double> Exact(const std::vector<double>& x) const {
    if (experts().norms_apart) return ExactApart(x);
    const std::vector<double> h = Normed(x, TensorRole::kNorm);
    std::vector<double> y = x;
    const std::vector<double> weights = Route(Multiply(TensorRole::kRouter, -1, h));
    const auto add = [&](double weight, const std::vector<double>& out) {
      for (size_t i = 0; i < y.size(); ++i) y[i] += spec_.config.residual_multiplier * weight * out[i];
    };
    for (size_t id = 0; id < weights.size(); ++id)
      if (weights[id] != 0) add(weights[id], Expert(static_cast<int32_t>(id), h));
    if (experts().shared_intermediate_size > 0) {
      const double scale = experts().shared_scale ? 1 / (1 + std::exp(-Multiply(TensorRole::kSharedScale, -1, h)[0])) : 1;
      add(scale, Mlp(Multiply(TensorRole::kSharedGate, -1, h), Multiply(TensorRole::kSharedUp, -1, h), TensorRole::kSharedDown, -1));
    }
    return y;
  }

 private:
  ModelSpec spec_;
  int bits_;
  std::vector<std::vector<std::vector<std::byte>>> tensors_;  // [block][tensor]
};

}  // namespace lime
