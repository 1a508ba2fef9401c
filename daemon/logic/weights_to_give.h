// Which weights a device gives back while others on its machine need the memory.
//
// Pure: bytes in, parts that stream out; they are a function of the bytes, so that giving less is taking back.
//
// Blocks go one after another: the highest layer first, then the head, then the embedding, whose rows are read one by one from then on. A
// block goes with all of its parts. What goes is read through the plan's ring; where the plan has none, one has to be made, and its memory
// is taken off what is given.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/base/bytes.h"
#include "planner/plan/plan.h"
#include "planner/plan/plan_residency.h"

namespace lime {

class WeightsToGive {
 public:
  struct Options {
    int32_t device = 0;
    bool tied = false;             // embedding and head are one tensor, and go together
    bool embedding = true;         // may be given
    Bytes rows_bytes = 0;          // that reading its rows takes
    std::vector<bool> may_stream;  // by part of the plan: there is a place for it in the ring
  };
  struct Choice {
    std::vector<int32_t> streamed;  // parts of the plan: those ordered, and those given; ascending
    bool embedding = false;         // is given
    Bytes bytes = 0;                // given, less the ring that has to be made
  };

  // REQUIRES: `plan` is valid and outlives this.
  WeightsToGive(const Plan& plan, Options options);

  // For what goes; 0: the plan has one, or nothing can go.
  Bytes ring_to_make() const { return ring_to_make_; }
  // The ring that parts go through, whosever it is.
  Bytes ring() const { return ring_to_make_ > 0 ? ring_to_make_ : plan_.devices[options_.device].memory.ring; }
  // That can be given of the plan as it is.
  Bytes most() const { return most_; }
  // The largest block that can be given.
  Bytes largest() const { return largest_; }

  // At least `bytes`, where there is so much. `embedding_gone`: it was given before, and is not taken back.
  Choice Choose(const Residency& ordered, Bytes bytes, bool embedding_gone) const;

 private:
  // A block, and what of it can be given.
  struct Block {
    BlockId id;
    std::vector<int32_t> parts;
  };
  Bytes Give(const Block& block, Plan& plan) const;

  const Plan& plan_;
  const Options options_;
  std::vector<Block> blocks_;   // in the order in which they go
  bool together_ = false;       // the ring holds all that a stage streams
  bool has_embedding_ = false;  // that may be given
  Bytes ring_to_make_ = 0;
  Bytes most_ = 0;
  Bytes largest_ = 0;
};

}  // namespace lime
