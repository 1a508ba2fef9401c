// A model as a list of weight blocks: which tensors each block holds, of which dtype, shape and role.
//
// Blocks are in execution order: embedding, then attention and MLP of every layer, then the head. They are the units kept resident or
// streamed.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "planner/base/bytes.h"
#include "planner/base/dtype.h"
#include "planner/base/status.h"
#include "planner/plan/model_config.h"

namespace lime {

// What a checkpoint's headers say of one tensor.
struct TensorInfo {
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  Bytes bytes = 0;
};

// Every tensor of a checkpoint by name.
using TensorIndex = std::map<std::string, TensorInfo, std::less<>>;

enum class BlockKind {
  kEmbedding,  // token (and position) embeddings
  kAttention,  // norm, q, k, v, o of one layer
  kMlp,        // norm and MLP matrices of one layer
  kHead,       // final norm and output projection
};

struct BlockId {
  BlockKind kind = BlockKind::kEmbedding;
  int32_t layer = 0;  // 0 for embedding and head

  friend bool operator==(const BlockId&, const BlockId&) = default;
};

// "embedding", "attention 3", "mlp 3", "head".
std::string BlockName(BlockId id);

// What a tensor does in its block, whatever the family calls it.
enum class TensorRole : uint8_t {
  kTokenEmbedding,     // [vocab, hidden]
  kPositionEmbedding,  // [positions + offset, hidden]
  kNorm,               // norm before the block, or the final norm
  kQ,
  kK,
  kV,  // [heads * head_dim, hidden]
  kO,  // [hidden, heads * head_dim]
  kQNorm,
  kKNorm,   // [head_dim]
  kGate,    // [intermediate, hidden]
  kUp,      // [intermediate, hidden]; fc1 of a two-matrix MLP
  kDown,    // [hidden, intermediate]; fc2 of a two-matrix MLP
  kOutput,  // [vocab, hidden]; the tied embedding where the head is tied
};

// Which part of a parameter a tensor is.
enum class TensorPart : uint8_t {
  kWeight,       // dense, or packed uint32 words
  kBias,         // additive bias of a linear layer or a LayerNorm
  kScales,       // of packed groups
  kGroupBiases,  // of packed groups
};

struct TensorSpec {
  TensorRole role = TensorRole::kNorm;
  TensorPart part = TensorPart::kWeight;
  std::string name;  // in the checkpoint
  TensorInfo info;
};

struct BlockSpec {
  BlockId id;
  std::vector<TensorSpec> tensors;  // roles in order of use
  Bytes bytes = 0;                  // of all tensors; a tied output counts in both blocks, and is one memory
};

// Packing of one quantised parameter, read off the shapes of its parts (layers of one checkpoint may differ).
absl::StatusOr<Quantization> PackingOf(const TensorInfo& packed, const TensorInfo& scales, int64_t cols);

struct ModelSpec {
  ModelConfig config;
  DType working_dtype =
      DType::kBF16;  // of the residual stream, KV and operands; of quantised layers that of the scales (OptMLX section 3.3)
  std::vector<BlockSpec> blocks;
  std::string tensor_prefix;  // of the names of all tensors but the head's

  const BlockSpec& block(BlockId id) const;
  // Weights, a tied output counted once.
  Bytes WeightBytes() const;
  // KV bytes of one position over all layers.
  Bytes KvBytesPerToken() const;

  // Resolves every tensor that the architecture needs in `index` and checks dtype and shape. `name` (the folder) opens every error, which
  // names the tensor, what the checkpoint has and what config.json implies.
  static absl::StatusOr<ModelSpec> Build(const ModelConfig& config, const TensorIndex& index, std::string_view name);

  // The spec of a checkpoint that is not there: every tensor as config.json implies it, packed where it states a quantisation, all others
  // in `dtype`.
  static absl::StatusOr<ModelSpec> FromConfig(const ModelConfig& config, DType dtype, std::string_view name);
};

// The first tensor that the index given to ModelSpec::Build lacks, where that is the error, for whoever knows why it is not there; else
// empty.
std::string MissingTensor(const absl::Status& status);

}  // namespace lime
