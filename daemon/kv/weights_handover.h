// Weights that a plan leaves in memory for the next plan. The next plan does not read them again if
// they stay resident on the device.
//
// Thread: the owner's.
#pragma once

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "daemon/machine/huge_buffer.h"
#include "daemon/weights/weight_store.h"
#include "planner/plan/plan.h"

namespace lime {

class WeightsHandover {
 public:
  // `dir`: the folder of the checkpoint.
  explicit WeightsHandover(std::string dir) : dir_(std::move(dir)) {}

  void Add(LoadedBlock block) { blocks_.push_back(std::move(block)); }
  void Add(const PlanPart& part, HugeBuffer memory) { parts_.push_back({part.block, part.rows, std::move(memory)}); }

  const std::string& dir() const { return dir_; }
  Bytes bytes() const {
    Bytes bytes = 0;
    for (const LoadedBlock& block : blocks_) {
      for (const LoadedTensor& tensor : block.tensors) bytes += tensor.bytes;
    }
    for (const Part& part : parts_) bytes += part.memory.bytes();
    return bytes;
  }

  // Removes and returns a whole block, or the part with the same rows. Nothing if it is not here.
  std::optional<LoadedBlock> Claim(BlockId block) {
    const auto found = std::ranges::find(blocks_, block, &LoadedBlock::id);
    if (found == blocks_.end()) return std::nullopt;
    LoadedBlock claimed = std::move(*found);
    blocks_.erase(found);
    return claimed;
  }

  std::optional<HugeBuffer> Claim(const PlanPart& part) {
    const auto found = std::ranges::find_if(parts_, [&](const Part& of) { return of.block == part.block && of.rows == part.rows; });
    if (found == parts_.end()) return std::nullopt;
    HugeBuffer claimed = std::move(found->memory);
    parts_.erase(found);
    return claimed;
  }

  // Frees everything except these blocks and parts.
  void RetainOnly(const std::vector<BlockId>& whole, const std::vector<const PlanPart*>& parts) {
    std::erase_if(blocks_, [&](const LoadedBlock& block) { return std::ranges::find(whole, block.id) == whole.end(); });
    std::erase_if(parts_, [&](const Part& of) {
      return std::ranges::none_of(parts, [&](const PlanPart* part) { return part->block == of.block && part->rows == of.rows; });
    });
  }

 private:
  struct Part {
    BlockId block;
    std::vector<MatrixRows> rows;
    HugeBuffer memory;
  };

  std::string dir_;
  std::vector<LoadedBlock> blocks_;  // each with memory that is freed with it
  std::vector<Part> parts_;
};

}  // namespace lime
