#include "daemon/engine/stage_memory.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "daemon/engine/sliced_visit.h"
#include "daemon/logic/stage_inbox.h"
#include "planner/plan/kv_eviction.h"
#include "planner/plan/kv_spill.h"

namespace lime {
namespace {

// Queries and records of one micro-batch: kept, and on their way. A host may have those of each device whose host it is, and pieces
// that go back to it.
Bytes AskingBytes(const Plan& plan, int32_t device, const ModelConfig& config) {
  const Bytes row = config.num_heads * (2 * config.head_dim + 2) * static_cast<Bytes>(sizeof(float));
  const Bytes asking = 2 * MaxRows(plan) * row;
  Bytes bytes = HasKvOnHost(plan.devices[device]) ? asking : 0;
  for (const PlanDevice& other : plan.devices) {
    if (!HasKvOnHost(other) || other.kv_host != device) continue;
    bytes += asking + (other.kv_fetch_pieces > 0 ? kKvFetchesUnderWay * KvPieceBytes(plan) : 0);
  }
  return bytes;
}

// A piece on its way to the disk, or to a host: read for it, and its messages.
Bytes LeavingBytes(const Plan& plan, const PlanDevice& device) {
  return device.max_layer_pages == 0 ? 0 : (HasKvOnHost(device) ? 2 : 1) * KvPieceBytes(plan);
}

std::string HowToFit(const PlanDevice& device, Bytes runtime) {
  const Bytes planned = device.memory.runtime + device.memory.margin;
  if (runtime <= planned) return "; raise its memory, or plan with a longer list of devices or a shorter context";
  return absl::StrCat("; the process itself holds ", FormatBytes(runtime), " by now where the plan leaves it ", FormatBytes(planned),
                      ": plan again, or start it anew");
}

}  // namespace

Bytes MessageBytes(const Plan& plan, int32_t device, const ModelSpec& spec) {
  const Bytes row_bytes = spec.config.hidden_size * ElementBytes(spec.working_dtype);
  return StageInbox::WaitingBytes(plan, device, row_bytes) + AskingBytes(plan, device, spec.config) +
         LeavingBytes(plan, plan.devices[device]) + SlicedVisit::BytesFor(plan, row_bytes);
}

absl::Status CheckFits(const PlanDevice& device, const StageMemory& memory) {
  if (memory.total() <= device.budget) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      "device \"", device.name, "\" would take ", FormatBytes(memory.total()), " (runtime ", FormatBytes(memory.runtime), ", activations ",
      FormatBytes(memory.activations), ", KV ", FormatBytes(memory.kv + memory.others), ", weights and ring ", FormatBytes(memory.weights),
      ") and may take ", FormatBytes(device.budget), HowToFit(device, memory.runtime)));
}

absl::Status CheckBothFit(const PlanDevice& device, Bytes both) {
  if (both <= device.budget) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      "device \"", device.name, "\" has no room for the KV of two plans at once: ", FormatBytes(both), " of ", FormatBytes(device.budget)));
}

}  // namespace lime
