// Chooses the layers whose KV is fetched from a host before its use (Eq. 8, for memory that holds
// some layers and is reused).
//
// The link fetches layers in the order of use. A fetch begins when a used layer has left room. LIME
// fetches as many layers as can all arrive in time, spread evenly. For other layers it asks the
// host, or waits if the host is not asked (PlanDevice::asks_kv). If the host answers in less than
// kLongAnswerMs, LIME fetches all layers, or only as many as fit in memory together. A running
// device measures the fetch rate and decides for itself (daemon/logic/hosting/kv_fetch_size.h).
#pragma once

#include <cstdint>

#include "planner/plan/plan.h"

namespace lime {

// An answer this long suffers little from the millisecond that another message delays it.
inline constexpr double kLongAnswerMs = 4;

// Whether `layer` is one of `count` layers that are spread evenly over `layers`.
constexpr bool IsAmong(int64_t layer, int64_t count, int64_t layers) {
  return (layer + 1) * count / layers > layer * count / layers;
}

// The number of the device's layers that are fetched in time if a layer has `layer_pages` pages,
// with the plan's current streamed parts. 0 if no KV is on a host.
int64_t LayersInTime(const Plan& plan, int device, int64_t layer_pages);

// Time on the link for the KV of one layer that is on the host.
double FetchLayerMs(const Plan& plan, int device, int64_t layer_pages);

}  // namespace lime
