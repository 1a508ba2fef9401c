#include "planner/plan/instance/stage_plan.h"

namespace lime {
namespace {

absl::Status CheckBlocksOfStage(const Instance& instance, const std::vector<Stage>& stages, size_t j) {
  const Stage& stage = stages[j];
  const int expected = j == 0 ? 0 : stages[j - 1].hi;
  if (stage.device < 0 || stage.device >= instance.NumDevices()) {
    return Invalid("plan: field \"stages[", j, "].device\" = ", stage.device, " is none of the ", instance.NumDevices(), " devices");
  }
  if (stage.lo != expected)
    return Invalid("plan: field \"stages[", j, "].lo\" = ", stage.lo, " leaves a gap or overlap; block ", expected, " is next");
  if (stage.hi <= stage.lo || stage.hi > instance.NumBlocks()) {
    return Invalid("plan: field \"stages[", j, "].hi\" = ", stage.hi, " is outside ", stage.lo + 1, " to ", instance.NumBlocks());
  }
  if (j > 0 && stage.device == stages[j - 1].device) {
    return Invalid("plan: field \"stages[", j, "].device\" = ", stage.device, " is the device of the stage before; join the two");
  }
  return absl::OkStatus();
}

absl::Status CheckStreamed(const Instance& instance, const std::vector<int32_t>& streamed) {
  for (size_t i = 0; i < streamed.size(); ++i) {
    if (streamed[i] < 0 || streamed[i] >= instance.NumBlocks()) {
      return Invalid("plan: field \"streamed\": ", streamed[i], " is none of the ", instance.NumBlocks(), " blocks");
    }
    if (i > 0 && streamed[i] == streamed[i - 1]) return Invalid("plan: field \"streamed\": block ", streamed[i], " is listed twice");
    if (i > 0 && streamed[i] < streamed[i - 1]) return Invalid("plan: field \"streamed\": block ", streamed[i], " is out of order");
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status StagePlan::Validate(const Instance& instance) const {
  if (stages.empty()) return Invalid("plan: field \"stages\" is empty; its stages must cover all blocks");
  for (size_t j = 0; j < stages.size(); ++j) LIME_RETURN_IF_ERROR(CheckBlocksOfStage(instance, stages, j));
  if (stages.back().hi != instance.NumBlocks()) {
    return Invalid("plan: field \"stages\" ends at block ", stages.back().hi, " of ", instance.NumBlocks(), "; cover all blocks");
  }
  const int first = stages.front().device;
  if (embedding_by_rows && !instance.devices[first].embed_rows_ms) {
    return Invalid("plan: field \"embedding_by_rows\" is true, but ", DeviceLabel(instance, first),
                   " of the first stage has no \"embed_rows_ms\"");
  }
  return CheckStreamed(instance, streamed);
}

}  // namespace lime
