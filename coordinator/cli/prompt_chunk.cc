#include "coordinator/cli/prompt_chunk.h"

#include <algorithm>

#include "coordinator/cluster/device_memory.h"

namespace lime::cli {
namespace {

// What a longer chunk takes beside the rows that the plan has room for anyway.
Bytes More(const Plan& plan, const ModelSpec& spec, int64_t rows) {
  return AssumedActivations(spec, rows, plan.batch, plan.context) - AssumedActivations(spec, plan.batch, plan.batch, plan.context);
}

}  // namespace

Plan WithPromptChunk(Plan plan, const ModelSpec& spec, int64_t prompt_tokens) {
  const int64_t most = std::min(plan.context, std::max(prompt_tokens, kLeastPromptChunk));
  const auto free = [](const PlanDevice& device) { return device.memory.margin - device.least_margin; };
  const auto least = std::ranges::min_element(plan.devices, {}, free);
  if (least == plan.devices.end()) return plan;
  for (int64_t rows = std::min(most, kLeastPromptChunk); rows > plan.batch; rows /= 2) {
    const Bytes more = More(plan, spec, rows);
    if (more > free(*least)) continue;
    Plan longer = plan;
    longer.prompt_tokens = most;
    longer.prefill_chunk = rows;
    longer.chunks_per_sweep = 1;
    for (PlanDevice& device : longer.devices) device.memory.margin -= more, device.memory.activations += more;
    if (longer.Validate().ok()) return longer;
  }
  return plan;
}

}  // namespace lime::cli
