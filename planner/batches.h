// Micro-batches and their size chosen together, where an instance says how long blocks and hops take with several sequences in one.
#pragma once

#include <vector>

#include "planner/base/status.h"
#include "planner/plan/instance.h"
#include "planner/strategies.h"

namespace lime {

struct BatchedInstance {
  Instance instance;  // times and micro-batches of this choice
  int32_t batch = 0;  // sequences in a micro-batch; 0: not said
};

// The ways to serve instance.sequences: for each batch size for which all times are known, as many micro-batches as it takes. The instance
// as it is where it does not ask. InvalidArgument where it asks and gives no size in common.
absl::StatusOr<std::vector<BatchedInstance>> BatchChoices(const Instance& instance);

struct BatchedPlan {
  int32_t microbatches = 0;
  int32_t batch = 0;  // 0: not said
  FoundPlan found;
  double lower_bound_ms = 0;  // that no plan of any choice can beat
};

// The best plan of a strategy over all choices; one step serves all sequences whatever the choice. `pp-offload` takes the smallest
// micro-batches, `pp-offload-batched` the smallest that serve all at once, else the largest.
absl::StatusOr<BatchedPlan> PlanBatches(Strategy strategy, const Instance& instance, const SearchOptions& options);

// The instance with the times and micro-batches of a plan that names them, as the answer of PlanBatches does; as it is where it does not
// ask, and so has the times of one way alone. InvalidArgument where the times of that batch are not known, or where so many micro-batches
// of it are not what serves instance.sequences.
absl::StatusOr<Instance> WithBatch(const Instance& instance, int32_t microbatches, int32_t batch);

}  // namespace lime
