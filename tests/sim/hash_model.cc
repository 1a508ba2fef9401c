#include "tests/sim/hash_model.h"

#include "planner/plan/model/block_parts.h"

namespace lime {
namespace {

// Of the first `rows` rows of a matrix: differences add up whatever the cuts are.
uint64_t FirstRows(BlockId block, TensorRole role, int64_t rows) {
  if (rows == 0) return 0;
  const uint64_t name = static_cast<uint64_t>(block.kind) * 1000 + static_cast<uint64_t>(block.layer) * 50 + static_cast<uint64_t>(role);
  return HashModel::Mix(name, static_cast<uint64_t>(rows));
}

uint64_t WeightsOf(BlockId block, const std::vector<MatrixRows>& all) {
  uint64_t sum = 0;
  for (const MatrixRows& rows : all) sum += FirstRows(block, rows.role, rows.end) - FirstRows(block, rows.role, rows.begin);
  return sum;
}

}  // namespace

uint64_t HashModel::Mix(uint64_t one, uint64_t other) {
  uint64_t z = one * 0x9e3779b97f4a7c15 + (other ^ 0xd6e8feb86659fd93);
  z = (z ^ (z >> 32)) * 0xd6e8feb86659fd93;
  return z ^ (z >> 29);
}

uint64_t HashModel::Weights(const PlanPart& part) {
  return WeightsOf(part.block, part.rows);
}

HashReference::HashReference(const ModelSpec& spec, const std::vector<int32_t>& prompt)
    : spec_(spec), tokens_(prompt), attended_(static_cast<size_t>(spec.config.num_layers())) {
  for (const BlockSpec& block : spec.blocks) {
    if (block.id.kind == BlockKind::kEmbedding) continue;
    uint64_t sum = 0;
    for (const BlockPart& part : CutBlock(block)) sum += WeightsOf(block.id, part.rows);
    weights_.push_back(sum);
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
    hidden_ = HashModel::Block(hidden_, weights_[next++], attended);
  }
  ++computed_;
}

}  // namespace lime
