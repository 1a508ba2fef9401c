// KV that memory has no room for.
//
// A device with PlanDevice::max_layer_pages keeps at most so many pages of each of its layers. What requests need beyond that is away: the
// oldest positions of their sequences, in pieces of 256. How far they may reach follows from the pages that a layer has in all.
//   on its disk  written once, and read in every step by the layer's KV parts, as weights are that stream; so a level of KV says which
//                KV parts stream
//   on a host    another device's memory (PlanDevice::kv_host): sent once; in every step the layer's pieces come back for a while, where
//                there is room for them and the link is fast enough, or its queries go there, and what attention makes of those positions
//                comes back
#pragma once

#include <cstdint>
#include <vector>

#include "planner/plan/plan.h"

namespace lime {

// Whether any device of the plan keeps less than all pages.
bool SpillsKv(const Plan& plan);

// Whether a device's KV parts are read from its disk, or from its host's memory by asking it.
bool HasKvOnDisk(const PlanDevice& device);
bool HasKvOnHost(const PlanDevice& device);

// Pieces of all the device's layers that its host has room for: of every sequence as far as they may be away, and of no more than there
// are. 0 where it has none.
int64_t HostedPieces(const Plan& plan, const PlanDevice& device);
// What that takes.
Bytes HostedBytes(const Plan& plan, int device);
// What its room for pieces that come back takes.
Bytes FetchedBytes(const Plan& plan, const PlanDevice& device);

// Layers' pieces on their way from a host at a time, so that the link has the next one before the last has come.
inline constexpr int64_t kKvFetchesUnderWay = 2;

// Whether the part is the first KV part of a layer whose host is asked for it, in every step and by every micro-batch.
bool AsksForKv(const Plan& plan, int part);
// What a token waits for the part where a layer has `layer_pages` pages: not at all where the layer's KV comes back in time
// (planner/plan/kv_fetching.h) while the plan's parts stream as they do; else for the host's answer, of which the plan's time is that of
// all pages, or for KV that comes late. REQUIRES: AsksForKv(plan, part)
double AskKvMs(const Plan& plan, int part, int64_t layer_pages);
// Where so many of the device's layers come back in time.
double AskKvMs(const Plan& plan, int part, int64_t layer_pages, int64_t layers_in_time);
// Until the host has answered, whether or not it is asked.  REQUIRES: as above
double AnswerMs(const Plan& plan, int part, int64_t layer_pages);

// Whether a device has a stage, or KV of one that has: it takes part in the plan.
bool HasPart(const Plan& plan, int device);

// The layers whose attention, and so whose KV, is on the device; ascending.
std::vector<int32_t> LayersOn(const Plan& plan, int device);

// Pages of each of the device's layers in memory, where a layer has `layer_pages` in all.
int64_t PagesInMemory(const PlanDevice& device, int64_t layer_pages);

// Pages of a layer that are in memory whatever is on the disk: of every sequence a piece that is not full, and the rows of two steps, so
// that what one has computed is written while the next is at work. The least a device can keep.
int64_t WorkingPages(const Plan& plan);

// Positions of each sequence, from the first on, that may be away; a multiple of 256. However the layer's pages are shared out among the
// sequences, the others fit in memory beside the working pages.  REQUIRES: max_layer_pages is 0 or at least WorkingPages
int64_t PositionsAway(const Plan& plan, const PlanDevice& device, int64_t layer_pages);

// Whether any may be, with the pages that the plan has.
bool HasKvAway(const Plan& plan, int device);

// What of each sequence is away where pages are shared out evenly, and leave memory only when it is full: so much a step reads.
double MeanPositionsAway(const Plan& plan, const PlanDevice& device, int64_t layer_pages);

// Of one layer and sequence on the disk and where it is loaded: 16 pages one after another, and room to the next 4 KiB.
Bytes KvPieceBytes(const Plan& plan);

// What a device sets aside on its disk for its KV: a piece for every place of every layer and sequence.
Bytes KvOnDiskBytes(const Plan& plan, int device);

// What is in memory beside the KV of two plans while one takes it over from the other: pieces that are read from the disk and copied, here
// and for every other device, and messages.
Bytes TakeoverBytes(const Plan& plan);

// What a KV part takes when all of it is loaded.
Bytes KvPartBytes(const Plan& plan, const PlanPart& part);

}  // namespace lime
