#include "planner/evaluation/assignment.h"

namespace lime {
namespace {

bool BeginsLayer(const Instance& instance, int block) {
  if (block == 0) return true;
  const Instance::Block &before = instance.blocks[block - 1], &here = instance.blocks[block];
  const auto alone = [](const Instance::Block& b) { return b.kind == Instance::Kind::kHead || b.kind == Instance::Kind::kLayer; };
  return here.layer != before.layer || alone(here) || alone(before);
}

bool MayBegin(const Instance& instance, int block, Granularity granularity) {
  switch (granularity) {
    case Granularity::kBlock:
      return true;
    case Granularity::kLayer:
      return BeginsLayer(instance, block);
    case Granularity::kWholeBlock:
      return !instance.ContinuesBlock(block);
    case Granularity::kModelBlock:
      return !instance.ContinuesBlock(block) || instance.blocks[block].kind == Instance::Kind::kHead;
  }
  return true;
}

}  // namespace

Assignment AllOn(const Instance& instance, int device) {
  return {.device = std::vector<int16_t>(instance.blocks.size(), static_cast<int16_t>(device)),
          .streamed = std::vector<uint8_t>(instance.blocks.size())};
}

Assignment ToAssignment(const StagePlan& plan, int num_blocks) {
  Assignment out = {.device = std::vector<int16_t>(num_blocks), .streamed = std::vector<uint8_t>(num_blocks)};
  for (const Stage& stage : plan.stages) {
    for (int b = stage.lo; b < stage.hi; ++b) out.device[b] = static_cast<int16_t>(stage.device);
  }
  for (const int32_t b : plan.streamed) out.streamed[b] = 1;
  out.embedding_by_rows = plan.embedding_by_rows;
  return out;
}

std::vector<Stage> StagesOf(const Assignment& assignment) {
  std::vector<Stage> stages;
  const int blocks = static_cast<int>(assignment.device.size());
  for (int b = 0; b < blocks; ++b) {
    if (b == 0 || assignment.device[b] != assignment.device[b - 1]) stages.push_back({assignment.device[b], b, b});
    stages.back().hi = b + 1;
  }
  return stages;
}

StagePlan ToPlan(const Assignment& assignment) {
  StagePlan plan = {.stages = StagesOf(assignment), .embedding_by_rows = assignment.embedding_by_rows};
  for (size_t b = 0; b < assignment.streamed.size(); ++b) {
    if (assignment.streamed[b]) plan.streamed.push_back(static_cast<int32_t>(b));
  }
  return plan;
}

std::vector<int32_t> UnitBegins(const Instance& instance, Granularity granularity) {
  std::vector<int32_t> begins;
  for (int b = 0; b < instance.NumBlocks(); ++b) {
    if (MayBegin(instance, b, granularity)) begins.push_back(b);
  }
  begins.push_back(instance.NumBlocks());
  return begins;
}

}  // namespace lime
