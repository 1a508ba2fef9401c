#include "coordinator/cluster/device_memory.h"

#include <algorithm>

namespace lime {

Bytes AssumedActivations(const ModelSpec& spec, int64_t rows, int64_t logit_rows, int64_t context) {
  constexpr Bytes kFloat = 4, kMessages = 2, kScratch = 8 * kMiB;
  const ModelConfig& c = spec.config;
  const Bytes element = ElementBytes(spec.working_dtype);
  const Bytes q = c.num_heads * c.head_dim, kv = c.num_kv_heads * c.head_dim;
  const Bytes widest = std::max({c.intermediate_size, c.hidden_size, q});
  const Bytes hidden = (2 + kMessages) * c.hidden_size * element;
  const Bytes attention = q * (kFloat + element) + 2 * kv * kFloat;
  const Bytes mlp = c.intermediate_size * ((c.gated_mlp() ? 2 : 1) * kFloat + element);
  const Bytes rope = c.rope.type == RopeType::kNone ? 0 : context * c.head_dim * kFloat;
  return rows * (hidden + attention + mlp + widest * kFloat) + logit_rows * (c.vocab_size * kFloat + c.hidden_size * element) + rope +
         kScratch;
}

Bytes RingSlack(const ModelSpec& spec, Bytes part_bytes) {
  constexpr Bytes kEnds = 64 * kKiB;  // reads begin and end on 4 KiB
  Bytes largest = 0;
  for (const BlockSpec& block : spec.blocks) largest = std::max(largest, block.id.kind == BlockKind::kEmbedding ? 0 : block.bytes);
  return kEnds + (part_bytes > 0 ? std::min(part_bytes, largest) : largest);
}

}  // namespace lime
