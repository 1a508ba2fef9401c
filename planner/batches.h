// Chooses the number and size of micro-batches together, if an instance has times for several
// sizes.
#pragma once

#include <vector>

#include "planner/base/status.h"
#include "planner/plan/instance/instance.h"
#include "planner/strategies.h"

namespace lime {

struct BatchedInstance {
  Instance instance;  // times and micro-batches of this choice
  int32_t batch = 0;  // sequences per micro-batch; 0: unknown
};

// The ways to serve instance.sequences: each batch size with known times, with as many
// micro-batches as needed. Without `sequences`, only the instance itself. InvalidArgument if no
// size has all times.
absl::StatusOr<std::vector<BatchedInstance>> BatchChoices(const Instance& instance);

struct BatchedPlan {
  int32_t microbatches = 0;
  int32_t batch = 0;  // 0: unknown
  FoundPlan found;
  double lower_bound_ms = 0;  // no plan of any choice is faster
};

// The options for a share of the time and the work, with a clock that begins now.
SearchOptions Part(const SearchOptions& options, double share);

// The best plan of a strategy over all choices. A step serves all sequences with any choice.
// `pp-offload` uses the smallest micro-batches, `pp-offload-batched` the smallest that hold all
// sequences, else the largest.
absl::StatusOr<BatchedPlan> PlanBatches(Strategy strategy, const Instance& instance, const SearchOptions& options);

// The instance with the times and micro-batches that a plan names, such as a result of PlanBatches.
// Unchanged if it has no `sequences`. InvalidArgument if times of `batch` are unknown, or if
// `microbatches` of that size do not match instance.sequences.
absl::StatusOr<Instance> WithBatch(const Instance& instance, int32_t microbatches, int32_t batch);

}  // namespace lime
