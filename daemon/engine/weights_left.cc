#include "daemon/engine/weights_left.h"

#include <algorithm>
#include <utility>

namespace lime {
namespace {

Bytes BytesOf(const LoadedBlock& block) {
  Bytes bytes = 0;
  for (const LoadedTensor& tensor : block.tensors) bytes += tensor.bytes;
  return bytes;
}

}  // namespace

Bytes WeightsLeft::bytes() const {
  Bytes bytes = 0;
  for (const LoadedBlock& block : blocks_) bytes += BytesOf(block);
  for (const Part& part : parts_) bytes += part.memory.bytes();
  return bytes;
}

std::optional<LoadedBlock> WeightsLeft::Take(BlockId block) {
  const auto found = std::ranges::find(blocks_, block, &LoadedBlock::id);
  if (found == blocks_.end()) return std::nullopt;
  LoadedBlock taken = std::move(*found);
  blocks_.erase(found);
  return taken;
}

std::optional<HugeBuffer> WeightsLeft::Take(const PlanPart& part) {
  const auto found = std::ranges::find_if(parts_, [&](const Part& of) { return of.block == part.block && of.rows == part.rows; });
  if (found == parts_.end()) return std::nullopt;
  HugeBuffer taken = std::move(found->memory);
  parts_.erase(found);
  return taken;
}

void WeightsLeft::Keep(const std::vector<BlockId>& whole, const std::vector<const PlanPart*>& parts) {
  std::erase_if(blocks_, [&](const LoadedBlock& block) { return std::ranges::find(whole, block.id) == whole.end(); });
  std::erase_if(parts_, [&](const Part& of) {
    return std::ranges::none_of(parts, [&](const PlanPart* part) { return part->block == of.block && part->rows == of.rows; });
  });
}

}  // namespace lime
