// What one device does in one step, over and over: a list of instructions for its computation and links, and beside it the list of its
// loads. The daemon and the simulator interpret the same Programs (planner/program_runner.h).
//
// The list is carried out in order, each instruction when the one before is done. Loads go on beside it, one after another, in order,
// cyclically over the steps: load k of a device (k = step x loads per step + its index) begins when
//   - load k - 1 has ended, and
//   - k < window, or load k - window has been evicted: then its room in the ring is free,
// with the window of its Prefetch. So the ring never holds more than its bytes, whatever the speed of anything. Room is counted, not
// placed: whoever implements the ring maps it twice in a row, so that what runs over its end is contiguous.
//
// A load that is kept goes to memory of its part's own and stays there: it is one of the step in which a part that streamed becomes
// resident (CompileChange). It is awaited and evicted in its turn like the others, takes nothing of the ring and gives nothing back.
#pragma once

#include <cstdint>
#include <variant>
#include <vector>

#include "planner/base/bytes.h"

namespace lime {

struct Plan;

// What a message between stages carries.
enum class Payload : uint8_t {
  kToken,       // sampled ids of a micro-batch: from the stage that ends the head to the first stage
  kHidden,      // hidden states of its rows
  kHeadPartial  // the same, and of the ids so far the logits that sampling may need: between stages of a split head
};

// What the stage before hands to `stage`.  REQUIRES: stage > 0
Payload PayloadInto(const Plan& plan, int stage);

// Waits for a micro-batch from the stage before: for the first stage of a decode step the tokens of the last one, which are there at the
// beginning. `from` is the device; the same device hands them over by itself.
struct Recv {
  int32_t stage = 0;  // that receives
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

// Asks the host of a layer's KV to attend to it with the queries of a micro-batch, and goes on.
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

// Part -1 of a Compute: the rows of the embedding.
inline constexpr int32_t kEmbeddingPart = -1;

struct Compute {
  int32_t stage = 0;
  int32_t microbatch = 0;
  int32_t part = 0;        // index in Plan::parts, or kEmbeddingPart
  int64_t rows = 0;        // of the micro-batch
  int64_t logit_rows = 0;  // of them, the last ones ask for logits; of parts of the head
  friend bool operator==(const Compute&, const Compute&) = default;
};

// Gives the room of a load back.
struct Evict {
  int32_t load = 0;
  friend bool operator==(const Evict&, const Evict&) = default;
};

// One load: reads a part from the disk into the ring.
struct Prefetch {
  int32_t part = 0;
  Bytes bytes = 0;
  int32_t window = 0;  // it waits for the eviction of the load so many before it
  bool keep = false;   // into memory of its own, where it stays

  Bytes ring_bytes() const { return keep ? 0 : bytes; }
  friend bool operator==(const Prefetch&, const Prefetch&) = default;
};

// Hands a micro-batch to the link to `to` and goes on; messages of a device leave one after another. kToken: whoever carries this out sends
// the ids to the coordinator as well.
struct Send {
  int32_t stage = 0;  // that it comes from
  int32_t microbatch = 0;
  int32_t to = 0;
  Payload payload = Payload::kHidden;
  friend bool operator==(const Send&, const Send&) = default;
};

using Instruction = std::variant<Recv, AwaitWeights, AskKv, AwaitKv, Compute, Evict, Send>;

struct Program {
  int32_t device = 0;
  int32_t num_stages = 0;  // of the plan
  int32_t microbatches = 1;
  Bytes ring_bytes = 0;
  std::vector<Instruction> step;  // empty: the device does nothing
  std::vector<Prefetch> loads;    // of one step, in order of use

  friend bool operator==(const Program&, const Program&) = default;
};

// Bytes or rows of anything, at most.
inline constexpr int64_t kMaxProgramBytes = int64_t{1} << 44;

}  // namespace lime
