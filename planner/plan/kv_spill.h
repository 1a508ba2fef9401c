// KV that does not fit in memory.
//
// A device with PlanDevice::max_layer_pages keeps at most that many pages of each of its layers in
// memory. The rest is away: the oldest positions of each sequence, in pieces of 256. The layer's
// total pages determine how many positions may be away.
//   on its disk  Written once, then read in every step by the layer's streaming KV parts, like
//                streamed weights. The KV level therefore determines which KV parts stream.
//   on a host    In the memory of another device (PlanDevice::kv_host), sent once. In every step
//                the layer's pieces are fetched for a while if there is room and the link is fast
//                enough. Else the queries go to the host, and its attention result comes back.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/plan/plan.h"

namespace lime {

// Whether any device keeps only some of its pages in memory.
bool SpillsKv(const Plan& plan);

// Whether the KV that does not fit is on the device's disk, or on a host.
bool HasKvOnDisk(const PlanDevice& device);
bool HasKvOnHost(const PlanDevice& device);

// Pieces of all the device's layers that its host has room for: all positions that may be away, but
// no more pieces than the plan's pages make. 0 without a host.
int64_t HostedPieces(const Plan& plan, const PlanDevice& device);
// Memory that these pieces take on the host.
Bytes HostedBytes(const Plan& plan, int device);
// Memory of the device for fetched pieces.
Bytes FetchedBytes(const Plan& plan, const PlanDevice& device);

// Layers whose pieces are in flight from a host at a time. With two, the link never idles between
// layers.
inline constexpr int64_t kKvFetchesUnderWay = 2;

// Whether this is the first KV part of a layer with a host. The host may be asked there in every
// step, by every micro-batch.
bool AsksForKv(const Plan& plan, int part);
// How long a token waits at this part if the layer has `layer_pages` pages. 0 if the layer is
// fetched in time (planner/plan/kv_fetching.h) with the plan's current streamed parts. Else the
// time of the host's answer, scaled from the plan's time for all pages, or of a late fetch.
// REQUIRES: AsksForKv(plan, part)
double AskKvMs(const Plan& plan, int part, int64_t layer_pages);
// The same if `layers_in_time` of the device's layers are fetched in time.
double AskKvMs(const Plan& plan, int part, int64_t layer_pages, int64_t layers_in_time);
// Time of the host's answer, whether or not the host is asked.  REQUIRES: AsksForKv(plan, part)
double AnswerMs(const Plan& plan, int part, int64_t layer_pages);

// Whether the plan uses the device: for a stage, or as the host of KV.
bool HasPart(const Plan& plan, int device);

// The layers whose attention and KV are on the device, ascending.
std::vector<int32_t> LayersOn(const Plan& plan, int device);

// Pages of each of the device's layers in memory, if a layer has `layer_pages` in total.
int64_t PagesInMemory(const PlanDevice& device, int64_t layer_pages);

// The least pages of a layer that must be in memory: one incomplete piece per sequence, and the
// rows of two steps, so that one step's KV is written out while the next step computes.
int64_t WorkingPages(const Plan& plan);

// Positions of each sequence, counted from the first, that may be away; a multiple of 256. The
// remaining pages fit in memory for any division among the sequences.  REQUIRES: max_layer_pages is
// 0 or at least WorkingPages
int64_t PositionsAway(const Plan& plan, const PlanDevice& device, int64_t layer_pages);

// Whether any position may be away with the plan's current pages.
bool HasKvAway(const Plan& plan, int device);

// The mean number of positions away per sequence if sequences have equal lengths and KV leaves
// memory only when it is full. A step reads this many.
double MeanPositionsAway(const Plan& plan, const PlanDevice& device, int64_t layer_pages);

// Bytes of one piece of one layer and sequence: 16 consecutive pages, padded to 4 KiB.
Bytes KvPieceBytes(const Plan& plan);

// Disk space of the device for its KV: one piece for every 256 positions of every layer and
// sequence.
Bytes KvOnDiskBytes(const Plan& plan, int device);

// Memory needed besides the KV of two plans while one takes over from the other: pieces read from
// the disk and copied, for this device and all others, and messages.
Bytes TakeoverBytes(const Plan& plan);

// Bytes of a KV part that is loaded completely.
Bytes KvPartBytes(const Plan& plan, const PlanPart& part);

}  // namespace lime
