#include "planner/kv_transfer.h"

#include <algorithm>
#include <cmath>

namespace lime {

int64_t TokensToLend(const KvTransferProblem& problem) {
  const double idle_ms = std::max(0.0, problem.period_ms - problem.activation_busy_ms);
  const double fetchable = std::floor(idle_ms * problem.bw_mb_per_ms / problem.kv_visit_mb + 1e-9);
  const double storable = std::floor(problem.target_free_mb / problem.kv_tok_mb + 1e-9);
  return static_cast<int64_t>(std::max(0.0, std::min({static_cast<double>(problem.n), fetchable, storable})));
}

}  // namespace lime
