// A plan of a small model for three small devices that cannot hold it, for golden files.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "planner/evaluation/first_token.h"
#include "tests/planner/small_cluster.h"

namespace lime {

// Three boards: "a" and "b" compute twice in a step, "b" streams half of its MLPs, "c" has the
// head.
inline absl::StatusOr<Plan> SmallPlan(int32_t sequences, int32_t batch, Bytes b_budget) {
  const std::vector<ClusterDevice> devices = {Board("a", 80 * kMiB, 20e9), Board("b", b_budget, 10e9, 2e9), Board("c", 36 * kMiB)};
  LIME_ASSIGN_OR_RETURN(const PlanProblem problem, MakePlanProblem(SmallModel(), devices,
                                                                   {.model_name = "small",
                                                                    .context = 256,
                                                                    .sequences = sequences,
                                                                    .batches = {batch},
                                                                    .part_bytes = 8 * kMiB,
                                                                    .prompt_tokens = 200,
                                                                    .chunks = {64}}));
  const auto begin = [&](BlockId block) {
    return static_cast<int32_t>(std::ranges::find(problem.head.parts, block, &PlanPart::block) - problem.head.parts.begin());
  };
  const int32_t b1 = begin({BlockKind::kAttention, 1}), a2 = begin({BlockKind::kAttention, 2}), b2 = begin({BlockKind::kAttention, 3}),
                c1 = begin({BlockKind::kHead, 0}), end = problem.head.NumParts();
  PlanChoice choice = {.stages = {.stages = {{0, 0, b1}, {1, b1, a2}, {0, a2, b2}, {1, b2, c1}, {2, c1, end}}, .embedding_by_rows = true},
                       .batch = batch,
                       .lower_bound_ms = 5};
  for (const int32_t layer : {1, 3}) {
    const int32_t mlp = begin({BlockKind::kMlp, layer});
    for (int32_t p = mlp; p < mlp + 2; ++p) choice.stages.streamed.push_back(p);
  }
  choice.first_token = FirstTokenPredictor(*problem.first_token).Predict(choice.stages);
  return MakePlan(problem, choice);
}

}  // namespace lime
