// KV in the memory of another device, the host (PlanDevice::kv_host): how much there is, and how
// long a token waits for it. planner/plan/kv_spill.h declares the functions for both places of KV,
// disk and host.
//
// The link fetches layers in the order of use (Eq. 8, for memory that holds some layers and is
// reused). A fetch begins as soon as a layer that was just used makes room. LIME fetches as many
// layers as can all arrive in time, spread evenly. For other layers it asks the host, or waits if
// the host is not asked (PlanDevice::asks_kv). If the host answers in less than kLongAnswerMs, LIME
// fetches all layers, or only as many as fit in memory together. A running device measures the
// fetch rate and decides for itself (daemon/logic/hosting/kv_fetch_size.h).
#pragma once

#include <cstdint>

#include "planner/plan/plan.h"

namespace lime {

// Whether the KV that does not fit is on a host.
bool HasKvOnHost(const PlanDevice& device);

// The number of pieces of each of the device's layers that its host has room for: all positions
// that may be away, but not more than all pages of a layer hold. 0 without a host.
int64_t HostedPieces(const Plan& plan, const PlanDevice& device);
// Memory of the device for fetched pieces.
Bytes FetchedBytes(const Plan& plan, const PlanDevice& device);

// Layers whose pieces are in flight from a host at a time. With two, the link never idles between
// layers.
inline constexpr int64_t kKvFetchesUnderWay = 2;

// Time of the host's answer, scaled from the plan's time for all pages, whether or not the host is
// asked.  REQUIRES: WaitsForKv(plan, part)
double AnswerMs(const Plan& plan, int part, int64_t layer_pages);

// Another message may delay an answer by a millisecond, which matters little to an answer this
// long.
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
