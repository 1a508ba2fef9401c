#include "daemon/logic/stage_programs.h"

#include <algorithm>
#include <utility>

#include "common/activation.h"
#include "daemon/logic/baselines/rows_again.h"
#include "daemon/logic/head_partial.h"
#include "daemon/logic/hosting/kv_message.h"
#include "daemon/logic/hosting/units_message.h"
#include "planner/plan/plan_residency.h"
#include "planner/plan/plan_rows.h"
#include "planner/program/compile.h"

namespace lime {
namespace {

// A micro-batch must fit in one message.
absl::Status CheckMessages(const Plan& plan, Bytes row_bytes) {
  LIME_RETURN_IF_ERROR(RowsAgain::CheckMessages(plan, row_bytes));
  for (const Stage& stage : plan.stages) {
    const int64_t ids = IdsBefore(plan, stage.lo);
    const Bytes bytes = MaxRows(plan) * row_bytes + MostLogitBytes(/*messages=*/1, plan.batch, ids);
    if (ids == 0 || bytes <= kMaxActivationBytes) continue;
    return Invalid("the plan splits the head at id ", ids, ", so a message of ", MaxRows(plan), " rows with the logits of ", plan.batch,
                   " rows may need ", FormatBytes(bytes), ", the limit is ", FormatBytes(kMaxActivationBytes),
                   "; plan shorter chunks or a smaller batch");
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckCarriedOut(const Plan& plan, const ModelSpec& spec) {
  LIME_RETURN_IF_ERROR(CheckMessages(plan, spec.config.stream_cols() * ElementBytes(spec.working_dtype)));
  LIME_RETURN_IF_ERROR(CheckKvMessages(plan, spec.config));
  LIME_RETURN_IF_ERROR(CheckUnitsMessages(plan, spec));
  return GrowsKv(plan) ? WithResidency(plan, ResidencyOf(plan)).status() : absl::OkStatus();
}

absl::StatusOr<std::vector<Program>> CompileAll(const Plan& plan, int32_t device, const Plan* before) {
  const int32_t most = MostMicrobatches(plan);
  std::vector<Program> programs;
  for (int32_t m = StaysTogether(plan, most) ? 1 : most; m <= most; ++m) {
    const StepShape shape{.kind = StepShape::Kind::kDecode, .microbatches = m};
    LIME_ASSIGN_OR_RETURN(std::vector<Program> all, before == nullptr ? Compile(plan, shape) : CompileChange(*before, plan, shape));
    programs.push_back(std::move(all[static_cast<size_t>(device)]));
  }
  return programs;
}

bool IsDecode(const MicroBatch& batch) {
  return std::ranges::adjacent_find(batch.rows, {}, &BatchRow::sequence) == batch.rows.end();
}

bool IsPlannedDecode(const Plan& plan, const Compute& what, const MicroBatch& batch) {
  const int64_t rows = std::ssize(batch.rows);
  return what.part != kEmbeddingPart && RetainsAllKv(plan) && IsDecode(batch) &&
         rows == std::min<int64_t>(plan.batch, plan.sequences - int64_t{what.microbatch} * plan.batch);
}

}  // namespace lime
