// The online memory planner of the paper (Eq. 5 to 7): how many more attention and MLP blocks
// stream as the KV cache grows.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/plan/plan.h"

namespace lime {

// One device with its base plan.
struct OnlineProblem {
  double free_mb = 0;    // for KV
  double kv_tok_mb = 0;  // per token of context, for all its layers and sequences; > 0
  double mha_mb = 0;     // an attention block
  double mlp_mb = 0;     // an MLP block
  int64_t visits = 1;    // visits per step
  int64_t cap_mha = 0;   // attention blocks per visit that can still be streamed
  int64_t cap_mlp = 0;
  int64_t n_max = 0;  // wanted context in tokens
};

// Above the capacity of the previous threshold, each visit streams `alpha` more attention and
// `beta` more MLP blocks than the base plan. A threshold replaces the previous one.
struct OffloadThreshold {
  int64_t alpha = 0;
  int64_t beta = 0;
  int64_t capacity_tokens = 0;
  double extra_load_mb_per_visit = 0;

  friend bool operator==(const OffloadThreshold&, const OffloadThreshold&) = default;
};

struct OffloadTable {
  std::vector<OffloadThreshold> steps;  // the first is (0, 0), Eq. 5
  bool exhausted = false;               // n_max exceeds the capacity of the last
};

// floor((free + (visits - 1)(alpha A + beta M)) / kv_tok + 1e-9). One set of blocks is always in
// memory.
int64_t OnlineCapacity(const OnlineProblem& problem, int64_t alpha, int64_t beta);

// REQUIRES: numbers finite and not negative, kv_tok_mb > 0, visits >= 1, (cap_mha + 1)(cap_mlp + 1)
// <= kMaxOffloadChoices
OffloadTable MakeOffloadTable(const OnlineProblem& problem);

inline constexpr int64_t kMaxOffloadChoices = int64_t{1} << 22;

// ---- Rules that choose the parts that stream as KV grows, to compare with LIME's own rule. Each
// is an OnlineRule of planner/kv/kv_levels.h.

// Eq. 5 to 7: a number of attention and MLP blocks more in every visit.
std::vector<int32_t> PaperRule(const Plan& plan, int device, Bytes room, int64_t layer_pages);

// No memory planner: a number of whole layers more in every visit.
std::vector<int32_t> WholeLayersRule(const Plan& plan, int device, Bytes room, int64_t layer_pages);

}  // namespace lime
