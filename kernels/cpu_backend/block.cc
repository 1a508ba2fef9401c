#include "kernels/cpu_backend/block.h"

#include "kernels/cpu_backend/decoder.h"
#include "kernels/cpu_backend/experts_block.h"
#include "kernels/cpu_backend/latent_attention.h"
#include "kernels/cpu_backend/linear_attention.h"
#include "planner/base/check.h"

namespace lime::cpu {

absl::Status Block::ForwardUnits(std::span<const RowsInMemory> rows, const StepMemory& memory) {
  for (const RowsInMemory& one : rows) LIME_RETURN_IF_ERROR(ForwardRows(one, memory));
  return absl::OkStatus();
}

std::unique_ptr<Block> MakeBlock(BlockId id, const ModelConfig& config) {
  switch (id.kind) {
    case BlockKind::kEmbedding:
      return std::make_unique<EmbeddingBlock>(config);
    case BlockKind::kAttention:
      if (config.latent_attention) return std::make_unique<LatentAttentionBlock>(config, id.layer);
      return std::make_unique<AttentionBlock>(config, id.layer);
    case BlockKind::kMlp:
      return std::make_unique<MlpBlock>(config, id.layer);
    case BlockKind::kHead:
      return std::make_unique<HeadBlock>(config);
    case BlockKind::kLinearAttention:
      return std::make_unique<LinearAttentionBlock>(config, id.layer);
    case BlockKind::kExperts:
      return std::make_unique<ExpertsBlock>(config, id.layer);
  }
  LIME_CHECK(false) << BlockName(id);
  return nullptr;
}

}  // namespace lime::cpu
