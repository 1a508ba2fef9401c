// A model as a list of weight blocks, and the tensors of each block with dtype, shape and role.
//
// Blocks are in execution order: the embedding, attention and MLP of every layer, the head. A block
// is the unit that is resident or streamed.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "planner/base/bytes.h"
#include "planner/base/dtype.h"
#include "planner/base/status.h"
#include "planner/plan/model/block_kind.h"
#include "planner/plan/model/matrix_format.h"
#include "planner/plan/model/model_config.h"

namespace lime {

// One tensor, as the headers of a checkpoint describe it.
struct TensorInfo {
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  Bytes bytes = 0;
};

// All tensors of a checkpoint, by name.
using TensorIndex = std::map<std::string, TensorInfo, std::less<>>;

struct BlockId {
  BlockKind kind = BlockKind::kEmbedding;
  int32_t layer = 0;  // 0 for embedding and head

  friend bool operator==(const BlockId&, const BlockId&) = default;
};

// "embedding", "attention 3", "mlp 3", "head".
std::string BlockName(BlockId id);

// The halves of a layer: of the kinds that the layer has.
BlockId AttentionBlockOf(const ModelConfig& config, int32_t layer);
BlockId MlpBlockOf(const ModelConfig& config, int32_t layer);

// The role of a tensor in its block, the same for all model families. Digests of weights use the
// numbers; new roles follow at the end.
enum class TensorRole : uint8_t {
  kTokenEmbedding,     // [vocab, hidden]
  kPositionEmbedding,  // [positions + offset, hidden]
  kNorm,               // norm before the block, or the final norm
  kQ,                  // [heads * head_dim, hidden]; with attention_gate twice the rows
  kK,
  kV,  // [kv_heads * head_dim, hidden]
  kO,  // [hidden, heads * head_dim], [hidden, value_cols]
  kQNorm,
  kKNorm,   // [head_dim]
  kGate,    // [intermediate, hidden]
  kUp,      // [intermediate, hidden]; fc1 of a two-matrix MLP
  kDown,    // [hidden, intermediate]; fc2 of a two-matrix MLP
  kOutput,  // [vocab, hidden]; the embedding tensor if the two are tied
  // Linear attention.
  kQkv,         // [2 * key_cols + value_cols, hidden]: q, k, v of all heads
  kZ,           // [value_cols, hidden]: the gate of the result
  kBeta,        // [value_heads, hidden]
  kDecay,       // [value_heads, hidden]
  kConv,        // [2 * key_cols + value_cols, 1, conv_width], one filter for each column of kQkv
  kDecayLog,    // [value_heads]: A_log
  kDecayBias,   // [value_heads]: dt_bias
  kOutputNorm,  // [value_dim]: RMSNorm of the result, without norm_offset
  kQkvz,        // [2 * key_cols + 2 * value_cols, hidden]: by key head its q, k, v's and z's (Qwen3-Next)
  kBetaDecay,   // [2 * value_heads, hidden]: by key head its betas and decays (Qwen3-Next)
  // Experts. kGate, kUp and kDown are of one expert, TensorSpec::expert.
  kRouter,            // [experts, hidden]
  kRouterCorrection,  // [experts]: added to the scores to choose experts, not to weigh them
  kGateUp,            // [2 * intermediate, hidden] of one expert: rows alternate gate, up (gpt-oss)
  kSharedScale,       // [1, hidden]: sigmoid of its product multiplies the shared expert
  kSharedGate,        // [shared_intermediate, hidden]
  kSharedUp,          // [shared_intermediate, hidden]
  kSharedDown,        // [hidden, shared_intermediate]
  // Attention.
  kSinks,      // [heads]: one more score for each head, without a value (gpt-oss)
  kAfterNorm,  // [hidden]: RMSNorm of what a block adds to the residual stream (Gemma)
  kQkvByHead,  // [(heads + 2 * kv_heads) * head_dim, hidden]: by key head its queries, key and value (Falcon)
  kMlpNorm,    // norm of the input of the MLP half, in the attention half (Falcon 40B)
  // Gemma 4.
  kLayerScale,        // [1]: multiplies the residual stream after a layer
  kRouterNorm,        // [hidden]: of the router's input
  kExpertScale,       // [experts]: multiplies the weights of the chosen experts
  kSharedNorm,        // [hidden]: of the shared expert's input
  kSharedAfterNorm,   // [hidden]: of the shared expert's result
  kExpertsAfterNorm,  // [hidden]: of the experts' weighted sum
  // Attention over latents (LatentAttentionConfig).
  kQDown,       // [query_rank, hidden]
  kQDownNorm,   // [query_rank]
  kQUp,         // [heads * (plain + rotated), query_rank]: of each head the plain dimensions first
  kKvDown,      // [rank + rotated, hidden]: the latent, then the key
  kKvDownNorm,  // [rank]
  kKvUp,        // [heads * (plain + value_dim), rank]: of each head the key's rows first; used before and after attention
  // Embeddings of every layer (ModelConfig::layer_inputs).
  kLayerEmbedding,   // [vocab, layer_input_cols]
  kLayerProjection,  // [layer_input_cols, hidden]: of the embedding rows
  kLayerInputNorm,   // [layer_inputs]: of one layer's product
  kLayerGate,        // [layer_inputs, hidden]: at the end of the MLP half
  kLayerUp,          // [hidden, layer_inputs]: after it
  kLayerAfterNorm,   // [hidden]: of the result of kLayerUp
};

// The part of a parameter that a tensor stores.
enum class TensorPart : uint8_t {
  kWeight,        // dense, packed uint32 words, bytes of mxfp4, or FP8
  kBias,          // additive bias of a linear layer or a LayerNorm
  kScales,        // one per group of a row
  kGroupBiases,   // one per affine group
  kPinnedScales,  // of FP8, which may belong to several rows: they stay in memory when rows stream
};

struct TensorSpec {
  TensorRole role = TensorRole::kNorm;
  TensorPart part = TensorPart::kWeight;
  std::string name;     // in the checkpoint
  TensorInfo info;      // of these rows
  Bytes offset = 0;     // of the first of these rows in the checkpoint's tensor, which may have more
  int32_t expert = -1;  // whose matrix this is; -1: of no expert
};

struct BlockSpec {
  BlockId id;
  std::vector<TensorSpec> tensors;  // roles in order of use: those of no expert, then expert by expert
  Bytes bytes = 0;                  // of all tensors; a tied tensor counts in both of its blocks

  // The tensors of one expert; -1: those of none.
  std::span<const TensorSpec> OfExpert(int32_t expert) const;
  // Index into `tensors`; nullopt: the block has no such tensor. Looks at those of the expert alone.
  std::optional<size_t> Find(TensorRole role, TensorPart part, int32_t expert = -1) const;
};

struct ModelSpec {
  ModelConfig config;  // norm_offset as the checkpoint stores its norms
  // The dtype of the residual stream, KV and operands. For quantised layers it is the dtype of the
  // scales (OptMLX section 3.3).
  DType working_dtype = DType::kBF16;
  std::vector<BlockSpec> blocks;
  std::string tensor_prefix;  // common start of all tensor names except the head's
  std::string head_module;    // of an untied head: "lm_head", or "language_model.lm_head"

  const BlockSpec& block(BlockId id) const;
  // Bytes of all weights. A tied tensor counts once.
  Bytes WeightBytes() const;
  // Layers with KV. All their pages have the size of the largest one.
  int64_t NumKvLayers() const;
  Bytes KvPageBytes() const;
  // KV bytes of one position in all layers.
  Bytes KvBytesPerToken() const;
  // KV pages of a sequence of so many positions in all layers, those with a window included, if a
  // micro-batch has at most `rows` rows (planner/plan/model/kv_window.h).
  int64_t KvPages(int64_t positions, int64_t rows) const;
  // State of one sequence in a layer: of linear attention the states of all heads, and the inputs
  // of the convolution, fp32, after a line of 64 bytes. 0 for a layer with KV.
  Bytes StateBytes(int64_t layer) const;

  // Finds every tensor that the architecture needs in `index`, and checks its dtype and shape.
  // Errors begin with `name` (the folder) and state the tensor, what the checkpoint has and what
  // config.json implies.
  static absl::StatusOr<ModelSpec> Build(const ModelConfig& config, const TensorIndex& index, std::string_view name);

  // The spec of a model without a checkpoint. Tensors are as config.json implies: packed if it
  // states a quantisation, else in `dtype`.
  static absl::StatusOr<ModelSpec> FromConfig(const ModelConfig& config, DType dtype, std::string_view name);
};

// The name of a tensor of `block` where each expert has tensors of its own: another than
// `tensor.name` if that is a stack of all experts. The name of a tensor of no expert does not change.
std::string NameApart(const ModelSpec& spec, BlockId block, const TensorSpec& tensor);

// The first tensor that `index` lacks, if ModelSpec::Build failed for that reason; else empty. A
// caller that knows why the tensor is missing can then say so.
std::string MissingTensor(const absl::Status& status);

}  // namespace lime
