// KV that does not fit in memory.
//
// A device with PlanDevice::max_layer_pages keeps at most that many pages of each of its layers in
// memory. The rest is away: the oldest positions of each sequence, in pieces of 256. The layer's
// total pages determine how many positions may be away.
//   on its disk  Written once, then read in every step by the layer's streaming KV parts, like
//                streamed weights. The KV level therefore determines which KV parts stream.
//   on a host    In the memory of another device, sent once. In every step the layer's pieces come
//                back for a while if there is room and the link is fast enough. Else the queries go
//                to the host, and its attention result comes back.
//
// Implementation: kv_spill.cc, and hosting/kv_on_host.cc for functions that depend on where KV is.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/plan/plan.h"

namespace lime {

// Whether any device keeps only some of its pages in memory.
bool SpillsKv(const Plan& plan);

// Whether the KV that does not fit is on the device's disk.
bool HasKvOnDisk(const PlanDevice& device);

// Whether `holder` hosts KV for `owner`.
bool HoldsKvOf(const Plan& plan, int holder, int owner);
// Bytes of KV in a device's memory if each layer has `layer_pages` pages: KV of its own layers, and
// KV that it hosts for other devices. 0 for device -1.
Bytes HeldKvBytes(const Plan& plan, int device, int64_t layer_pages);

// Counts the memory for KV that is on a host or comes back from it.
void CountKvOfOthers(const Plan& plan, std::vector<PlanNeed>& needs);
void SetKvOfOthers(const PlanNeed& need, PlanMemory& memory);

// Whether this is the first KV part of a layer with a host. A token may wait there in every step,
// for the host's answer or for KV that comes back.
bool WaitsForKv(const Plan& plan, int part);
// How long a token waits at this part if the layer has `layer_pages` pages; 0 if the layer comes
// back in time with the plan's current streamed parts.  REQUIRES: WaitsForKv(plan, part)
double WaitMs(const Plan& plan, int part, int64_t layer_pages);
// The same for all parts, 0 for those without a wait, if `streamed` parts stream. In a longer step
// more layers come back in time.
std::vector<double> AllWaitsMs(const Plan& plan, int64_t layer_pages, const std::vector<int32_t>& streamed);

// Whether the plan uses the device: for a stage, or as the host of KV.
bool HasPart(const Plan& plan, int device);
// Whether one of the two devices is a host of the other: of its KV, or of its units on demand.
bool ShareHosting(const Plan& plan, int one, int other);

// The layers whose KV is on the device, ascending.
std::vector<int32_t> LayersOn(const Plan& plan, int device);

// The layers with a state of each sequence on the device, ascending.
std::vector<int32_t> StateLayersOn(const Plan& plan, int device);

// A state or snapshot of a layer in pages of KV, as devices send it: the last page is padded.
int64_t StatePages(Bytes state_bytes, Bytes page_bytes);

// Pages of each of the device's layers in memory, if a layer has `layer_pages` in total, and none
// gives pages back.
int64_t PagesInMemory(const PlanDevice& device, int64_t layer_pages);

// The window of the layers that give pages back; {} if none does.
KvWindow WindowOf(const Plan& plan);
// Whether the slots of the plan may have snapshots: of states, or of the pages of a window.
bool MayKeepSnapshots(const Plan& plan);
// The pages of a layer with this window in a snapshot: a row behind a whole number of pages attends
// to these pages before its own.
int64_t SnapshotPages(const KvWindow& window);
// The bytes of all snapshots of a layer with this window; 0 for a layer without one.
Bytes SnapshotBytes(const Plan& plan, const KvWindow& window);
// Pages of all sequences in the layer of this part, if a layer that keeps all pages has
// `layer_pages`.
int64_t PagesOfLayer(const Plan& plan, const PlanPart& part, int64_t layer_pages);
// Pages of all of the device's layers in memory, if a layer that keeps all pages has `layer_pages`
// in total.
int64_t PagesOn(const Plan& plan, int device, int64_t layer_pages);
// For each layer of LayersOn, the most pages that a sequence has in it; INT64_MAX: no limit.
std::vector<int64_t> MostPagesOn(const Plan& plan, int device);

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

// Sequences whose ids are equal from the first on can share KV in multiples of so many positions: a
// page. If pieces may be on a disk: a piece, and only the slot that has them can use them, because
// they are not copied. If the model has a state, a snapshot of it must be there, too. 0 if the plan
// evicts KV or lends it to a host, or if the model has a state and the plan no snapshots: they share
// none.
int64_t SharedKvUnit(const Plan& plan);
// Whether the pages of one slot can be copied to another slot.
bool CopiesKv(const Plan& plan);

// Bytes of a KV part that is loaded completely.
Bytes KvPartBytes(const Plan& plan, const PlanPart& part);

}  // namespace lime
