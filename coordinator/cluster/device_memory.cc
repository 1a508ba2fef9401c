#include "coordinator/cluster/device_memory.h"

#include <algorithm>

namespace lime {
namespace {

// Of one row: the scores, the results of its experts, which are added in order, and what one expert
// and the shared one compute.
Bytes ExpertsActivations(const ModelConfig& config, Bytes element) {
  if (!config.experts) return 0;
  constexpr Bytes kFloat = 4;
  const ExpertsConfig& c = *config.experts;
  const Bytes results = (c.per_token + 1) * config.hidden_size * kFloat;
  const Bytes inner = (c.per_token * c.intermediate_size + c.shared_intermediate_size) * (2 * kFloat + element);
  return c.count * kFloat + results + inner;
}

Bytes LatentActivations(const ModelConfig& config, Bytes element) {
  if (!config.latent_attention) return 0;
  const LatentAttentionConfig& c = *config.latent_attention;
  return c.query_rank * (4 + element) + config.num_heads * ((c.plain + c.rotated) * 4 + c.value_dim * element);
}

}  // namespace

Bytes AssumedActivations(const ModelSpec& spec, int64_t rows, int64_t logit_rows, int64_t context) {
  constexpr Bytes kFloat = 4, kMessages = 2, kScratch = 8 * kMiB;
  const ModelConfig& c = spec.config;
  const Bytes element = ElementBytes(spec.working_dtype);
  const Bytes q = c.num_heads * c.MostHeadDim(), kv = c.MostKvHeads() * c.MostHeadDim(), inner = c.MostIntermediate();
  const LinearAttentionConfig linear = c.linear_attention.value_or(LinearAttentionConfig{});
  const Bytes widest = std::max({inner, c.hidden_size, c.attention_gate ? 2 * q : q, linear.conv_cols()});
  const Bytes hidden = (2 + kMessages) * c.stream_cols() * element;
  const Bytes attention =
      q * (kFloat + element) + 2 * kv * kFloat + (c.attention_gate ? q * kFloat : 0) + (c.qkv_by_head ? (q + 2 * kv) * kFloat : 0);
  const Bytes latents = LatentActivations(c, element);
  const Bytes added = (c.after_norms ? c.hidden_size * kFloat : 0) + 2 * c.layer_input_cols * kFloat;
  const Bytes recurrence = (2 * linear.conv_cols() + linear.value_cols() + 2 * linear.value_heads) * kFloat + linear.value_cols() * element;
  const Bytes experts = ExpertsActivations(c, element);
  const Bytes mlp = inner * ((c.gated_mlp ? 2 : 1) * kFloat + element);
  Bytes rope = 0;
  for (const RopeConfig& each : c.ropes) rope += each.TableRows(context) * each.dims * kFloat;
  return rows * (hidden + added + latents + std::max(attention, recurrence) + std::max(mlp, experts) + widest * kFloat) +
         logit_rows * (c.vocab_size * kFloat + c.hidden_size * element) + rope + kScratch;
}

Bytes AssumedForOthers(const ModelSpec& spec, int64_t rows) {
  const ExpertsConfig& experts = *spec.config.experts;
  const Bytes hidden = spec.config.hidden_size, inner = experts.intermediate_size;
  return std::max(rows, experts.per_token) * (std::max(hidden, inner) * ElementBytes(spec.working_dtype) + std::max(hidden, 2 * inner) * 4);
}

Bytes AssumedForNeurons(const ModelSpec& spec, int64_t rows, int64_t directions) {
  constexpr Bytes kLanes = 32 * 4, kColumns = 256 * 4;  // of an output: sums of a row, and columns that wait
  constexpr Bytes kNeuron = 48;                         // its number, its row and its column, wherever they are
  constexpr Bytes kEntry = 16, kScratch = 4 * kMiB;
  const Bytes hidden = spec.config.hidden_size, inner = spec.config.MostIntermediate();
  const Bytes of_proofs = directions < 0 ? 0 : rows * (hidden * 12 + directions * 8) + inner;
  return rows * (hidden * kLanes + inner * kEntry) + hidden * kColumns + inner * kNeuron + of_proofs + kScratch;
}

Bytes AssumedForPredictors(const ModelSpec& spec, int64_t rows, int64_t rank) {
  return rows * (rank * (4 + ElementBytes(spec.working_dtype)) + spec.config.MostIntermediate());
}

Bytes RingSlack(const ModelSpec& spec, Bytes part_bytes) {
  constexpr Bytes kEnds = 64 * kKiB;  // reads begin and end on 4 KiB
  Bytes largest = 0;
  for (const BlockSpec& block : spec.blocks) largest = std::max(largest, block.id.kind == BlockKind::kEmbedding ? 0 : block.bytes);
  return kEnds + (part_bytes > 0 ? std::min(part_bytes, largest) : largest);
}

}  // namespace lime
