// A block of the decoder: its parameters and its forward pass. decoder.h, linear_attention.h and
// experts_block.h have the kinds.
//
// Blocks know nothing of segments, peers or files. The Workspace owns the activations; Forward
// allocates nothing.
//
// A call that returns a Status fails if it is out of order, or if a row's KV page or state is not
// here. It has then changed nothing.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "kernels/cpu_backend/block_binder.h"
#include "kernels/cpu_backend/kv_pool.h"
#include "kernels/cpu_backend/state_pool.h"
#include "kernels/cpu_backend/workspace.h"
#include "planner/base/status.h"
#include "planner/plan/model/block_parts.h"
#include "planner/plan/model/model_spec.h"

namespace lime::cpu {

// The memory that a step works on.
struct StepMemory {
  Workspace& ws;
  const KvPool& kv;
  const StatePool& states;
};

class Block {
 public:
  virtual ~Block() = default;

  // Uses these weights from now on.
  virtual void Bind(const BlockBinder& binder) = 0;

  // Computes the block for the batch in the workspace.
  virtual absl::Status Forward(const StepMemory& memory) = 0;

  // The same for some rows of one matrix. The calls follow the order of use: the rows of a matrix
  // ascend, and the matrices follow each other as in the BlockSpec.
  virtual absl::Status ForwardRows(const RowsInMemory& rows, const StepMemory& memory) = 0;

  // Backend::ComputeUnits and Backend::ChosenUnits.
  virtual absl::Status ForwardUnits(std::span<const RowsInMemory> rows, const StepMemory& memory);
  virtual std::span<const int32_t> ChosenUnits(const Workspace& /*ws*/) const { return {}; }
};

// A block of this kind, without weights. REQUIRES: `config` outlives it.
std::unique_ptr<Block> MakeBlock(BlockId id, const ModelConfig& config);

}  // namespace lime::cpu
