// The reads that bring the bundles of neurons from the file of a layer into slots of memory.
//
// JoinReads (planner/demand/bundle_reads.h) says which ranges of the file are read together. A read
// puts each record into its neuron's slot, and what lies between two records into memory that nobody
// looks at.
//
// Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "daemon/machine/block_device.h"
#include "daemon/weights/bundle_store.h"
#include "planner/base/bytes.h"
#include "planner/demand/bundle_reads.h"

namespace lime {

// A neuron to be read, and its slot: BundleLayout::slot_bytes, on 4 KiB.
struct BundleSlot {
  int32_t neuron = 0;
  std::byte* memory = nullptr;
};

struct ScatterOptions {
  int first_part = 0;       // of a record, the parts from here on
  Bytes gap_bytes = 0;      // as of JoinOptions: between two bundles
  Bytes longest_bytes = 0;  // as of JoinOptions: of one read
  // Takes what lies between records: whole 4 KiB, on 4 KiB. All reads share it.
  std::span<std::byte> gap_memory;
};

// Bytes of gap_memory with which no gap is cut: between two records lie the gap between their bundles
// and the parts before `first_part`.
Bytes GapMemory(const BundleLayout& layout, int first_part, Bytes gap_bytes);

// One read of a BlockDevice: segments [first_segment, first_segment + num_segments).
struct ScatteredRead {
  int64_t offset = 0;  // in the file
  Bytes bytes = 0;
  size_t first_segment = 0;
  size_t num_segments = 0;
  size_t num_neurons = 0;  // that it brings: the next ones of those wanted
};

struct ScatteredReads {
  std::vector<ScatteredRead> reads;  // by offset
  std::vector<BlockDevice::Segment> segments;
  std::vector<int32_t> places;     // scratch
  std::vector<BundleRead> joined;  // scratch

  // So that reads of so many neurons allocate nothing.  REQUIRES: gap_memory has GapMemory() bytes
  void Reserve(size_t neurons) { reads.reserve(neurons), segments.reserve(2 * neurons), places.reserve(neurons), joined.reserve(neurons); }
};

// Writes the reads of these neurons into `out`; allocates nothing if `out` had as many before. A read of
// more than BlockDevice::kMostSegments segments is cut. Where bundles do not begin on 4 KiB, two of
// them may share a page, so each is read alone. Afterwards the record of a neuron, from the first part
// on, begins in its slot at byte layer.RangeOf(neuron, first_part).skipped.
// REQUIRES: `wanted` ascends by place; the options have a gap_bytes of 0 or gap_memory.
void ScatterReads(const LayerBundles& layer, std::span<const BundleSlot> wanted, const ScatterOptions& options, ScatteredReads& out);

}  // namespace lime
