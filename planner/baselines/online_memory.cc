#include "planner/baselines/online_memory.h"

#include <algorithm>
#include <cmath>
#include <tuple>

#include "planner/base/check.h"

namespace lime {
namespace {

double ExtraLoadMb(const OnlineProblem& problem, int64_t alpha, int64_t beta) {
  return static_cast<double>(alpha) * problem.mha_mb + static_cast<double>(beta) * problem.mlp_mb;
}

}  // namespace

int64_t OnlineCapacity(const OnlineProblem& problem, int64_t alpha, int64_t beta) {
  constexpr double kMostTokens = 1e15;
  const double room_mb = problem.free_mb + static_cast<double>(problem.visits - 1) * ExtraLoadMb(problem, alpha, beta);
  return static_cast<int64_t>(std::min(kMostTokens, std::floor(room_mb / problem.kv_tok_mb + 1e-9)));
}

// Capacity never falls as the extra load grows, so one pass in order of preference finds all
// thresholds.
OffloadTable MakeOffloadTable(const OnlineProblem& problem) {
  LIME_CHECK_LE((problem.cap_mha + 1) * (problem.cap_mlp + 1), kMaxOffloadChoices);
  std::vector<OffloadThreshold> choices;
  for (int64_t alpha = 0; alpha <= problem.cap_mha; ++alpha) {
    for (int64_t beta = 0; beta <= problem.cap_mlp; ++beta) {
      choices.push_back({alpha, beta, OnlineCapacity(problem, alpha, beta), ExtraLoadMb(problem, alpha, beta)});
    }
  }
  std::sort(choices.begin(), choices.end(), [](const OffloadThreshold& a, const OffloadThreshold& b) {
    return std::tuple(a.extra_load_mb_per_visit, a.alpha + a.beta, a.alpha) <
           std::tuple(b.extra_load_mb_per_visit, b.alpha + b.beta, b.alpha);
  });
  OffloadTable table{.steps = {choices.front()}};  // (0, 0)
  for (const OffloadThreshold& choice : choices) {
    if (table.steps.back().capacity_tokens >= problem.n_max) break;
    if (choice.capacity_tokens > table.steps.back().capacity_tokens) table.steps.push_back(choice);
  }
  table.exhausted = table.steps.back().capacity_tokens < problem.n_max;
  return table;
}

}  // namespace lime
