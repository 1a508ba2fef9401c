// The work of one device in every step: instructions for its computation and links, and a separate
// list of loads. The daemon and the simulator interpret the same Program
// (planner/program/program_runner.h).
//
// A device executes its instructions in order, one at a time. Loads run in parallel to them, one at
// a time, in order, and repeat in every step. With k = step x loads per step + index, load k begins
// when
//   - load k - 1 has ended, and
//   - k < loads_in_ring, or load k - loads_in_ring has been evicted, so its ring memory is free.
// Here `loads_in_ring` is Prefetch::loads_in_ring of load k. The ring therefore never holds more
// than its size, at any speed. Memory in the ring is counted, not placed. The implementation maps
// the ring twice in a row, so that a part that crosses the end is contiguous.
//
// A load with `becomes_resident` goes to its own memory and stays there. It occurs in the step in
// which a streamed part becomes resident (CompileChange). It is awaited and evicted like other
// loads, but uses no ring memory.
#pragma once

#include <cstdint>
#include <variant>
#include <vector>

#include "planner/base/bytes.h"

namespace lime {

struct Plan;

// The payload of a message between stages.
enum class Payload : uint8_t {
  kToken,   // sampled ids of a micro-batch, from the last stage to the first
  kHidden,  // hidden states of the rows of a micro-batch
  // Hidden states, and the logits so far that sampling may need; between stages of a split head.
  kHeadPartial
};

// The payload that stage - 1 sends to `stage`.  REQUIRES: stage > 0
Payload PayloadInto(const Plan& plan, int stage);

// Waits for a micro-batch from the stage before. The first stage of a decode step waits for the
// tokens of the last stage; in the first step they are already there. `from` is the sending device.
// If it is this device, the hand-over is local.
struct Recv {
  int32_t stage = 0;  // the receiving stage
  int32_t microbatch = 0;
  int32_t from = 0;
  Payload payload = Payload::kHidden;
  friend bool operator==(const Recv&, const Recv&) = default;
};

// Waits until this step's load `load` is in the ring.
struct AwaitWeights {
  int32_t load = 0;  // index in Program::loads
  friend bool operator==(const AwaitWeights&, const AwaitWeights&) = default;
};

// Sends the queries of a micro-batch to the host of a layer's KV, and does not wait.
struct AskKv {
  int32_t stage = 0;
  int32_t microbatch = 0;
  int32_t part = 0;  // the layer's first KV part
  int32_t to = 0;    // device
  friend bool operator==(const AskKv&, const AskKv&) = default;
};

// Waits for the answer.
struct AwaitKv {
  int32_t stage = 0;
  int32_t microbatch = 0;
  int32_t part = 0;
  int32_t from = 0;  // device
  friend bool operator==(const AwaitKv&, const AwaitKv&) = default;
};

// Asks for the units of a part on demand that a micro-batch has chosen, and does not wait.
struct AskUnits {
  int32_t stage = 0;
  int32_t microbatch = 0;
  int32_t part = 0;
  friend bool operator==(const AskUnits&, const AskUnits&) = default;
};

// Sends the rows of a micro-batch that have chosen units of a part to its host, and does not wait.
struct AskHost {
  int32_t stage = 0;
  int32_t microbatch = 0;
  int32_t part = 0;
  int32_t to = 0;  // device
  friend bool operator==(const AskHost&, const AskHost&) = default;
};

// Waits until the results of these units are here.
struct AwaitHost {
  int32_t stage = 0;
  int32_t microbatch = 0;
  int32_t part = 0;
  int32_t from = 0;  // device
  friend bool operator==(const AwaitHost&, const AwaitHost&) = default;
};

// Computes these units as they come into memory, and waits while others are read.
struct ComputeUnits {
  int32_t stage = 0;
  int32_t microbatch = 0;
  int32_t part = 0;
  int64_t rows = 0;  // of the micro-batch
  friend bool operator==(const ComputeUnits&, const ComputeUnits&) = default;
};

// Compute::part for the rows of the embedding.
inline constexpr int32_t kEmbeddingPart = -1;

// Computes a part; of a certified part on demand (PlanPart::certified), the proofs that say which of its
// units are needed.
struct Compute {
  int32_t stage = 0;
  int32_t microbatch = 0;
  int32_t part = 0;        // index in Plan::parts, or kEmbeddingPart
  int64_t rows = 0;        // of the micro-batch
  int64_t logit_rows = 0;  // the last of `rows`, which ask for logits; for parts of the head
  friend bool operator==(const Compute&, const Compute&) = default;
};

// Frees the ring memory of a load.
struct Evict {
  int32_t load = 0;
  friend bool operator==(const Evict&, const Evict&) = default;
};

// One load: reads a part from the disk into the ring.
struct Prefetch {
  int32_t part = 0;
  Bytes bytes = 0;
  int32_t loads_in_ring = 0;      // waits for the eviction of the load this many before it
  bool becomes_resident = false;  // loads into its own memory and stays there

  Bytes ring_bytes() const { return becomes_resident ? 0 : bytes; }
  friend bool operator==(const Prefetch&, const Prefetch&) = default;
};

// Queues a micro-batch for device `to`, and does not wait. A device sends its messages one after
// another. With kToken, the ids also go to the coordinator.
struct Send {
  int32_t stage = 0;  // the sending stage
  int32_t microbatch = 0;
  int32_t to = 0;
  Payload payload = Payload::kHidden;
  friend bool operator==(const Send&, const Send&) = default;
};

using Instruction = std::variant<Recv, AwaitWeights, AskKv, AwaitKv, AskUnits, ComputeUnits, AskHost, AwaitHost, Compute, Evict, Send>;

struct Program {
  int32_t device = 0;
  int32_t num_stages = 0;  // of the plan
  int32_t microbatches = 1;
  Bytes ring_bytes = 0;
  std::vector<Instruction> step;  // empty: the device does nothing
  std::vector<Prefetch> loads;    // of one step, in order of use

  friend bool operator==(const Program&, const Program&) = default;
};

// Limit for any number of bytes or rows.
inline constexpr int64_t kMaxProgramBytes = int64_t{1} << 44;

}  // namespace lime
