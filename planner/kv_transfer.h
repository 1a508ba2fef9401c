// Lending KV pages (Eq. 8): what a device may keep on its peer and fetch back once per visit without delaying anything.
#pragma once

#include <cstdint>

namespace lime {

struct KvTransferProblem {
  double period_ms = 0;           // between two visits
  double activation_busy_ms = 0;  // of it, the link carries activations
  double bw_mb_per_ms = 0;
  double kv_visit_mb = 0;     // per token, of the layers of one visit; > 0
  double target_free_mb = 0;  // on the peer
  double kv_tok_mb = 0;       // per token, of all layers lent; > 0
  int64_t n = 0;              // tokens there are
};

// Whole tokens, 0 to n.  REQUIRES: numbers finite, kv_visit_mb and kv_tok_mb > 0
int64_t TokensToLend(const KvTransferProblem& problem);

}  // namespace lime
