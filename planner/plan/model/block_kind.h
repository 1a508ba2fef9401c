// The kinds of blocks, and what each of them is: one row for each kind. Code that handles blocks asks
// this table instead of listing kinds.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

namespace lime {

// In order of execution within a layer. Messages and files use the numbers; new kinds follow at the
// end.
enum class BlockKind : uint8_t {
  kEmbedding,        // token (and position) embeddings
  kAttention,        // norm, q, k, v, o of one layer
  kMlp,              // norm and MLP matrices of one layer
  kHead,             // final norm and output projection
  kLinearAttention,  // norm, projections, convolution and delta rule of one layer
  kExperts,          // norm, router, shared expert and experts of one layer
};
inline constexpr int kNumBlockKinds = 6;

// A layer is an attention half followed by an MLP half.
enum class LayerHalf : uint8_t { kNone, kAttention, kMlp };

struct BlockKindInfo {
  BlockKind kind;
  std::string_view name;  // in plans, manifests, reports and messages
  LayerHalf half;         // kNone: the model has one such block
  bool has_kv;            // reads and writes the KV pages of its layer
  bool has_state;         // keeps a state of fixed size for each sequence
};

inline constexpr std::array<BlockKindInfo, kNumBlockKinds> kBlockKinds = {{
    {BlockKind::kEmbedding, "embedding", LayerHalf::kNone, false, false},
    {BlockKind::kAttention, "attention", LayerHalf::kAttention, true, false},
    {BlockKind::kMlp, "mlp", LayerHalf::kMlp, false, false},
    {BlockKind::kHead, "head", LayerHalf::kNone, false, false},
    {BlockKind::kLinearAttention, "linear_attention", LayerHalf::kAttention, false, true},
    {BlockKind::kExperts, "experts", LayerHalf::kMlp, false, false},
}};

constexpr const BlockKindInfo& InfoOf(BlockKind kind) {
  return kBlockKinds[static_cast<size_t>(kind)];
}
constexpr bool IsLayered(BlockKind kind) {
  return InfoOf(kind).half != LayerHalf::kNone;
}
constexpr bool IsAttentionHalf(BlockKind kind) {
  return InfoOf(kind).half == LayerHalf::kAttention;
}
constexpr bool IsMlpHalf(BlockKind kind) {
  return InfoOf(kind).half == LayerHalf::kMlp;
}
constexpr bool HasKv(BlockKind kind) {
  return InfoOf(kind).has_kv;
}
constexpr bool HasState(BlockKind kind) {
  return InfoOf(kind).has_state;
}

// The kind with this name; nullopt: there is none.
constexpr std::optional<BlockKind> BlockKindNamed(std::string_view name) {
  for (const BlockKindInfo& info : kBlockKinds) {
    if (info.name == name) return info.kind;
  }
  return std::nullopt;
}

}  // namespace lime
