#include "daemon/logic/weights_to_give.h"

#include <algorithm>
#include <utility>

#include "planner/plan/kv_eviction.h"
#include "planner/plan/plan_blocks.h"

namespace lime {
namespace {

constexpr int64_t kRingParts = 2;  // the least ring that keeps the disk at work

}  // namespace

// Nothing of a plan that evicts KV streams, nor where each micro-batch reads its own. Where several micro-batches share what is read, a
// ring holds all that a stage streams: to make one would take as much as is given.
WeightsToGive::WeightsToGive(const Plan& plan, Options options) : plan_(plan), options_(std::move(options)) {
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

WeightsToGive::Choice WeightsToGive::Choose(const Residency& ordered, Bytes bytes, bool embedding_gone) const {
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

// Lets the block stream, where the ring has room for it beside all others. Returns the bytes that leave memory.
Bytes WeightsToGive::Give(const Block& block, Plan& plan) const {
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

}  // namespace lime
