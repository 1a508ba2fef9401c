#include "planner/plan/model/model_spec.h"

#include <algorithm>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "planner/base/check.h"
#include "planner/base/strings.h"

namespace lime {
namespace {

constexpr char kMissingTensorMark[] = "lime/missing-tensor";

std::string ShapeText(const std::vector<int64_t>& shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

// Collects the blocks of one checkpoint, and checks every tensor against the geometry.
class SpecBuilder {
 public:
  SpecBuilder(const ModelConfig& config, const TensorIndex& index, std::string_view name) : config_(config), index_(index), name_(name) {}

  // For a model without a checkpoint: every tensor is as config.json implies, in `dtype`.
  SpecBuilder(const ModelConfig& config, DType dtype, std::string_view name)
      : config_(config), index_(implied_), name_(name), implied_dtype_(dtype) {}

  absl::StatusOr<ModelSpec> Build() {
    FindNames();
    AddEmbedding();
    for (int32_t layer = 0; layer < config_.num_layers; ++layer) {
      AddAttention(layer);
      AddMlp(layer);
      if (!status_.ok()) return status_;
    }
    AddHead();
    if (!status_.ok()) return status_;
    return ModelSpec{config_, *working_, std::move(blocks_), prefix_};
  }

 private:
  bool opt() const { return config_.family == ModelFamily::kOpt; }

  bool HasLayers(const std::string& prefix) const {
    const std::string begin = prefix + "layers.";
    const auto at = index_.lower_bound(begin);
    return at != index_.end() && at->first.starts_with(begin);
  }

  // Checkpoints that were saved without the head have no leading "model.".
  void FindNames() {
    const std::string whole = opt() ? "model.decoder." : "model.", base = opt() ? "decoder." : "";
    prefix_ = !HasLayers(whole) && HasLayers(base) ? base : whole;
    // As in transformers 5: if only the head is stored, the embedding uses its tensor.
    embedding_ = prefix_ + "embed_tokens";
    if (config_.tie_embeddings && !index_.contains(embedding_ + ".weight") && index_.contains("lm_head.weight")) embedding_ = "lm_head";
  }

  void Begin(BlockKind kind, int32_t layer = 0) { blocks_.push_back({.id = {kind, layer}, .tensors = {}}); }

  void Fail(const std::string& message) {
    if (status_.ok()) status_ = Invalid(name_, ": ", message);
  }

  void CheckIsFloat(const std::string& tensor, DType dtype) {
    if (IsWorkingDType(dtype)) return;
    Fail(absl::StrCat("tensor ", tensor, " is ", Text(DTypeName(dtype)), "; BF16, F16, F32 and MLX affine groups are supported"));
  }

  // The first matrix sets the working dtype, by its scales if it is packed. All other tensors
  // except norms must have the same.
  void CheckWorkingDType(const std::string& tensor, DType dtype) {
    CheckIsFloat(tensor, dtype);
    if (!working_) working_ = dtype;
    if (*working_ != dtype) {
      Fail(absl::StrCat("tensor ", tensor, " is ", Text(DTypeName(dtype)), ", but earlier tensors are ", Text(DTypeName(*working_)),
                        "; one dtype for all is supported"));
    }
  }

  // The remedy for a missing tensor.
  std::string Remedy(std::string_view tensor) const {
    if (tensor == "lm_head.weight")
      return ", because config.json does not set tie_word_embeddings; a checkpoint of the base model alone has no head: download the "
             "checkpoint of the whole model";
    const std::string_view inner = tensor.substr(std::min(prefix_.size(), tensor.size()));
    for (const auto& [name, info] : index_) {
      if (!name.ends_with(absl::StrCat(".", Text(inner))) || name == tensor) continue;
      return absl::StrCat(", but the file has ", absl::CEscape(name.substr(0, 120)), "; save the weights with the names of that class");
    }
    return "; download all files of the weights again";
  }

  const TensorInfo* Find(const std::string& tensor) {
    const auto found = index_.find(tensor);
    if (found != index_.end()) return &found->second;
    const bool first = status_.ok();
    Fail(absl::StrCat("tensor ", tensor, " is missing; ", config_.architecture, " needs it", Remedy(tensor)));
    if (first) status_.SetPayload(kMissingTensorMark, absl::Cord(tensor));
    return nullptr;
  }

  void Push(TensorRole role, TensorPart part, const std::string& tensor, const TensorInfo& info) {
    BlockSpec& block = blocks_.back();
    block.tensors.push_back({role, part, tensor, info});
    block.bytes += info.bytes;
  }

  void Imply(const std::string& tensor, DType dtype, std::vector<int64_t> shape) {
    Bytes bytes = ElementBytes(dtype);
    for (const int64_t n : shape) bytes *= n;
    implied_[tensor] = {dtype, std::move(shape), bytes};
  }

  void ImplyMatrix(const std::string& stem, int64_t rows, int64_t cols) {
    if (!config_.quantization) return Imply(stem + ".weight", *implied_dtype_, {rows, cols});
    const auto [bits, group_size] = *config_.quantization;
    if (cols % group_size != 0) {
      return Fail(
          absl::StrCat("tensor ", stem, ".weight has ", cols, " columns, not a multiple of the quantisation group of ", group_size));
    }
    Imply(stem + ".weight", DType::kU32, {rows, cols * bits / 32});
    Imply(stem + ".scales", *implied_dtype_, {rows, cols / group_size});
    Imply(stem + ".biases", *implied_dtype_, {rows, cols / group_size});
  }

  // The tensor, or null after a failure.
  const TensorInfo* FindShaped(const std::string& tensor, const std::vector<int64_t>& shape) {
    if (implied_dtype_ && !index_.contains(tensor)) Imply(tensor, *implied_dtype_, shape);
    const TensorInfo* info = Find(tensor);
    if (info == nullptr || info->shape == shape) return info;
    Fail(absl::StrCat("tensor ", tensor, " has shape ", ShapeText(info->shape), ", but config.json implies ", ShapeText(shape)));
    return nullptr;
  }

  void AddDense(TensorRole role, TensorPart part, const std::string& tensor, const std::vector<int64_t>& shape) {
    const TensorInfo* info = FindShaped(tensor, shape);
    if (info == nullptr) return;
    CheckWorkingDType(tensor, info->dtype);
    Push(role, part, tensor, *info);
  }

  // Adds a matrix [rows, cols], dense or packed as in the checkpoint.
  void AddMatrix(TensorRole role, const std::string& stem, int64_t rows, int64_t cols) {
    if (implied_dtype_) ImplyMatrix(stem, rows, cols);
    if (!index_.contains(stem + ".scales")) return AddDense(role, TensorPart::kWeight, stem + ".weight", {rows, cols});
    const TensorInfo* packed = Find(stem + ".weight");
    const TensorInfo* scales = Find(stem + ".scales");
    const TensorInfo* biases = Find(stem + ".biases");
    if (packed == nullptr || scales == nullptr || biases == nullptr) return;
    if (packed->shape.size() != 2 || packed->shape[0] != rows || scales->shape.size() != 2 || scales->shape[0] != rows ||
        biases->shape != scales->shape) {
      return Fail(absl::StrCat("tensor ", stem, ".weight has shape ", ShapeText(packed->shape), " with scales ", ShapeText(scales->shape),
                               " and biases ", ShapeText(biases->shape), ", but config.json implies ", rows, " rows"));
    }
    const absl::StatusOr<Quantization> packing = PackingOf(*packed, *scales, cols);
    if (!packing.ok()) return Fail(absl::StrCat("tensor ", stem, ".weight: ", packing.status().message()));
    CheckWorkingDType(stem + ".scales", scales->dtype);
    CheckWorkingDType(stem + ".biases", biases->dtype);
    Push(role, TensorPart::kWeight, stem + ".weight", *packed);
    Push(role, TensorPart::kScales, stem + ".scales", *scales);
    Push(role, TensorPart::kGroupBiases, stem + ".biases", *biases);
  }

  void AddLinear(TensorRole role, const std::string& stem, int64_t rows, int64_t cols, bool bias) {
    AddMatrix(role, stem, rows, cols);
    if (bias) AddDense(role, TensorPart::kBias, stem + ".bias", {rows});
  }

  // A norm is computed in fp32, so it may have any dtype.
  void AddNorm(TensorRole role, const std::string& stem, int64_t size) {
    if (opt() && !config_.norm_affine) return;
    const TensorInfo* weight = FindShaped(stem + ".weight", {size});
    if (weight == nullptr) return;
    CheckIsFloat(stem + ".weight", weight->dtype);
    Push(role, TensorPart::kWeight, stem + ".weight", *weight);
    if (!opt()) return;
    const TensorInfo* bias = FindShaped(stem + ".bias", {size});
    if (bias == nullptr) return;
    if (bias->dtype != weight->dtype) {
      return Fail(absl::StrCat("tensor ", stem, ".bias is ", Text(DTypeName(bias->dtype)), ", but its weight is ",
                               Text(DTypeName(weight->dtype)), "; one dtype for both is supported"));
    }
    Push(role, TensorPart::kBias, stem + ".bias", *bias);
  }

  void AddEmbedding() {
    Begin(BlockKind::kEmbedding);
    AddMatrix(TensorRole::kTokenEmbedding, embedding_, config_.vocab_size, config_.hidden_size);
    if (config_.learned_positions()) {
      AddDense(TensorRole::kPositionEmbedding, TensorPart::kWeight, prefix_ + "embed_positions.weight",
               {config_.max_positions + config_.position_offset, config_.hidden_size});
    }
  }

  void AddAttention(int32_t layer) {
    Begin(BlockKind::kAttention, layer);
    const std::string base = absl::StrCat(prefix_, "layers.", layer, ".");
    const int64_t q_rows = config_.num_heads * config_.head_dim;
    const int64_t kv_rows = config_.num_kv_heads * config_.head_dim;
    AddNorm(TensorRole::kNorm, base + (opt() ? "self_attn_layer_norm" : "input_layernorm"), config_.hidden_size);
    AddLinear(TensorRole::kQ, base + "self_attn.q_proj", q_rows, config_.hidden_size, config_.qkv_bias);
    AddLinear(TensorRole::kK, base + "self_attn.k_proj", kv_rows, config_.hidden_size, config_.qkv_bias);
    AddLinear(TensorRole::kV, base + "self_attn.v_proj", kv_rows, config_.hidden_size, config_.qkv_bias);
    if (config_.qk_norm) {
      AddNorm(TensorRole::kQNorm, base + "self_attn.q_norm", config_.head_dim);
      AddNorm(TensorRole::kKNorm, base + "self_attn.k_norm", config_.head_dim);
    }
    AddLinear(TensorRole::kO, base + (opt() ? "self_attn.out_proj" : "self_attn.o_proj"), config_.hidden_size, q_rows,
              config_.attention_output_bias);
  }

  void AddMlp(int32_t layer) {
    Begin(BlockKind::kMlp, layer);
    const std::string base = absl::StrCat(prefix_, "layers.", layer, ".");
    const int64_t inner = config_.intermediate_size;
    AddNorm(TensorRole::kNorm, base + (opt() ? "final_layer_norm" : "post_attention_layernorm"), config_.hidden_size);
    if (config_.gated_mlp()) AddLinear(TensorRole::kGate, base + "mlp.gate_proj", inner, config_.hidden_size, config_.mlp_bias);
    AddLinear(TensorRole::kUp, base + (opt() ? "fc1" : "mlp.up_proj"), inner, config_.hidden_size, config_.mlp_bias);
    AddLinear(TensorRole::kDown, base + (opt() ? "fc2" : "mlp.down_proj"), config_.hidden_size, inner, config_.mlp_bias);
  }

  void AddHead() {
    Begin(BlockKind::kHead);
    if (config_.final_norm) AddNorm(TensorRole::kNorm, prefix_ + (opt() ? "final_layer_norm" : "norm"), config_.hidden_size);
    AddMatrix(TensorRole::kOutput, config_.tie_embeddings ? embedding_ : "lm_head", config_.vocab_size, config_.hidden_size);
  }

  const ModelConfig& config_;
  TensorIndex implied_;
  const TensorIndex& index_;
  const std::string name_;
  const std::optional<DType> implied_dtype_;
  std::string prefix_, embedding_;
  std::optional<DType> working_;
  std::vector<BlockSpec> blocks_;
  absl::Status status_;
};

}  // namespace

std::string BlockName(BlockId id) {
  switch (id.kind) {
    case BlockKind::kEmbedding:
      return "embedding";
    case BlockKind::kAttention:
      return absl::StrCat("attention ", id.layer);
    case BlockKind::kMlp:
      return absl::StrCat("mlp ", id.layer);
    case BlockKind::kHead:
      return "head";
  }
  return "?";
}

absl::StatusOr<Quantization> PackingOf(const TensorInfo& packed, const TensorInfo& scales, int64_t cols) {
  if (packed.dtype != DType::kU32) return Invalid("is ", Text(DTypeName(packed.dtype)), " beside scales; packed weights are U32");
  const int64_t words = packed.shape.back();
  const int64_t groups = scales.shape.back();
  for (const int bits : {3, 4, 6, 8}) {
    for (const int group_size : {32, 64, 128}) {
      if (groups * group_size == cols && words * 32 == cols * bits) return Quantization{bits, group_size};
    }
  }
  return Invalid("has ", words, " words and ", groups, " groups for ", cols,
                 " columns; 3, 4, 6 or 8 bits in groups of 32, 64 or 128 are supported");
}

std::optional<size_t> BlockSpec::Find(TensorRole role, TensorPart part) const {
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].role == role && tensors[i].part == part) return i;
  }
  return std::nullopt;
}

const BlockSpec& ModelSpec::block(BlockId id) const {
  for (const BlockSpec& block : blocks) {
    if (block.id == id) return block;
  }
  LIME_CHECK(false) << "no block " << BlockName(id);
  return blocks.front();
}

Bytes ModelSpec::WeightBytes() const {
  Bytes bytes = 0;
  for (const BlockSpec& block : blocks) {
    for (const TensorSpec& tensor : block.tensors) {
      if (tensor.role != TensorRole::kOutput || !config.tie_embeddings) bytes += tensor.info.bytes;
    }
  }
  return bytes;
}

Bytes ModelSpec::KvBytesPerToken() const {
  return 2 * config.num_layers * config.num_kv_heads * config.head_dim * ElementBytes(working_dtype);
}

absl::StatusOr<ModelSpec> ModelSpec::Build(const ModelConfig& config, const TensorIndex& index, std::string_view name) {
  return SpecBuilder(config, index, name).Build();
}

absl::StatusOr<ModelSpec> ModelSpec::FromConfig(const ModelConfig& config, DType dtype, std::string_view name) {
  return SpecBuilder(config, dtype, name).Build();
}

std::string MissingTensor(const absl::Status& status) {
  const auto tensor = status.GetPayload(kMissingTensorMark);
  return tensor ? std::string(*tensor) : "";
}

}  // namespace lime
