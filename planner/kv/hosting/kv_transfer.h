// Eq. 8 of the paper, as we read it (docs/results/deviations.md).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace lime {

// Lending KV pages (Eq. 8): how much KV a peer can store so that one fetch per visit delays
// nothing.
struct KvTransferProblem {
  double period_ms = 0;           // from one visit to the next
  double activation_busy_ms = 0;  // of the period: the link carries activations
  double bw_mb_per_ms = 0;
  double kv_visit_mb = 0;     // per token, for the layers of one visit; > 0
  double target_free_mb = 0;  // on the peer
  double kv_tok_mb = 0;       // per token, for all lent layers; > 0
  int64_t n = 0;              // existing tokens
};

// The number of tokens, 0 to n.  REQUIRES: numbers finite, kv_visit_mb and kv_tok_mb > 0
inline int64_t TokensToLend(const KvTransferProblem& problem) {
  const double idle_ms = std::max(0.0, problem.period_ms - problem.activation_busy_ms);
  const double fetchable = std::floor(idle_ms * problem.bw_mb_per_ms / problem.kv_visit_mb + 1e-9);
  const double storable = std::floor(problem.target_free_mb / problem.kv_tok_mb + 1e-9);
  return static_cast<int64_t>(std::max(0.0, std::min({static_cast<double>(problem.n), fetchable, storable})));
}

}  // namespace lime
