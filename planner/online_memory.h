// The online memory planner of the paper (Eq. 5 to 7): how many more attention and MLP blocks to stream as the KV cache grows;
// and the lending of KV pages (Eq. 8).
#pragma once

#include <cstdint>
#include <vector>

namespace lime {

// One device under its base plan.
struct OnlineProblem {
  double free_mb = 0;    // for KV
  double kv_tok_mb = 0;  // per token of context, over all its layers and sequences; > 0
  double mha_mb = 0;     // an attention block
  double mlp_mb = 0;     // an MLP block
  int64_t visits = 1;    // per step
  int64_t cap_mha = 0;   // attention blocks that can still be streamed in every visit
  int64_t cap_mlp = 0;
  int64_t n_max = 0;  // tokens of context wanted
};

// From the context that the threshold before it can hold, stream `alpha` more attention and `beta` more MLP blocks than the base plan in
// every visit. A threshold replaces the one before.
struct OffloadThreshold {
  int64_t alpha = 0;
  int64_t beta = 0;
  int64_t capacity_tokens = 0;
  double extra_load_mb_per_visit = 0;

  friend bool operator==(const OffloadThreshold&, const OffloadThreshold&) = default;
};

struct OffloadTable {
  std::vector<OffloadThreshold> steps;  // the first is (0, 0): Eq. 5
  bool exhausted = false;               // n_max is beyond the last
};

// floor((free + (visits - 1)(alpha A + beta M)) / kv_tok + 1e-9): one set must be in memory at any time.
int64_t OnlineCapacity(const OnlineProblem& problem, int64_t alpha, int64_t beta);

// REQUIRES: numbers finite and not negative, kv_tok_mb > 0, visits >= 1, (cap_mha + 1)(cap_mlp + 1) <= kMaxOffloadChoices
OffloadTable MakeOffloadTable(const OnlineProblem& problem);

inline constexpr int64_t kMaxOffloadChoices = int64_t{1} << 22;

// Lending KV pages (Eq. 8): what a device may keep on its peer and fetch back once per visit without delaying anything.
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
