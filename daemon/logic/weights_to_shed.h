// Chooses the weights that a device evicts while other programs on its machine need the memory.
//
// Pure: bytes in, parts that stream out. The parts follow from the bytes alone, so evicting less
// brings parts back.
//
// Blocks go one after another: the highest layer first, then the head, then the embedding, whose
// rows are read one by one from then on. A block goes with all of its parts. Its parts are read
// through the plan's ring. If there is none, one is made; its memory counts against the evicted
// bytes.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "planner/base/bytes.h"
#include "planner/plan/plan.h"
#include "planner/plan/plan_blocks.h"
#include "planner/plan/plan_residency.h"
#include "planner/plan/plan_rows.h"

namespace lime {

class WeightsToShed {
 public:
  struct Options {
    int32_t device = 0;
    bool tied = false;             // embedding and head are one tensor, and go together
    bool embedding = true;         // may be evicted
    Bytes rows_bytes = 0;          // for reading the embedding's rows
    std::vector<bool> may_stream;  // by part of the plan: it fits in the ring
  };
  struct Choice {
    // Parts of the plan: the ordered and the evicted ones; ascending.
    std::vector<int32_t> streamed;
    bool embedding = false;  // is evicted
    Bytes bytes = 0;         // evicted, less the ring that has to be made
  };

  // REQUIRES: `plan` is valid and outlives this object. Nothing is evicted if the plan is fixed
  // (IsFixed). If several micro-batches share the parts that are read, a ring holds everything that
  // a stage streams: a new ring would take as much memory as the eviction frees.
  WeightsToShed(const Plan& plan, Options options) : plan_(plan), options_(std::move(options)) {
    const bool has_ring = plan.devices[options_.device].memory.ring > 0;
    together_ = StaysTogether(plan, std::max(plan.microbatches, plan.chunks_per_sweep));
    if (IsFixed(plan) || (!has_ring && (together_ || GrowsKv(plan)))) return;
    const bool is_first = plan.stages.front().device == options_.device && plan.embedding != EmbeddingPlacement::kByRows;
    // If the plan counts the embedding with the head, the head stays, as the plan says.
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
        if (plan.parts[part].on_demand()) continue;  // it never streams
        block.parts.push_back(part);
        bytes += plan.parts[part].bytes;
        may = may && options_.may_stream[part];
        largest_part = std::max(largest_part, plan.parts[part].bytes);
      }
      if (!may || block.parts.empty()) continue;  // empty: experts of another device's layer
      largest_ = std::max(largest_, bytes);
      (id.kind == BlockKind::kHead ? head : blocks_).push_back(std::move(block));
    }
    std::ranges::reverse(blocks_);
    blocks_.insert(blocks_.end(), head.begin(), head.end());
    if (!has_ring) ring_to_make_ = kRingParts * largest_part;
    most_ = Choose(ResidencyOf(plan), INT64_MAX, false).bytes;
  }

  // Bytes of the ring to make; 0: the plan has one, or nothing can be evicted.
  Bytes ring_to_make() const { return ring_to_make_; }
  // The ring that parts go through: the plan's, or the one to make.
  Bytes ring() const { return ring_to_make_ > 0 ? ring_to_make_ : plan_.devices[options_.device].memory.ring; }
  // Bytes that can be evicted from the plan as it is.
  Bytes most() const { return most_; }
  // The largest block that can be evicted.
  Bytes largest() const { return largest_; }

  // Chooses at least `bytes` to evict, or all it can. `embedding_gone`: the embedding was evicted
  // before, and does not come back.
  Choice Choose(const Residency& ordered, Bytes bytes, bool embedding_gone) const {
    Plan changed = plan_;
    for (PlanPart& part : changed.parts) part.streamed = false;
    for (const int32_t p : ordered.streamed) changed.parts[p].streamed = true;
    bool head = false, embedding = false;
    Bytes shed = 0;
    const auto enough = [&] { return bytes <= 0 || shed - ring_to_make_ >= bytes; };
    for (const Block& block : blocks_) {
      if (enough()) break;
      const Bytes here = Shed(block, changed);
      shed += here;
      head = head || (here > 0 && block.id.kind == BlockKind::kHead);
    }
    if (options_.tied) {
      embedding = has_embedding_ && head;  // it is the same memory
    } else if (!enough() && has_embedding_ && !embedding_gone) {
      embedding = true, shed += plan_.embedding_bytes;
    }
    // Not more than the ring takes: evicts nothing.
    if (shed <= ring_to_make_) return {.streamed = ordered.streamed, .embedding = embedding_gone};
    Choice choice{.streamed = {}, .embedding = embedding || embedding_gone, .bytes = shed - ring_to_make_};
    for (int32_t p = 0; p < plan_.NumParts(); ++p) {
      if (changed.parts[p].streamed) choice.streamed.push_back(p);
    }
    return choice;
  }

 private:
  static constexpr int64_t kRingParts = 2;  // the smallest ring that keeps the disk busy

  // A block, and its parts that can be evicted.
  struct Block {
    BlockId id;
    std::vector<int32_t> parts;
  };
  // Lets the block stream, if the ring has room for it too. Returns the bytes that leave memory.
  Bytes Shed(const Block& block, Plan& plan) const {
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
  bool has_embedding_ = false;  // which may be evicted
  Bytes ring_to_make_ = 0;
  Bytes most_ = 0;
  Bytes largest_ = 0;
};

}  // namespace lime
