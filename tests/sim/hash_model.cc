#include "tests/sim/hash_model.h"

#include <algorithm>
#include <utility>

#include "planner/plan/model/block_parts.h"

namespace lime {
namespace {

// Of the first `rows` rows of a matrix: differences add up whatever the cuts are.
uint64_t FirstRows(BlockId block, const MatrixRows& matrix, int64_t rows) {
  if (rows == 0) return 0;
  const uint64_t name =
      static_cast<uint64_t>(block.kind) * 1000 + static_cast<uint64_t>(block.layer) * 50 + static_cast<uint64_t>(matrix.role);
  return HashModel::Mix(name + 1'000'000 * static_cast<uint64_t>(matrix.expert + 1), static_cast<uint64_t>(rows));
}

}  // namespace

void HashModel::Weights::Add(const Weights& other) {
  shared += other.shared;
  for (const auto& [of, weights] : other.expert) expert[of] += weights;
}

HashModel::Weights HashModel::WeightsOf(BlockId block, std::span<const MatrixRows> rows) {
  Weights weights;
  for (const MatrixRows& some : rows)
    (some.expert < 0 ? weights.shared : weights.expert[some.expert]) +=
        FirstRows(block, some, some.end) - FirstRows(block, some, some.begin);
  return weights;
}

std::vector<int32_t> HashModel::Chosen(uint64_t hidden, int32_t layer, const ExpertsConfig& experts) {
  std::vector<int32_t> chosen;
  for (uint64_t i = 0; std::ssize(chosen) < experts.per_token; ++i) {
    // The lower half of the experts is chosen more often.
    const uint64_t hash = Mix(hidden, 3000 + static_cast<uint64_t>(layer) * 100 + i);
    const uint64_t of = static_cast<uint64_t>(hash % 4 > 0 ? (experts.count + 1) / 2 : experts.count);
    const auto expert = static_cast<int32_t>(hash / 4 % of);
    if (std::ranges::find(chosen, expert) == chosen.end()) chosen.push_back(expert);
  }
  std::ranges::sort(chosen);
  return chosen;
}

int64_t HashModel::NeuronsOf(const ModelConfig& config, BlockId block) {
  return block.kind == BlockKind::kMlp && MakesZeros(config.activation) ? config.layer(block.layer).intermediate_size : 0;
}

std::vector<int32_t> HashModel::Active(uint64_t hidden, int32_t layer, int64_t neurons) {
  const auto all = static_cast<uint64_t>(neurons), often = (all + 7) / 8;
  const uint64_t seed = Mix(hidden, 5000 + static_cast<uint64_t>(layer));
  const uint64_t draws = seed % 16 == 0 ? 0 : seed % 16 == 1 ? 2 * all : seed / 16 % (1 + all / 8);
  std::vector<int32_t> active;
  for (uint64_t i = 0; i < draws; ++i) {
    const uint64_t hash = Mix(seed, i);
    active.push_back(static_cast<int32_t>(hash / 4 % (hash % 4 > 0 ? often : all)));
  }
  std::ranges::sort(active);
  active.erase(std::unique(active.begin(), active.end()), active.end());
  return active;
}

uint64_t HashModel::Mix(uint64_t one, uint64_t other) {
  uint64_t z = one * 0x9e3779b97f4a7c15 + (other ^ 0xd6e8feb86659fd93);
  z = (z ^ (z >> 32)) * 0xd6e8feb86659fd93;
  return z ^ (z >> 29);
}

HashReference::HashReference(const ModelSpec& spec, const std::vector<int32_t>& prompt)
    : spec_(spec), tokens_(prompt), attended_(static_cast<size_t>(spec.config.num_layers())) {
  for (const BlockSpec& block : spec.blocks) {
    if (block.id.kind == BlockKind::kEmbedding) continue;
    HashModel::Weights sum;
    for (const BlockPart& part : CutBlock(block)) sum.Add(HashModel::WeightsOf(block.id, part.rows));
    weights_.push_back(std::move(sum));
  }
}

int32_t HashReference::TokenAt(int64_t position) {
  while (static_cast<int64_t>(tokens_.size()) <= position) {
    while (computed_ < static_cast<int64_t>(tokens_.size())) Compute(tokens_[static_cast<size_t>(computed_)]);
    tokens_.push_back(HashModel::Token(hidden_, spec_.config.vocab_size));
  }
  return tokens_[static_cast<size_t>(position)];
}

void HashReference::Compute(int32_t token) {
  hidden_ = HashModel::Embed(token, static_cast<int32_t>(computed_));
  size_t next = 0;
  for (const BlockSpec& block : spec_.blocks) {
    if (block.id.kind == BlockKind::kEmbedding) continue;
    uint64_t attended = 0;
    if (IsAttentionHalf(block.id.kind)) {
      uint64_t& sum = attended_[static_cast<size_t>(block.id.layer)];
      if (HasKv(block.id.kind)) sum += HashModel::Attended(HashModel::Kv(hidden_, block.id.layer), computed_);
      if (HasState(block.id.kind)) sum = HashModel::State(sum, hidden_, block.id.layer);
      attended = sum;
    }
    const HashModel::Weights& weights = weights_[next++];
    uint64_t used = weights.shared;
    if (block.id.kind == BlockKind::kExperts) {
      for (const int32_t expert : HashModel::Chosen(hidden_, block.id.layer, *spec_.config.experts)) used += weights.expert.at(expert);
    }
    if (const int64_t neurons = HashModel::NeuronsOf(spec_.config, block.id); neurons > 0) {
      for (const int32_t neuron : HashModel::Active(hidden_, block.id.layer, neurons)) used += HashModel::Neuron(block.id, neuron);
    }
    hidden_ = HashModel::Block(hidden_, used, attended);
  }
  ++computed_;
}

}  // namespace lime
