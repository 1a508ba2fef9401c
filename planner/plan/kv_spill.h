// KV that memory has no room for.
//
// A device with PlanDevice::max_layer_pages keeps at most so many pages of each of its layers. What requests need beyond that is on its
// disk: the oldest positions of their sequences, in pieces of 256, written once and read in every step by the layer's KV parts, as weights
// are that stream. How far the positions on the disk may reach follows from the pages that a layer has in all, so a level of KV says which
// KV parts stream.
#pragma once

#include <cstdint>

#include "planner/plan/plan.h"

namespace lime {

// Whether any device of the plan keeps less than all pages.
bool SpillsKv(const Plan& plan);

// Pages of each of the device's layers in memory, where a layer has `layer_pages` in all.
int64_t PagesInMemory(const PlanDevice& device, int64_t layer_pages);

// Pages of a layer that are in memory whatever is on the disk: of every sequence a piece that is not full, and the rows of two steps, so
// that what one has computed is written while the next is at work. The least a device can keep.
int64_t WorkingPages(const Plan& plan);

// Positions of each sequence, from the first on, that may be on the disk; a multiple of 256. However the layer's pages are shared out among
// the sequences, the others fit in memory beside the working pages.  REQUIRES: max_layer_pages is 0 or at least WorkingPages
int64_t PositionsOnDisk(const Plan& plan, const PlanDevice& device, int64_t layer_pages);

// What of each sequence is there where pages are shared out evenly, and leave memory only when it is full: so much a step reads.
double MeanPositionsOnDisk(const Plan& plan, const PlanDevice& device, int64_t layer_pages);

// Of one layer and sequence on the disk and where it is loaded: 16 pages one after another, and room to the next 4 KiB.
Bytes KvPieceBytes(const Plan& plan);

// What a KV part takes when all of it is loaded.
Bytes KvPartBytes(const Plan& plan, const PlanPart& part);

}  // namespace lime
