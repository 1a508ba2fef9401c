// Which layers' KV comes back from a host before it is used (Eq. 8 for a room that holds some layers and is used again and again).
//
// The link brings one layer after another, in the order of their use, each as soon as one that was used before has left room for it. As
// many layers as can are fetched so that none comes late, spread evenly; the host is asked about the others, or where it is not, they are
// waited for. Where it is asked and answers soon, either all layers come on and on or only those that stay in the room. A device that runs
// measures how fast pieces come, and decides for itself (daemon/logic/kv_fetch_size.h).
#pragma once

#include <cstdint>

#include "planner/plan/plan.h"

namespace lime {

// An answer of a host that another message, which takes a millisecond, holds up by little.
inline constexpr double kLongAnswerMs = 4;

// Whether a layer, of `layers`, is among `count` of them that are spread evenly.
constexpr bool IsAmong(int64_t layer, int64_t count, int64_t layers) {
  return (layer + 1) * count / layers > layer * count / layers;
}

// Layers of the device that come back in time where a layer has `layer_pages` pages in all, and the plan's parts stream as they do; 0 where
// nothing is with a host.
int64_t LayersInTime(const Plan& plan, int device, int64_t layer_pages);

// What of a layer's KV is with the host there takes on the link.
double FetchLayerMs(const Plan& plan, int device, int64_t layer_pages);

}  // namespace lime
