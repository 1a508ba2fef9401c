// Weights that a plan leaves in memory for the plan that follows: what stays resident on the device is not read again.
//
// Thread: the owner's.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "daemon/weights/huge_buffer.h"
#include "daemon/weights/weight_store.h"
#include "planner/plan/plan.h"

namespace lime {

class WeightsLeft {
 public:
  // Of the checkpoint in `dir`.
  explicit WeightsLeft(std::string dir) : dir_(std::move(dir)) {}

  void Add(LoadedBlock block) { blocks_.push_back(std::move(block)); }
  void Add(const PlanPart& part, HugeBuffer memory) { parts_.push_back({part.block, part.rows, std::move(memory)}); }

  const std::string& dir() const { return dir_; }
  Bytes bytes() const;

  // A block that is whole, or a part with the same rows, if it is here; then no more.
  std::optional<LoadedBlock> Take(BlockId block);
  std::optional<HugeBuffer> Take(const PlanPart& part);

  // All but these, which Take would find, are freed.
  void Keep(const std::vector<BlockId>& whole, const std::vector<const PlanPart*>& parts);

 private:
  struct Part {
    BlockId block;
    std::vector<MatrixRows> rows;
    HugeBuffer memory;
  };

  std::string dir_;
  std::vector<LoadedBlock> blocks_;  // each with memory that goes back with it
  std::vector<Part> parts_;
};

}  // namespace lime
