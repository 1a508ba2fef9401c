#include "daemon/profile/scale_model.h"

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "planner/base/check.h"

namespace lime {
namespace {

constexpr Bytes kTensorAlignment = 64;
constexpr Bytes kUnknownCacheBytes = 32 * kMiB;
constexpr int64_t kIdsStep = 64;

bool IsVocabulary(const TensorSpec& tensor) {
  return tensor.role == TensorRole::kTokenEmbedding || tensor.role == TensorRole::kOutput || tensor.role == TensorRole::kLayerEmbedding;
}

Bytes BytesOfKind(const ModelSpec& spec, BlockKind kind) {
  Bytes bytes = 0;
  for (const BlockSpec& block : spec.blocks) bytes += block.id.kind == kind ? block.bytes : 0;
  return bytes;
}

Bytes LayerBytes(const ModelSpec& spec) {
  Bytes bytes = 0;
  for (const BlockSpec& block : spec.blocks) bytes += IsLayered(block.id.kind) ? block.bytes : 0;
  return bytes / spec.config.num_layers();
}

std::set<BlockKind> KindsOf(const ModelSpec& spec) {
  std::set<BlockKind> kinds;
  for (const BlockSpec& block : spec.blocks) kinds.insert(block.id.kind);
  return kinds;
}

// Keeps `layers` layers, spread evenly over the model's: they may differ in packing.
ModelSpec WithLayers(const ModelSpec& model, int64_t layers) {
  ModelSpec spec = model;
  const int64_t all = spec.config.num_layers();
  spec.blocks.clear(), spec.config.layers.clear();
  for (int64_t place = 0; place < layers; ++place) spec.config.layers.push_back(model.config.layer(place * all / layers));
  for (const BlockSpec& block : model.blocks) {
    const bool of_layer = IsLayered(block.id.kind);
    // The kept layer that could begin here.
    const int64_t place = of_layer ? (block.id.layer * layers + all - 1) / all : 0;
    if (of_layer && place * all / layers != block.id.layer) continue;
    spec.blocks.push_back(block);
    if (of_layer) spec.blocks.back().id.layer = static_cast<int32_t>(place);
  }
  return spec;
}

// The same; more layers if not every kind of block would be among them.
ModelSpec WithAllKinds(const ModelSpec& model, int64_t layers) {
  ModelSpec spec = WithLayers(model, layers);
  for (const auto kinds = KindsOf(model); KindsOf(spec) != kinds;) spec = WithLayers(model, ++layers);
  return spec;
}

void KeepIds(ModelSpec& spec, int64_t ids) {
  for (BlockSpec& block : spec.blocks) {
    for (TensorSpec& tensor : block.tensors) {
      if (!IsVocabulary(tensor)) continue;
      block.bytes -= tensor.info.bytes;
      tensor.info.bytes = tensor.info.bytes / spec.config.vocab_size * ids;
      tensor.info.shape[0] = ids;
      block.bytes += tensor.info.bytes;
    }
  }
  spec.config.vocab_size = ids;
}

// Bytes of all tensors; a tensor that several blocks name counts once.
Bytes AllBytes(const ModelSpec& spec) {
  std::map<std::pair<std::string, Bytes>, Bytes> tensors;  // by name and offset
  for (const BlockSpec& block : spec.blocks) {
    for (const TensorSpec& tensor : block.tensors) tensors[{tensor.name, tensor.offset}] = RoundUp(tensor.info.bytes, kTensorAlignment);
  }
  Bytes all = 0;
  for (const auto& [name, bytes] : tensors) all += bytes;
  return all;
}

// Bit patterns that are small normal numbers in the working dtype, in either half of a word: 2^-7
// to 2^-5 in bf16, fp32 and fp16.
void FillRandom(std::byte* memory, Bytes bytes, DType dtype) {
  const uint32_t exponent = dtype == DType::kF16 ? 0x2000 : 0x3c00, fraction = dtype == DType::kF16 ? 0x07ff : 0x00ff;
  uint64_t state = 0x9e3779b97f4a7c15;
  for (Bytes i = 0; i + 4 <= bytes; i += 4) {
    state = state * 6364136223846793005 + 1442695040888963407;
    const uint32_t random = static_cast<uint32_t>(state >> 32);
    const uint32_t both = (exponent << 16 | exponent) | (random & (fraction << 16 | fraction)) | (random & 0x80008000);
    std::memcpy(memory + i, &both, 4);
  }
}

}  // namespace

ScaleModel MakeScaleModel(const ModelSpec& model, Bytes sweep_bytes) {
  const int64_t layers = model.config.num_layers(), ids = model.config.vocab_size;
  const Bytes layer_bytes = LayerBytes(model);
  const int64_t wanted = std::clamp<int64_t>((sweep_bytes + layer_bytes - 1) / std::max<Bytes>(layer_bytes, 1), 1, layers);
  ScaleModel scale{.spec = WithAllKinds(model, wanted)};
  const Bytes id_bytes = std::max<Bytes>(BytesOfKind(model, BlockKind::kHead) / ids, 1);
  const int64_t kept = std::min(ids, RoundUp(sweep_bytes / id_bytes, kIdsStep));
  if (kept < ids) KeepIds(scale.spec, kept);
  scale.head_factor = static_cast<double>(ids) / static_cast<double>(scale.spec.config.vocab_size);
  return scale;
}

Bytes LeastRingBytes(const ModelSpec& spec) {
  Bytes largest = 0;
  for (const BlockSpec& block : spec.blocks) {
    for (const TensorSpec& tensor : block.tensors) largest = std::max(largest, tensor.info.bytes);
  }
  return RoundUp(largest, kTensorAlignment);
}

absl::StatusOr<RingWeights> RingWeights::Make(const ModelSpec& spec, Bytes most_bytes) {
  LIME_CHECK_GE(most_bytes, LeastRingBytes(spec));
  RingWeights weights;
  LIME_ASSIGN_OR_RETURN(weights.ring_, HugeBuffer::Allocate(std::min(AllBytes(spec), most_bytes)));
  std::byte* const ring = weights.ring_.data();
  const Bytes bytes = weights.ring_.bytes();
  FillRandom(ring, bytes, spec.working_dtype);
  std::map<std::pair<std::string, Bytes>, Bytes> offsets;  // by name and offset; a tied output shares memory with the embedding
  Bytes next = 0;
  for (const BlockSpec& block : spec.blocks) {
    BlockWeights& placed = weights.blocks_.emplace_back();
    for (const TensorSpec& tensor : block.tensors) {
      if (next + tensor.info.bytes > bytes) next = 0;
      const auto [place, is_new] = offsets.emplace(std::pair(tensor.name, tensor.offset), next);
      if (is_new) next += RoundUp(tensor.info.bytes, kTensorAlignment);
      placed.tensors.push_back(ring + place->second);
    }
  }
  return weights;
}

Bytes LastCacheBytes() {
  long largest = 0;
#ifdef _SC_LEVEL3_CACHE_SIZE
  for (const int level : {_SC_LEVEL2_CACHE_SIZE, _SC_LEVEL3_CACHE_SIZE}) largest = std::max(largest, sysconf(level));
#endif
  return largest > 0 ? largest : kUnknownCacheBytes;
}

}  // namespace lime
