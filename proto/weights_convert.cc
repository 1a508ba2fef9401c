#include "proto/weights_convert.h"

#include <algorithm>
#include <limits>
#include <string>

#include "planner/plan/instance.h"
#include "proto/fields.h"

namespace lime {
namespace {

constexpr size_t kMaxDigestName = 512;
constexpr int32_t kMaxDigestLayer = 100'000;

using fields::Printable;
using fields::Within;

// Protobuf's strings are UTF-8, and a folder's name need not be.
std::string PlainDigestName(const std::string& name) {
  std::string plain = name.substr(0, kMaxDigestName);
  std::ranges::replace_if(
      plain, [](char c) { return static_cast<unsigned char>(c) < 0x20 || static_cast<unsigned char>(c) > 0x7e; }, '?');
  return plain;
}

absl::StatusOr<BlockDigest> BlockFromProto(const v1::BlockDigest& message) {
  LIME_RETURN_IF_ERROR(Within("kind", message.kind(), 0, static_cast<int>(BlockKind::kHead)));
  const auto kind = static_cast<BlockKind>(message.kind());
  const bool layered = kind == BlockKind::kAttention || kind == BlockKind::kMlp;
  LIME_RETURN_IF_ERROR(Within("layer", message.layer(), 0, layered ? kMaxDigestLayer : 0));
  LIME_RETURN_IF_ERROR(Within("bytes", message.bytes(), 0, std::numeric_limits<int64_t>::max()));
  return BlockDigest{.block = {kind, message.layer()}, .sample = message.sample(), .xxh3 = message.xxh3(), .bytes = message.bytes()};
}

}  // namespace

void ToProto(const WeightsDigest& digest, v1::WeightsDigest& message) {
  message.set_model(PlainDigestName(digest.model));
  message.set_config(digest.config);
  for (const BlockDigest& block : digest.blocks) {
    v1::BlockDigest& into = *message.add_blocks();
    into.set_kind(static_cast<uint32_t>(block.block.kind));
    into.set_layer(block.block.layer);
    into.set_sample(block.sample);
    into.set_xxh3(block.xxh3);
    into.set_bytes(block.bytes);
  }
}

absl::StatusOr<WeightsDigest> FromProto(const v1::WeightsDigest& message) {
  LIME_RETURN_IF_ERROR(Printable("model", message.model(), kMaxDigestName));
  LIME_RETURN_IF_ERROR(Within("blocks", message.blocks_size(), 0, kMaxPlanBlocks));
  WeightsDigest digest{.model = message.model(), .config = message.config()};
  for (const v1::BlockDigest& block : message.blocks()) {
    LIME_ASSIGN_OR_RETURN(digest.blocks.emplace_back(), BlockFromProto(block));
  }
  return digest;
}

}  // namespace lime
