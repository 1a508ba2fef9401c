// Which neurons of a layer are active together: what Figure 5 of "LLM in a flash" (Alizadeh et al. 2023,
// section 3.2) shows, and why its bundles of closest friends do not pay.
//
// The friends of a neuron are the others, by the number of steps that have both; the closest friend comes
// first, and among equals the lower neuron. The paper puts a copy of each neuron's closest friend into its
// bundle, so that one read brings both, and finds that the most active neurons are everybody's friend and are
// read again and again. `FriendReads` counts that. LIME's own order of neurons is neuron_path.h.
//
// Pure. Results do not depend on the threads that share the work.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "planner/base/for_each.h"
#include "planner/base/status.h"
#include "planner/demand/mask_statistics.h"

namespace lime {

inline constexpr int32_t kMostFriends = 1000;         // of one neuron, as in Figure 5a
inline constexpr int64_t kLeastFriendUses = 8;        // steps of a neuron whose friends count: few steps share many neurons by chance
inline constexpr int32_t kFriendRanks[] = {1, 4, 8};  // of Figures 5b to 5d

// Of all neurons with at least kLeastFriendUses steps: the share of a neuron's steps that also have its friend
// of this rank.
struct FriendRank {
  int32_t rank = 1;
  double mean = 0;
  std::vector<int64_t> neurons;  // entry p, from 0 to 100: neurons with a share of p percent, rounded down
};

// A step reads the bundles of its new neurons, and each bundle also has a copy of the closest friend. A new
// neuron that came as a friend is not read itself.
struct FriendReads {
  double new_neurons = 0;    // of a step: bundles that it reads without friends
  double bundles = 0;        // that it reads with friends; each has twice the bytes
  double used = 0;           // share of the copies of friends that save a read
  double already_there = 0;  // whose neuron was in memory or had come in this step
  double not_needed = 0;     // whose neuron no mask of the window has
};

struct Coactivation {
  int64_t steps = 0;                // masks of which friends were counted: every so many-th one
  int32_t neuron = 0;               // one with the median number of steps, of those with any
  std::vector<double> with_neuron;  // shares of its steps that each other neuron has, too; descend; at most kMostFriends
  std::vector<FriendRank> ranks;    // kFriendRanks
  int32_t closest_friends = 0;      // different neurons that are a closest friend
  double of_most_active = 0;        // share of the neurons whose closest friend is among the most active hundredth
  FriendReads reads;
};

struct CoactivationOptions {
  int32_t neurons = 0;                                // of the layer; more than kFriendRanks has
  int32_t masks = 1;                                  // of the window of FriendReads, which memory does not bound
  std::function<bool()> ends = [] { return false; };  // as in CalibrateOptions
  ForEach for_each = InTurn;
};

// The first half of a sequence fills the window and does not count in FriendReads. InvalidArgument for masks
// that are not of the layer, or options outside their bounds; Cancelled once `ends` is true.
absl::StatusOr<Coactivation> MeasureCoactivation(std::span<const SequenceMasks> sequences, const CoactivationOptions& options);

}  // namespace lime
