#include "planner/plan/predictor_parts.h"

#include <algorithm>

#include "planner/plan/plan_blocks.h"
#include "planner/plan/plan_checks.h"

namespace lime {
namespace {

constexpr Bytes kPredictorAlignment = 64;  // in memory
constexpr size_t kPredictorHashDigits = 16;

}  // namespace

bool IsPredictorHash(std::string_view hash) {
  return hash.size() == kPredictorHashDigits && hash.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

int64_t LargestPredictorRank(const Plan& plan, int32_t device) {
  int64_t most = 0;
  for (const int p : PartsOn(plan, device)) most = std::max<int64_t>(most, plan.parts[p].predictor_rank);
  return most;
}

int64_t LargestPredictorRank(std::span<const PlanPart> parts) {
  int64_t most = 0;
  for (const PlanPart& part : parts) most = std::max<int64_t>(most, part.predictor_rank);
  return most;
}

Bytes PredictorMemory(const ModelSpec& spec, const Plan& plan, std::span<const int> parts) {
  Bytes bytes = 0;
  for (const int p : parts) {
    const PlanPart& part = plan.parts[p];
    if (part.predictor_rank == 0) continue;
    const int64_t hidden = spec.config.hidden_size, neurons = spec.config.layer(part.block.layer).intermediate_size;
    const int64_t rank = part.predictor_rank, working = ElementBytes(spec.working_dtype);
    for (const int64_t numbers : {rank * hidden, neurons * rank, neurons, int64_t{1}})
      bytes += RoundUp(numbers * working, kPredictorAlignment);
  }
  return bytes;
}

Bytes PredictorMemory(const ModelSpec& spec, const Plan& plan, int32_t device) {
  return PredictorMemory(spec, plan, PartsOn(plan, device));
}

absl::Status CheckPredictor(const Plan& plan, int p, const std::string& name) {
  const PlanPart& part = plan.parts[p];
  const bool may_have = !plan.predictor.empty() && part.block.kind == BlockKind::kMlp && BeginsBlock(plan, p);
  return CheckInt({name, ".predictor_rank"}, part.predictor_rank, 0, may_have ? kMostPlanPredictorRank : 0);
}

}  // namespace lime
