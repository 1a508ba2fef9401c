// Which weights a device gives back while others on its machine need the memory.
//
// Pure: bytes in, parts that stream out; they are a function of the bytes, so that giving less is taking back.
//
// Blocks go one after another: the highest layer first, then the head, then the embedding, whose rows are read one by one from then on. A
// block goes with all of its parts. What goes is read through the plan's ring; where the plan has none, one has to be made, and its memory
// is taken off what is given.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "planner/base/bytes.h"
#include "planner/plan/kv_eviction.h"
#include "planner/plan/plan.h"
#include "planner/plan/plan_blocks.h"
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
  // Nothing of a plan that evicts KV streams, nor where each micro-batch reads its own. Where several micro-batches share what is read, a
  // ring holds all that a stage streams: to make one would take as much as is given.
  WeightsToGive(const Plan& plan, Options options) : plan_(plan), options_(std::move(options)) {
    const bool has_ring = plan.devices[options_.device].memory.ring > 0;
    together_ = StaysTogether(plan, std::max(plan.microbatches, plan.chunks_per_sweep));
    if (EvictsKv(plan) || plan.reads != ReadsPerStep::kOnce || (!has_ring && (together_ || GrowsKv(plan)))) return;
    const bool is_first = plan.stages.front().device == options_.device && plan.embedding != EmbeddingPlacement::kByRows;
    // Where the plan counts the embedding with the head, the head stays, as the plan says.
    has_embedding_ = is_first && plan.embedding == EmbeddingPlacement::kResident && options_.embedding &&
                     (options_.tied || plan.embedding_bytes > options_.rows_bytes);
    std::vector<Block> head;
    Bytes largest_part = 0;
    for (const BlockId id : BlocksOn(plan, options_.device)) {
      if (id.kind == BlockKind::kEmbedding) continue;
      Block block{.id = id, .parts = {}};
      Bytes bytes = 0;
      bool may = id.kind != BlockKind::kHead || !options_.tied || !is_first || has_embedding_;
      const auto [begin, end] = PartsOf(plan, id);
      for (int part = begin; part < end; ++part) {
        if (plan.parts[part].is_kv() || plan.stages[StageOf(plan, part)].device != options_.device) continue;
        block.parts.push_back(part);
        bytes += plan.parts[part].bytes;
        may = may && options_.may_stream[part];
        largest_part = std::max(largest_part, plan.parts[part].bytes);
      }
      if (!may) continue;
      largest_ = std::max(largest_, bytes);
      (id.kind == BlockKind::kHead ? head : blocks_).push_back(std::move(block));
    }
    std::ranges::reverse(blocks_);
    blocks_.insert(blocks_.end(), head.begin(), head.end());
    if (!has_ring) ring_to_make_ = kRingParts * largest_part;
    most_ = Choose(ResidencyOf(plan), INT64_MAX, false).bytes;
  }

  // For what goes; 0: the plan has one, or nothing can go.
  Bytes ring_to_make() const { return ring_to_make_; }
  // The ring that parts go through, whosever it is.
  Bytes ring() const { return ring_to_make_ > 0 ? ring_to_make_ : plan_.devices[options_.device].memory.ring; }
  // That can be given of the plan as it is.
  Bytes most() const { return most_; }
  // The largest block that can be given.
  Bytes largest() const { return largest_; }

  // At least `bytes`, where there is so much. `embedding_gone`: it was given before, and is not taken back.
  Choice Choose(const Residency& ordered, Bytes bytes, bool embedding_gone) const {
    Plan changed = plan_;
    for (PlanPart& part : changed.parts) part.streamed = false;
    for (const int32_t p : ordered.streamed) changed.parts[p].streamed = true;
    bool head = false, embedding = false;
    Bytes given = 0;
    const auto enough = [&] { return bytes <= 0 || given - ring_to_make_ >= bytes; };
    for (const Block& block : blocks_) {
      if (enough()) break;
      const Bytes here = Give(block, changed);
      given += here;
      head = head || (here > 0 && block.id.kind == BlockKind::kHead);
    }
    if (options_.tied) {
      embedding = has_embedding_ && head;  // it is the same memory
    } else if (!enough() && has_embedding_ && !embedding_gone) {
      embedding = true, given += plan_.embedding_bytes;
    }
    if (given <= ring_to_make_) return {.streamed = ordered.streamed, .embedding = embedding_gone};  // as well as nothing
    Choice choice{.streamed = {}, .embedding = embedding || embedding_gone, .bytes = given - ring_to_make_};
    for (int32_t p = 0; p < plan_.NumParts(); ++p) {
      if (changed.parts[p].streamed) choice.streamed.push_back(p);
    }
    return choice;
  }

 private:
  static constexpr int64_t kRingParts = 2;  // the least ring that keeps the disk at work

  // A block, and what of it can be given.
  struct Block {
    BlockId id;
    std::vector<int32_t> parts;
  };
  // Lets the block stream, where the ring has room for it beside all others. Returns the bytes that leave memory.
  Bytes Give(const Block& block, Plan& plan) const {
    std::vector<int32_t> parts;
    Bytes bytes = 0, largest = 0;
    for (const int32_t part : block.parts) {
      if (plan.parts[part].streamed) continue;
      plan.parts[part].streamed = true;
      parts.push_back(part);
      bytes += plan.parts[part].bytes, largest = std::max(largest, plan.parts[part].bytes);
    }
    if ((together_ ? NeedsOf(plan)[options_.device].ring : largest) <= ring()) return bytes;
    for (const int32_t part : parts) plan.parts[part].streamed = false;
    return 0;
  }

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
